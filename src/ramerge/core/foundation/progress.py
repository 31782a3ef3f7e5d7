"""Progress events of long work, and their listeners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Progress of a stage of work: `done` of `total`, in bytes unless `unit` names another unit.

    Bytes count when their block is done. For a method that solves for whole matrices, a block is a whole matrix, so
    `done` does not grow while a matrix is solved for.

    The first merge with a method and a number of agents compiles its kernels during another stage. This is reported
    under the name `compiling kernels`, whose `total` grows with every kernel, and whose `note` names the method and the
    number of agents.

    Attributes:
        stage: the name of the work.
        done: the finished part.
        total: all of the work.
        unit: `bytes`, or the name of the counted things.
        note: further details.

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
