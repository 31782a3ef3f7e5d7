"""The card of a delta: README.md with the front matter that the Hugging Face hub reads; called by `run`."""

from __future__ import annotations

from ramerge.core.storage.resolve import FoundModel
from ramerge.deltas.record import DeltaRecord
from ramerge.sdk.text import dumped, markdown


def name_of(base: FoundModel) -> str:
    """The name of a delta's base in Markdown; of a model with adapters or deltas, all names, as `--base` has them."""
    return markdown("+".join(part.hub_id or part.folder.resolve().name for part in base.parts))


def card(record: DeltaRecord, base: FoundModel) -> str:
    """Card of a delta on a base: its size, its saving, and how to get the model."""
    name = name_of(base)
    place = f"{name}, each by its folder or hub id" if base.adapters else f"the folder or hub id of {name}"
    ids = [part.hub_id for part in base.parts if part.hub_id]
    # JSON is YAML, and a library for YAML takes longer to load than a small delta to make
    front = {**({"base_model": ids} if ids else {}), "tags": ["ramerge", "delta"]}
    return f"""---
{"".join(f"{key}: {dumped(value, indent=None).strip()}" + chr(10) for key, value in front.items())}---

# A delta on {name}

This folder holds what a model has changed of its base, and nothing else: {record.moved:,} of {record.elements:,}
parameters. It takes {record.delta_bytes / 1e6:,.1f} MB, where the model takes {record.agent_bytes / 1e6:,.1f} MB
({_share(record)}).

This gives the model, byte-identical, if BASE is {place}:

```sh
ramerge apply --base BASE THIS_FOLDER MODEL
```

`ramerge merge` takes the delta itself as an agent. The files are safetensors;
docs/reference/delta-format.md of ramerge describes them.
"""


def _share(record: DeltaRecord) -> str:
    """The delta's size relative to the model's."""
    return f"{record.delta_bytes / record.agent_bytes:.1%} of it" if record.agent_bytes else "which has no tensors"
