"""One meaning of "layer": for rules, for `scope: layer`, and for analyses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.planning.model import scope_of
from ramerge.core.recipe.layers import LayerId, counts_of, layer_of, parse_layers
from tests.checkpoints import recipe, write_checkpoint
from tests.messages import Messages
from tests.reference import Stored

NAMES = {
    # GPT-2, saved by itself and as a part of a model with a head
    "h.3.attn.c_attn.weight": ("h", 3),
    "transformer.h.11.mlp.c_fc.bias": ("transformer.h", 11),
    "wte.weight": None,
    "transformer.ln_f.weight": None,
    # Llama, Qwen, and Llama as Meta saved it
    "model.layers.0.self_attn.q_proj.weight": ("model.layers", 0),
    "model.layers.31.input_layernorm.weight": ("model.layers", 31),
    "layers.3.attention.wq.weight": ("layers", 3),
    "model.embed_tokens.weight": None,
    "lm_head.weight": None,
    # Qwen2-VL: two stacks
    "visual.blocks.7.attn.qkv.weight": ("visual.blocks", 7),
    # BLOOM
    "h.5.self_attention.query_key_value.weight": ("h", 5),
    "word_embeddings_layernorm.weight": None,
    # T5: a block holds layers of its own, which are not counted
    "encoder.block.0.layer.1.DenseReluDense.wi.weight": ("encoder.block", 0),
    "decoder.block.2.layer.0.SelfAttention.q.weight": ("decoder.block", 2),
    # ViT of transformers and of timm
    "vit.encoder.layer.3.attention.attention.query.weight": ("vit.encoder.layer", 3),
    "blocks.3.mlp.fc1.weight": ("blocks", 3),
    "cls_token": None,
    # experts are numbered inside of a layer
    "model.layers.3.block_sparse_moe.experts.5.w1.weight": ("model.layers", 3),
    "model.layers.60.mlp.experts.255.down_proj.weight": ("model.layers", 60),
    # numbers that are no part of their own
    "model.norm2.weight": None,
    "conv1.weight": None,
    "0.weight": ("", 0),
}


@pytest.mark.parametrize(("name", "layer"), NAMES.items())
def test_names_of_architectures(name: str, layer: tuple[str, int] | None) -> None:
    assert layer_of(name) == layer
    rule = ramerge.Rule(layers=str(layer[1]) if layer else "0-9999", keep="base")
    assert rule.catches(name) == (layer is not None)
    assert scope_of(name, "layer") == (str(LayerId(*layer)) if layer else name)


@pytest.mark.parametrize("stack", ["h", "layers", "model.layers", "encoder.block"])
def test_rho_counts_whole_layers(tmp_path: Path, stack: str) -> None:
    zeros = {f"{stack}.{layer}.{part}.weight": np.zeros(4) for layer in (0, 1) for part in ("attn", "mlp")}
    moved = {"a": {0: (1, 1, 0, 0)}, "b": {0: (1, 0, 0, 0)}}

    def write(folder: str, row: tuple[int, ...] | None) -> None:
        tensors = {
            name: Stored("F32", (values + np.array(row)).astype(np.float32) if row and ".attn." in name else
                         values.astype(np.float32))
            for name, values in zeros.items()
        }  # fmt: skip
        write_checkpoint(tmp_path / folder, tensors)

    write("base", None)
    for agent, rows in moved.items():
        write(agent, rows[0])
    source = {**recipe(tmp_path, ["a", "b"]), "parameters": {"scope": "layer"}}
    record = ramerge.merge(source, tmp_path / "out")
    assert list(record.parts) == [f"{stack}.0", f"{stack}.1"]
    # of each layer: `a` moved two elements of the one tensor, and shares one
    assert [part["a"]["rho"] for part in record.parts.values()] == [1.0, 1.0]


def test_layers_of_a_rule(messages: Messages) -> None:
    assert parse_layers("0-2, 7") == {0, 1, 2, 7}
    with messages.raises(ValueError):
        parse_layers("3-1")


def test_numbers_of_layers_that_a_config_states() -> None:
    assert counts_of({"num_hidden_layers": 24}) == {24}
    assert counts_of({"n_layer": 12, "text_config": {"num_hidden_layers": 4}}) == {12, 4}
    assert counts_of({"num_hidden_layers": "many"}) == set()
