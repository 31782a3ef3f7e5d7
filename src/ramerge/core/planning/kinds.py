"""Kinds of output, as far as a plan must know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

from ramerge.core.planning.findings import PlanFinding, problem
from ramerge.core.planning.inputs import OpenedInputs
from ramerge.core.planning.model import MergePlan, TensorPlan
from ramerge.core.planning.requirements import RequestedMerge, Requirement
from ramerge.core.recipe.points import Point


class PlannedKind:
    """How planning treats a kind of output. As it stands here, it is a whole model.

    Attributes:
        least_block: elements of the smallest block that is useful; None for that of a model.
        has_companions: whether the files that belong to a model, such as its tokenizer, lie next to the weights.
        smaller: a way to make `peak_bytes` smaller, as an addition to the advice to give more memory.
        flag: how messages call the kind, such as `--as-delta`.
        requires: requirements for this kind of output; the first that a merge does not meet is a problem.
    """

    least_block: ClassVar[int | None] = None
    has_companions: ClassVar[bool] = True
    smaller: ClassVar[str] = ""
    flag: ClassVar[str] = ""
    requires: ClassVar[tuple[Requirement, ...]] = ()

    def check(self, merge: RequestedMerge) -> Iterable[PlanFinding]:
        """A problem for everything else that cannot be written as this kind, such as settings, and notes."""
        return ()

    def unmet(self, merge: RequestedMerge) -> Iterator[PlanFinding]:
        """The first of the requirements that a merge does not meet, as a problem."""
        reasons = (reason for requirement in self.requires if (reason := requirement(merge)))
        yield from (problem(f"{self.flag}: {reason}") for reason in islice(reasons, 1))

    def points(self, points: Sequence[Point]) -> Sequence[Point]:
        """The merges as they are carried out for this kind."""
        return points

    def details(
        self, points: Sequence[Point], inputs: OpenedInputs, tensors: Sequence[TensorPlan]
    ) -> tuple[Any, Sequence[PlanFinding]]:
        """Everything else that this kind decides before weights are read, which must pickle, and its findings."""
        return None, ()

    def least_bytes(self, details: Any, tensors: Sequence[TensorPlan]) -> int | None:
        """Bytes that the output takes at least while it is built; None for those of a model."""
        return None

    def peak_bytes(self, details: Any) -> int:
        """The most memory of the process after merging, while the files of this kind are made."""
        return 0

    def written(self, plan: MergePlan, size: str) -> str:
        """The output in a plan's text: by default the size of the model."""
        return size
