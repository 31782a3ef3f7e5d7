"""`DeltaRecord`, which `delta` and `apply` return, and the README.md of a delta."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ramerge.core.storage.resolve import FoundModel
from ramerge.sdk.text import Displayed, dumped, markdown


@dataclass(frozen=True, repr=False)
class DeltaRecord(Displayed):
    """Record of a delta that was written or applied.

    Attributes:
        base: the model that the delta changes, as given.
        agent: the resulting model: as given, or for `apply` the written folder.
        tensors: the number of the agent's tensors.
        changed: the number of tensors with elements that differ from the base's.
        whole: the number of tensors that the base lacks, or has in another dtype or shape; they are stored unchanged.
        dropped: the number of tensors that only the base has.
        moved: the number of elements that differ.
        elements: the number of all elements of the agent.
        agent_bytes: bytes of the agent's tensors.
        delta_bytes: bytes of the delta's changes and whole tensors, without headers, index and other files; the sum for
            several deltas.
        digest: the agent's digest: xxh3-128, in hexadecimal, as docs/reference/delta-format.md defines it.
        seconds: wall time.
        warnings: likely mistakes.

    Example:
        >>> record = ramerge.delta("base", "coder", "coder-delta")
        >>> 0 < record.moved < record.elements
        True
    """

    base: str
    agent: str
    tensors: int
    changed: int
    whole: int
    dropped: int
    moved: int
    elements: int
    agent_bytes: int
    delta_bytes: int
    digest: str
    seconds: float
    warnings: tuple[str, ...] = ()

    def _summary(self) -> Mapping[str, object]:
        return {
            "base": self.base,
            "agent": self.agent,
            "moved": self.moved,
            "elements": self.elements,
            "delta_bytes": self.delta_bytes,
            "warnings": len(self.warnings),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the record of a delta as plain values."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the record of a delta as `--json` prints it."""
        return dumped(self.to_dict(), indent=2) + "\n"


def name_of(base: FoundModel) -> str:
    """Return the name of a delta's base in Markdown; with adapters or deltas, all names joined as for `--base`."""
    return markdown("+".join(part.hub_id or part.folder.resolve().name for part in base.parts))


def card(record: DeltaRecord, base: FoundModel) -> str:
    """Return the card of a delta on a base: its size, its saving, and how to restore the model."""
    name = name_of(base)
    share = f"{record.delta_bytes / record.agent_bytes:.1%} of it" if record.agent_bytes else "which has no tensors"
    place = f"{name}, each by its folder or hub id" if base.adapters else f"the folder or hub id of {name}"
    ids = [part.hub_id for part in base.parts if part.hub_id]
    # JSON is YAML, and a library for YAML takes longer to load than a small delta to make
    front = {**({"base_model": ids} if ids else {}), "tags": ["ramerge", "delta"]}
    return f"""---
{"".join(f"{key}: {dumped(value, indent=None).strip()}" + chr(10) for key, value in front.items())}---

# A delta on {name}

This folder holds what a model has changed of its base, and nothing else: {record.moved:,} of {record.elements:,}
parameters. It takes {record.delta_bytes / 1e6:,.1f} MB, where the model takes {record.agent_bytes / 1e6:,.1f} MB
({share}).

This gives the model, byte-identical, if BASE is {place}:

```sh
ramerge apply --base BASE THIS_FOLDER MODEL
```

`ramerge merge` takes the delta itself as an agent. The files are safetensors;
docs/reference/delta-format.md of ramerge describes them.
"""
