"""Tensors that one of two models need not have: by their names, and by what config.json says."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from ramerge.core.planning.absences import BEYOND, BUFFERS, FURTHER, SHARING, is_buffer, known_absences
from ramerge.core.tensors.tensor import Stored, Tensor


def stored(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, "F32", shape, Stored(Path("model.safetensors"), 0, 4 * prod(shape)))


@pytest.mark.parametrize(
    ("name", "shape", "found"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (4,), True),
        ("transformer.h.0.attn.bias", (1, 1, 8, 8), True),
        ("transformer.h.0.attn.bias", (8,), False),  # a bias of the layer
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), False),
    ],
)
def test_buffers_are_known_by_name_and_shape(name: str, shape: tuple[int, ...], found: bool) -> None:
    assert is_buffer(stored(name, shape)) is found


def reasons(absent: list[str], layers: int = 4, **config: int) -> dict[str, list[str]]:
    """Which of the absent tensors of a model of four layers are known, by reason."""
    kinds = ("self_attn.k_proj", "self_attn.q_proj", "mlp.up_proj")
    names = [*(f"model.layers.{layer}.{kind}.weight" for layer in range(layers) for kind in kinds), *absent]
    tensors: dict[str, Tensor] = {name: stored(name, (2, 2)) for name in names}
    configs = [{"num_hidden_layers": 4, **config}] * 2
    found = known_absences(tensors, [tensors[name] for name in absent], configs)
    return {reason: sorted(known) for reason, known in found if known}


def test_keys_and_values_of_layers_that_share_them() -> None:
    own, shared = "model.layers.1.self_attn.k_proj.weight", "model.layers.3.self_attn.k_proj.weight"
    assert reasons([own, shared], num_kv_shared_layers=2) == {SHARING: [shared]}
    assert reasons([own, shared]) == {}


def test_heads_for_several_tokens_and_buffers() -> None:
    found = reasons(["mtp.layers.0.weight", "model.rotary_emb.inv_freq"])
    assert found[FURTHER] == ["mtp.layers.0.weight"] and found[BUFFERS] == ["model.rotary_emb.inv_freq"]


def test_layers_beyond_those_that_are_counted() -> None:
    assert reasons(["model.layers.4.mlp.up_proj.weight"])[BEYOND] == ["model.layers.4.mlp.up_proj.weight"]
