"""Tensors that one of two checkpoints of a model may lack.

Libraries store different sets of tensors: transformers leaves out heads for multi-token prediction, buffers that it
computes, and keys and values that layers share; a text model lacks the towers of the larger model that it was
extracted from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ramerge.core.recipe.layers import counts_of, layer_of
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS, embedding_of
from ramerge.core.tensors.prefixes import stack_of
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.text_config import has_more_than_text, text_configs

# Names of buffers that are computed from config.json when a model is loaded.
_BUFFERS = (
    *("inv_freq", "original_inv_freq", "cos_cached", "sin_cached", "freqs_cis"),
    *("position_ids", "text_position_ids", "image_position_ids", "token_type_ids", "tokens_per_expert"),
    *("masked_bias", "mask", "causal_mask", "attn_mask", "attention_mask"),
)
# A four-dimensional bias in one of these modules is a mask, as in GPT-2 and GPT-NeoX.
_ATTENTION = ("attn", "attention", "self_attn", "self_attention")
_FURTHER_TOKENS = re.compile(r"(^|\.)(?:mtp|nextn)\w*\.")
_KEYS_AND_VALUES = re.compile(r".*\.(?:self_attn|attn|attention)\.(?:k|v|kv)_(?:proj|norm)\.\w+")

BUFFERS = "buffers that follow from config.json"
SHARING = "keys and values of layers that share those of earlier layers"
FURTHER = "heads for multi-token prediction (MTP), which transformers does not load"
BEYOND = "layers beyond those that config.json counts, which transformers does not load"
PARTS = "parts next to the text model, for example for images and sound"


def is_buffer(tensor: Tensor) -> bool:
    """Whether a tensor is a buffer that can be computed from the configuration, so it need not be stored."""
    module, _, last = tensor.name.rpartition(".")
    return last in _BUFFERS or (last == "bias" and len(tensor.shape) == 4 and module.endswith(_ATTENTION))


def known_absences(
    tensors: Mapping[str, Tensor], absent: Sequence[Tensor], configs: Sequence[Mapping[str, object]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield reasons why a model may lack tensors of another, each with the names of such tensors.

    Args:
        tensors: the tensors of the model that has them.
        absent: the ones that the other model lacks.
        configs: `config.json` of both models, first of the one that has the tensors.
    """
    names = {tensor.name for tensor in absent}
    yield BUFFERS, [tensor.name for tensor in absent if is_buffer(tensor)]
    layers = _text_layers(tensors)
    numbers = {name: layer for name, layer in layers.items() if name in names}
    for config in configs:
        total, sharing_layers = (_config_number(config, key) for key in ("num_hidden_layers", "num_kv_shared_layers"))
        if total and sharing_layers:
            yield (
                SHARING,
                [
                    name
                    for name, layer in numbers.items()
                    if total - sharing_layers <= layer < total and _KEYS_AND_VALUES.fullmatch(name)
                ],
            )
    layer_count = _config_number(configs[0], "num_hidden_layers") or max(counts_of(configs[0]), default=0)
    further = [name for name in tensors if _FURTHER_TOKENS.search(name)]
    beyond = [name for name, layer in layers.items() if layer_count and layer >= layer_count]
    for why, absences in ((FURTHER, further), (BEYOND, beyond)):
        if names.issuperset(absences):  # if a model has only some of them, the others are missing by mistake
            yield why, absences
    if has_more_than_text(configs[0]):
        yield PARTS, _tensors_of_absent_parts(tensors, names)


def _config_number(config: Mapping[str, object], key: str) -> int | None:
    candidates = (part.get(key) for part in reversed(text_configs(config)))
    return next((value for value in candidates if type(value) is int), None)


def _text_layers(names: Collection[str]) -> dict[str, int]:
    """The layer number of each tensor in a text model's layers, recognized by the embeddings next to them."""
    stacks = {name.removesuffix(end) for name in names for end in EMBEDDINGS if name.endswith(end)}
    layers = {name: layer for name in names if (layer := layer_of(name)) is not None and "layers" in layer.stack}
    texts = {
        name: layer.number for name, layer in layers.items() if f"{layer.stack}.".removesuffix("layers.") in stacks
    }
    return texts or {name: layer.number for name, layer in layers.items()}


def _tensors_of_absent_parts(tensors: Mapping[str, Tensor], absent: Collection[str]) -> list[str]:
    """Absent tensors that belong to towers, projectors and other parts that are missing entirely.

    A part is the module around a stack of layers. It must be either complete or missing.
    """
    stacks = {name: stack_of(name) for name in tensors}
    present = {stack for name, stack in stacks.items() if stack and name not in absent}
    inside = {stack: stack.rstrip(".").rpartition(".")[0] for stack in set(stacks.values()) if stack}
    parts = {part: f"{part}." if part else "" for part in inside.values()}
    present_parts = {inside[stack] for stack in present}
    if not present_parts:
        return []
    # a part with towers inside contains more than its own layers
    around = {
        part
        for part in present_parts
        if any(other not in present_parts and other.startswith(parts[part]) for other in parts)
    }
    modules = {
        parts[part] + name[len(parts[part]) :].partition(".")[0]
        for name in tensors
        if name not in absent
        for part in around
        if name.startswith(parts[part])
    }
    embeddings = [tensor for name, tensor in tensors.items() if name not in absent]
    others = []
    for name, tensor in tensors.items():
        starts = [name.removesuffix(end) for end in HEADS if name.endswith(end)]
        if name not in absent or any(f"{part}.".startswith(start) for start in starts for part in present_parts):
            continue  # output embeddings of a present part lie next to it
        if embedding_of(name, tensor.shape, embeddings) and not any(
            inner.startswith(start) for start in starts for inner in parts.values()
        ):
            continue  # or under a wrapper's prefix, where no other tensors are
        part = max((part for part, start in parts.items() if name.startswith(start)), key=len, default=None)
        if part not in present_parts:
            others.append(name)
        elif part in around:
            rest = name[len(parts[part]) :].split(".")
            if len(rest) != 2 and stacks[name] not in present and parts[part] + rest[0] not in modules:
                others.append(name)
    return others
