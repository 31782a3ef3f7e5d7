"""Defaults of `config.json` in the installed transformers; `python -m tests.planning.config_defaults` writes them down.

Keys whose values the shapes of weights show are left out, and so are harmless ones.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from ramerge.planning import configs

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
        made = configs.canonical(kind().to_dict())
    except Exception:  # some cannot be made without arguments
        made = {}
    found = dict.fromkeys(field.name for field in dataclasses.fields(kind)) | kind.default_config_fields()
    found |= {key: made[key] for key in _ADDED if key in made}
    table = configs.key_table()
    return {
        key: value
        for key, value in found.items()
        if type(value) in (int, float, bool, str, type(None))
        and not (table.harmless.fullmatch(key) or table.unimportant.fullmatch(key) or _SIZES.fullmatch(key))
        and key not in table.derived
        and key != "rope_parameters"
    }


def made() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The values that many model types share, and for each model type what differs from them."""
    rows = {name: defaults_of(name) for name in model_types()}
    counts: dict[str, Counter[str]] = {}
    for row in rows.values():
        for key, value in row.items():
            counts.setdefault(key, Counter())[json.dumps(value)] += 1
    frequent = {key: count.most_common(1)[0] for key, count in sorted(counts.items())}
    common = {key: json.loads(value) for key, (value, times) in frequent.items() if times >= _MANY and value != "null"}
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
    lines += [f'  "defaults": {json.dumps(common)}', '  "models": {\n' + ",\n".join(rows) + "\n  }"]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
