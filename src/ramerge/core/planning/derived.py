"""Derive values that a `config.json` leaves out from its other values, as transformers does.

The rules for lists of layers are in `config_keys.json`, by model type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle, islice
from typing import Any

_Lookup = Callable[[str], object]
"""A function that returns the value of a key of the same configuration, or the model type's default, or None."""


def number(key: str, value_of: _Lookup) -> int | None:
    """Compute a number of `config.json` from others; None if there is no formula for it, or if others are missing."""
    if key in _EXPERTS:
        return next((value for name in _EXPERTS if type(value := value_of(name)) is int), None)
    names, compute = _FORMULAS.get(key, ((), None))
    values = [value_of(name) for name in names]
    return compute(*values) if compute and all(type(value) is int and value > 0 for value in values) else None


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names that transformers uses for the same number."""

_FORMULAS: Mapping[str, tuple[tuple[str, ...], Callable[..., int]]] = {
    "head_dim": (("hidden_size", "num_attention_heads"), lambda size, heads: size // heads),
    "num_key_value_heads": (("num_attention_heads",), lambda heads: heads),
    "qk_head_dim": (("qk_nope_head_dim", "qk_rope_head_dim"), lambda plain, rotary: plain + rotary),
    "lru_width": (("hidden_size",), lambda size: size),
    "time_step_rank": (("hidden_size",), lambda size: -(-size // 16)),
}


def layers(rule: Mapping[str, Any], value_of: _Lookup, is_stated: Callable[[str], bool]) -> list[object] | None:
    """Derive a list of `config.json` that has a value for each layer, or layer numbers; None if it cannot be derived.

    Args:
        rule: one of the following rules, with an optional entry `with`: the rule applies only if these other keys have
            these values, or are not stated. `value`: this list. `cycle`: these values, repeated. `every`: `hit` in each
            layer i for which i + `plus` is a multiple of the number, and `miss` in all others. `first`: `hit` in the
            first layers, `miss` in all others. `window`: `hit` in layers from `max_window_layers` on, if
            `use_sliding_window`. For `every` and `first`, the entry `key` names a key of the configuration that
            overrides the number.
        value_of: returns the value of a key.
        is_stated: whether the configuration states a key.
    """
    if any(is_stated(key) and value_of(key) != value for key, value in rule.get("with", {}).items()):
        return None
    if "value" in rule:
        return list(rule["value"])
    count = value_of("num_hidden_layers")
    if type(count) is not int or not 0 < count <= _MOST_LAYERS:
        return None
    if "cycle" in rule:
        return list(islice(cycle(rule["cycle"]), count))
    if "window" in rule:
        begin = (
            value_of("max_window_layers") if value_of("use_sliding_window") and value_of("sliding_window") else count
        )
        return _layer_marks(rule, count, lambda layer: layer >= begin) if type(begin) is int else None
    size = rule.get("every", rule.get("first"))
    if "key" in rule and (number_in_key := value_of(rule["key"])) is not None:
        size = number_in_key
    if type(size) is not int or size < ("every" in rule):
        return None
    if "first" in rule:
        return _layer_marks(rule, count, lambda layer: layer < size)
    return _layer_marks(rule, count, lambda layer: (layer + rule["plus"]) % size == 0)


_MOST_LAYERS = 10_000


def _layer_marks(rule: Mapping[str, Any], count: int, hits: Callable[[int], bool]) -> list[object]:
    return [rule["hit" if hits(layer) else "miss"] for layer in range(count)]
