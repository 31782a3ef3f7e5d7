"""The definition of a layer, for rules, `scope: layer`, analyses, and recipes in mergekit's form.

A layer is identified by the first number in a tensor's name, together with all parts before the number:

    h.3.attn.c_attn.weight                        h, 3                (GPT-2, BLOOM)
    model.layers.3.mlp.experts.5.w1.weight        model.layers, 3     (Llama, Qwen, Mixtral)
    encoder.block.0.layer.1.wi.weight             encoder.block, 0    (T5)
    vit.encoder.layer.3.attention.output.weight   vit.encoder.layer, 3

Tensors without a number in their name, such as embeddings, belong to no layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

_NUMBER = re.compile(r"(?:^|\.)([0-9]{1,9})\.")
COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""Keys of `config.json` that state the number of layers."""


class LayerId(NamedTuple):
    """The identifier of a layer in a model.

    Attributes:
        stack: the parts of tensor names before the number, such as `model.layers`; models may have several stacks.
        number: the number of the layer, counted from 0.
    """

    stack: str
    number: int

    def __str__(self) -> str:
        return f"{self.stack}.{self.number}" if self.stack else str(self.number)


@lru_cache(maxsize=1 << 16)  # each rule needs the layers of the same names
def layer_of(name: str) -> LayerId | None:
    """The layer of the tensor with this name; None if it belongs to no layer."""
    match = _NUMBER.search(name)
    return LayerId(name[: match.start()], int(match[1])) if match else None


def parse_layers(text: str) -> set[int]:
    """The layer numbers in a text such as `0-7` or `3, 10-12`.

    Raises:
        ValueError: the text is invalid.
    """
    layers: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part)
        if not span or int(span[2] or span[1]) < int(span[1]):
            raise ValueError(f"layers must be numbers and ranges, such as 0-7 or 3, 10-12, not {text!r}")
        layers.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    return layers


def counts_of(config: Mapping[str, object]) -> set[int]:
    """All layer counts that a `config.json` states, for the whole model or for a part such as the text model."""
    parts = [config, *(part for part in config.values() if isinstance(part, Mapping))]
    return {part[key] for part in parts for key in COUNTS if isinstance(part.get(key), int)}
