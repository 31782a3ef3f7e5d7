"""The role of a tensor, from its name; tensors grouped by layer and role. There is no list of architectures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramerge.core.recipe.layers import LayerId, layer_of

ROLES = (
    "embedding",
    "attention q",
    "attention k",
    "attention v",
    "attention o",
    "attention qkv",
    "attention",
    "mlp gate",
    "mlp up",
    "mlp down",
    "mlp",
    "experts gate",
    "experts up",
    "experts down",
    "experts",
    "router",
    "norm",
    "head",
    "other",
)
"""All roles, in the order in which they are listed."""

_EXPERT = re.compile(r"(^|[._])(shared_)?experts?([._]|$)")
_KINDS = (
    ("gate", re.compile(r"(gate_proj|\bw1\b|gate)$")),
    ("up", re.compile(r"(up_proj|\bw3\b|fc1|c_fc|dense_h_to_4h|fc_in|linear_in|gate_up_proj)$")),
    ("down", re.compile(r"(down_proj|\bw2\b|fc2|dense_4h_to_h|fc_out|linear_out)$")),
)
# The first that fits names the role.
_PATTERNS = (
    ("norm", re.compile(r"(norm|ln_?\d*|ln_f|layernorm|rmsnorm|_ln)$|norm\d*\b|layer_?norm")),
    ("head", re.compile(r"(^|\.)(lm_head|embed_out|output|score|classifier)$")),
    ("embedding", re.compile(r"(embed|wte|wpe|embedding|embeddings|embed_in)")),
    ("router", re.compile(r"(router|(block_sparse_moe|mlp|moe|feed_forward)\.gate|gate_inp)$")),
    ("attention q", re.compile(r"(q_proj|\bwq\b|\bquery|q_a_proj|q_b_proj|q_lin|to_q)$")),
    ("attention k", re.compile(r"(k_proj|\bwk\b|\bkey|k_lin|to_k)$")),
    ("attention v", re.compile(r"(v_proj|\bwv\b|\bvalue|v_lin|to_v)$")),
    ("attention qkv", re.compile(r"(c_attn|qkv_proj|query_key_value|wqkv|qkv|kv_a_proj_with_mqa|kv_b_proj)$")),
    ("attention o", re.compile(r"((attn|attention|self_attn)[\w.]*\.(o_proj|c_proj|out_proj|dense|wo)|\bwo|out_lin)$")),
    ("attention", re.compile(r"(attn|attention)")),
)
_SUFFIX = re.compile(r"\.(weight|bias|scale)$")


def role_of(name: str) -> str:
    """Return the role of a tensor, one of `ROLES`, from its name."""
    stem = _SUFFIX.sub("", name)
    group = "experts" if _EXPERT.search(stem) else "mlp"
    for role, pattern in _PATTERNS:
        if pattern.search(stem) and not (group == "experts" and role == "router"):
            return role
    for kind, pattern in _KINDS:
        if pattern.search(stem):
            return f"{group} {kind}"
    if group == "experts":
        return "experts"
    return "mlp" if re.search(r"(mlp|ffn|feed_forward|c_proj)", stem) else "other"


def layers_and_roles(names: Sequence[str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the numbers of tensors by layer, in order, and by role.

    Layers are called `layer 3`; if there are several stacks of layers, each layer is called after its stack.
    """
    layers: dict[LayerId, list[int]] = {}
    roles: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        if layer := layer_of(name):
            layers.setdefault(layer, []).append(number)
        roles.setdefault(role_of(name), []).append(number)
    several = len({layer.stack for layer in layers}) > 1
    return (
        {f"{layer.stack if several else 'layer'} {layer.number}": layers[layer] for layer in sorted(layers)},
        {role: roles[role] for role in ROLES if role in roles},
    )
