"""Defaults of `config.json` in the installed transformers; `python -m tests.planning.config_defaults` writes them down.

Keys whose values the shapes of weights show are left out, and so are harmless ones. Of keys that are derived from
others, there are the numbers that a model type fixes, and rules for lists, found by changing each other key.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

from ramerge.core.planning import configs, derived

TABLE = Path(configs.__file__).with_name("config_keys.json")
_SIZES = re.compile(
    r".*_(size|dim|layers?|heads|rank|experts|channels)|n_(layer|head|embd|positions|inner|ctx)s?|d_\w+"
)
_MANY = 30
# What transformers does not state as a field of the class.
_ADDED = ("rope_theta", "partial_rotary_factor", "rope_local_base_freq", "num_nextn_predict_layers")


def model_types() -> list[str]:
    """Model types of transformers that write text."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *(name for name in CONFIG_MAPPING if name.endswith("_text"))})


def defaults_of(model_type: str) -> dict[str, Any]:
    """The defaults of a model type that are neither lists nor mappings."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    try:
        made = configs.normalize_config(kind().to_dict())
    except Exception:  # some cannot be made without arguments
        made = {}
    found = dict.fromkeys(field.name for field in dataclasses.fields(kind)) | kind.default_config_fields()
    found |= {key: made[key] for key in _ADDED if key in made}
    table = configs.key_table()
    fixed = {key for key in table.derived_keys & found.keys() if type(found[key]) is int and is_fixed(model_type, key)}
    left_out = table.derived_keys | {"rope_parameters"}
    plain = {
        key
        for key, value in found.items()
        if type(value) in (int, float, bool, str, type(None))
        and not (table.harmless.fullmatch(key) or table.unimportant.fullmatch(key) or _SIZES.fullmatch(key))
    }
    return {key: value for key, value in found.items() if key in plain - left_out | fixed}


def config_of(model_type: str, **values: Any) -> dict[str, Any] | None:
    """The configuration that transformers makes of these values; None if it refuses them."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        return dict(json.loads(CONFIG_MAPPING[model_type](**values).to_json_string(use_diff=False)))
    except Exception:  # whatever its checks raise
        return None


# Patterns that some model types take under these names, and do not write down.
_PATTERNS = ("sliding_window_pattern", "full_attention_interval", "no_rope_layer_interval")
_WINDOW = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}


def _changes(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each key of a configuration, other values of the same kind; for the number of layers, several."""
    for layers in (1, 2, 5, 13):
        yield "num_hidden_layers", {"num_hidden_layers": config.get("num_hidden_layers", 0) + layers}
    for key, value in config.items():
        if type(value) is bool:
            yield key, {key: not value}
        elif type(value) in (int, float) and key not in {"num_hidden_layers", "vocab_size"}:
            yield from ((key, {key: other}) for other in (2 * value, value + 1, value // 2))
    if "sliding_window" in config:
        yield "sliding_window", {"sliding_window": None if config["sliding_window"] else 16}
    if "use_sliding_window" in config:
        yield "use_sliding_window", {key: value for key, value in _WINDOW.items() if key in config}
    yield from ((name, {name: size}) for name in _PATTERNS if name not in config for size in (3, 5))


@cache
def variants(model_type: str) -> list[tuple[str, dict[str, Any]]]:
    """Configurations of a model type in which one key is another, each with that key."""
    config = config_of(model_type) or {}
    made = ((key, values, config_of(model_type, **values)) for key, values in _changes(config))
    return [(key, other | values) for key, values, other in made if other is not None]


def is_fixed(model_type: str, key: str) -> bool:
    """Whether a number that is left out does not depend on other keys."""
    config = config_of(model_type) or {}
    return all(other.get(key) == config.get(key) for changed, other in variants(model_type) if changed != key)


def rules() -> dict[str, dict[str, dict[str, Any]]]:
    """For each model type, how the lists are made that are left out."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in model_types():
        config = config_of(kind) or {}
        for key in sorted(configs.key_table().derived_keys):
            if isinstance(config.get(key), list) and (rule := _rule(kind, key, config)) is not None:
                found.setdefault(kind, {})[key] = rule
    return found


def _rule(kind: str, key: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """The rule that holds for most other values, and the values of other keys for which it does not."""
    best: dict[str, Any] | None = None
    for rule in _candidates(key, config):
        if not _gives(rule, key, config):
            continue
        broken = {changed for changed, other in variants(kind) if not _gives(rule, key, other)}
        limits = {name: config.get(name) for name in sorted(broken)}
        if "num_hidden_layers" not in limits and (best is None or len(limits) < len(best.get("with", {}))):
            best = {**rule, "with": limits} if limits else rule
    return best


def _gives(rule: dict[str, Any], key: str, config: dict[str, Any]) -> bool:
    return derived.layers(rule, config.get, config.__contains__) == config.get(key)


def _candidates(key: str, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    value = config[key]
    yield {"value": value}
    yield from ({"cycle": value[:size]} for size in range(1, _LONGEST))
    yield {"window": True, "hit": "sliding_attention", "miss": "full_attention"}
    kinds = [kind for place, kind in enumerate(value) if kind not in value[:place]]
    named = [(name, size) for name, size in config.items() if type(size) is int and 0 <= size <= len(value)]
    hidden = [(name, size) for name in _PATTERNS if name not in config for size in range(1, _LONGEST)]
    for name, size in [*(("", size) for size in range(1, _LONGEST)), *named, *hidden]:
        for hit, miss in permutations(kinds, 2) if name != "num_hidden_layers" else ():
            given = {**({"key": name} if name else {}), "hit": hit, "miss": miss}
            yield {"first": size, **given}
            yield from ({"every": size, "plus": plus, **given} for plus in range(min(size, _LONGEST)))


_LONGEST = 10


def made() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The values that many model types share, and for each model type what differs from them."""
    rows = {name: defaults_of(name) for name in model_types()}
    counts: dict[str, Counter[str]] = {}
    for row in rows.values():
        for key, value in row.items():
            counts.setdefault(key, Counter())[json.dumps(value)] += 1
    frequent = {key: count.most_common(1)[0] for key, count in sorted(counts.items())}
    common = {
        key: json.loads(value)
        for key, (value, times) in frequent.items()
        # other model types derive it
        if times >= _MANY and value != "null" and key not in configs.key_table().derived_keys
    }
    return common, {
        name: {key: value for key, value in row.items() if json.dumps(value) != json.dumps(common.get(key))}
        for name, row in rows.items()
    }


def write() -> None:
    """Write the table, with a model type on each line."""
    values = json.loads(TABLE.read_text(encoding="utf-8"))
    common, models = made()
    lines = [f'  "{key}": {json.dumps(values[key])}' for key in ("unimportant", "harmless", "derived")]
    rows = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in models.items() if row]
    lists = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rules().items()]
    lines += ['  "lists": {\n' + ",\n".join(lists) + "\n  }"]
    lines += [f'  "defaults": {json.dumps(common)}', '  "models": {\n' + ",\n".join(rows) + "\n  }"]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
