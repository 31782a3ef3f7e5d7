"""What long work tells of itself to whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Something was done: `done` of `total` of the stage named `stage`, in bytes unless `unit` says otherwise.

    The first merge with a method and a number of agents compiles its kernels, in the middle of another stage: that is
    the stage `compiling kernels`, whose `total` grows with each kernel that turns out to be needed.
    """

    stage: str
    done: int
    total: int
    unit: str = "bytes"


Listener = Callable[[Progress], None]


def silence(_event: object) -> None:
    """Listen to nothing."""
