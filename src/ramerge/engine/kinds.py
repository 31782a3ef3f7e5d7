"""What a merge can be written as. The core writes checkpoints; wings add kinds, which are found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramerge.engine.open_output import OpenOutput, OutputSpec
from ramerge.planning.model import MergePlan
from ramerge.registry import Registry

if TYPE_CHECKING:  # a kind is written with the passes, which look it up
    from ramerge.engine.execute import Passes
    from ramerge.engine.record import Record


@dataclass(frozen=True)
class OutputKind:
    """A kind of output.

    Attributes:
        spec: what is built for a plan with an output folder.
        write: takes the plan, its passes, what `spec` describes (opened), warnings from before the first pass, and when
            the run began, on the monotonic clock. Runs the passes, writes everything into the folder that is open, and
            returns a record for each point.
    """

    spec: Callable[[MergePlan], OutputSpec]
    write: Callable[[MergePlan, Passes, OpenOutput, Sequence[str], float], tuple[Record, ...]]


OUTPUT_KINDS: Registry[OutputKind] = Registry("ramerge.outputs", OutputKind, versioned=False)
"""The kinds by name: `checkpoint`, and `delta` of the wing of that name."""


def kind_of(plan: MergePlan) -> OutputKind:
    """The kind that a plan is written as."""
    return OUTPUT_KINDS["checkpoint" if plan.below is None else "delta"]
