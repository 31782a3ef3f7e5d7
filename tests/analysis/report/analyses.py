"""Analyses to report on: real figures of the shipped agents, under harmless and hostile names, in all sizes."""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import ramerge
from ramerge.demo.run import AGENTS

NAMES = ("coder", "tool", "memory")

# What ends a script element or an attribute, opens a comment, is code to a template or to Vega, or is no UTF-8.
HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "\"'><img src=x onerror='window.hacked = 1'>",
    "<!-- <script> {{ 7 * 7 }} ${window.hacked = 1} \u2028 \ud800 \u202e\x9b\0",
)


@cache
def _text() -> str:
    recipe = {"method": "ram", "base": str(AGENTS / "base"), "agents": {name: str(AGENTS / name) for name in NAMES}}
    return ramerge.analyze(recipe).to_json()


def shipped() -> dict[str, Any]:
    """Of the shipped agents, as `--json` has it."""
    return json.loads(_text())


def hostile() -> dict[str, Any]:
    """The same under names that try to get out of wherever they are put."""
    renamed = dict(zip(NAMES, HOSTILE, strict=True))
    values = _walk(shipped(), lambda text: renamed.get(text, text))
    for place, tensor in enumerate(values["tensors"]):
        tensor["name"] += HOSTILE[place % len(HOSTILE)]
    for finding in values["findings"]:
        finding["text"] += HOSTILE[0]
    return values


def large(tensors: int, agents: int) -> dict[str, Any]:
    """As large as asked, with long counts."""
    values = shipped()
    names = [f"agent-{t}" for t in range(agents)]
    model = values["model"]
    pair = model["pairs"][0]
    model["agents"] = [_wide(model["agents"][0], name, agents) for name in names]
    model["pairs"] = [pair | {"agents": [a, b]} for place, a in enumerate(names) for b in names[place + 1 :]]
    one = values["tensors"][0] | {"pairs": model["pairs"], "elements": 58_720_256, "shape": [14336, 4096]}
    one["agents"] = [_wide(one["agents"][0], name, agents) | {"active": 12_345_678} for name in names]
    roles = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.experts.up_proj")
    parts = ("attention q", "attention k", "attention v", "attention o", "experts up")
    values["tensors"] = [
        one | {"name": f"model.layers.{t % 61}.{roles[t % 5]}.{t}.weight", "layer": t % 61, "role": parts[t % 5]}
        for t in range(tensors)
    ]
    cell = {"tensors": 1, "elements": 58_720_256, "active": [12_345_678] * agents, "unique": [1_234_567] * agents}
    cell |= {"sign_agreement": [0.5] * agents, "precision_loss": [None] * agents, "effective_lambda": [1.1] * agents}
    values["cells"] = [
        cell | {"layer": str(layer), "role": role} for layer in range(min(tensors, 61)) for role in parts
    ]
    values["models"] = {name: name for name in names}
    return values


def _wide(agent: dict[str, Any], name: str, agents: int) -> dict[str, Any]:
    return deepcopy(agent) | {"name": name, "shared_with": [1_234_567] * agents}


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {change(key): _walk(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_walk(one, change) for one in value]
    return change(value) if isinstance(value, str) else value
