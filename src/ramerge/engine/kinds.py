"""What a merge can be written as. The core writes checkpoints; wings add kinds, which are found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramerge.engine.open_output import OpenOutput, OutputSpec
from ramerge.planning.model import MergePlan
from ramerge.registry import Registry

if TYPE_CHECKING:  # a kind is written with the passes, which look it up
    from ramerge.engine.execute import Passes
    from ramerge.engine.record import Record


class OutputKind(ABC):
    """A kind of output."""

    @abstractmethod
    def spec(self, plan: MergePlan) -> OutputSpec:
        """What is built for a plan with an output folder."""

    @abstractmethod
    def write(
        self, plan: MergePlan, passes: Passes, output: OpenOutput, seen: Sequence[str], began: float
    ) -> tuple[Record, ...]:
        """Run the passes, write everything into the folder that is open, and return a record for each point.

        Args:
            plan: the plan.
            passes: count and merge.
            output: what `spec` describes, opened.
            seen: warnings from before the first pass.
            began: when the run began, on the monotonic clock.
        """


OUTPUT_KINDS: Registry[OutputKind] = Registry("ramerge.outputs", OutputKind, versioned=False)  # type: ignore[type-abstract]
"""The kinds by name: `checkpoint`, and `delta` of the wing of that name."""


def kind_of(plan: MergePlan) -> OutputKind:
    """The kind that a plan is written as."""
    return OUTPUT_KINDS["checkpoint" if plan.below is None else "delta"]
