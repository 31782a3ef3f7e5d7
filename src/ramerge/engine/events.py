"""What the engine tells of its work to whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Something was done: `done` of `total` of the stage named `stage`, in bytes unless `unit` says otherwise."""

    stage: str
    done: int
    total: int
    unit: str = "bytes"


Listener = Callable[[Progress], None]


def silence(_event: Progress) -> None:
    """Listen to nothing."""
