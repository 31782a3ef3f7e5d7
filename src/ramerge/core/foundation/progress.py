"""Events of long work, and who listens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Progress of a stage: `done` of `total`, in bytes unless `unit` names another unit.

    Bytes count when their block is done. Of a method that solves for whole matrices, a block is a matrix, so `done` may
    stand still for as long as one takes.

    The first merge with a method and a number of agents compiles its kernels during another stage. This is reported
    as `compiling kernels`. Its `total` grows with every kernel that is needed, and its `note` names method and number.

    Attributes:
        stage: name of the work.
        done: how much of it.
        total: of how much.
        unit: `bytes`, or the name of the counted things.
        note: further figures.

    Example:
        >>> stages = set()
        >>> def listen(event: ramerge.Progress) -> None:
        ...     stages.add(event.stage)
        >>> record = ramerge.merge("recipe.yaml", "merged", on_progress=listen)
        >>> {"counting", "merging"} <= stages
        True
    """

    stage: str
    done: int
    total: int
    unit: str = "bytes"
    note: str = ""


Listener = Callable[[Progress], None]


def silence(_event: object) -> None:
    """A listener that ignores every event."""
