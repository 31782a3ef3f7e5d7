"""`DeltaRecord`, which `delta` and `apply` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ramerge.sdk.text import Displayed, dumped


@dataclass(frozen=True, repr=False)
class DeltaRecord(Displayed):
    """Record of a delta that was written or applied.

    Attributes:
        base: the model that the delta changes, as it was named.
        agent: the model that it gives: as it was named, or of `apply` the folder that was written.
        tensors: the agent's tensors.
        changed: those of which elements differ from the base's.
        whole: those that the base lacks, or has in another dtype or shape; they are stored as they are.
        dropped: tensors that only the base has.
        moved: elements that differ.
        elements: all elements of the agent.
        agent_bytes: bytes of the agent's tensors.
        delta_bytes: bytes of the delta's changes and whole tensors, without headers, index and other files; of several
            deltas, together.
        digest: of the agent: xxh3-128, in hexadecimal, as docs/reference/delta-format.md defines it.
        seconds: how long it took.
        warnings: what is probably not what the user wants.

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
        """The record of a delta as plain values."""
        return asdict(self)

    def to_json(self) -> str:
        """The record of a delta as `--json` prints it."""
        return dumped(self.to_dict(), indent=2) + "\n"
