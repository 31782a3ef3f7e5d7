"""The part of a kind of output that planning needs."""

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
    """How planning treats a kind of output. This base class describes a whole model; other kinds override it.

    Attributes:
        least_block: elements of the smallest useful block; None for the default of a model.
        has_companions: whether files that belong to a model, such as its tokenizer, are written next to the weights.
        smaller: how to reduce `peak_bytes`, as an addition to the advice to give more memory.
        flag: the name of the kind in messages, such as `--as-delta`.
        requires: requirements on a merge; the first unmet one is reported as a problem.
    """

    least_block: ClassVar[int | None] = None
    has_companions: ClassVar[bool] = True
    smaller: ClassVar[str] = ""
    flag: ClassVar[str] = ""
    requires: ClassVar[tuple[Requirement, ...]] = ()

    def check(self, merge: RequestedMerge) -> Iterable[PlanFinding]:
        """Further problems, such as settings that do not go with this kind of output, and notes."""
        return ()

    def unmet_requirements(self, merge: RequestedMerge) -> Iterator[PlanFinding]:
        """The first unmet requirement, as a problem."""
        reasons = (reason for requirement in self.requires if (reason := requirement(merge)))
        yield from (problem(f"{self.flag}: {reason}") for reason in islice(reasons, 1))

    def points(self, points: Sequence[Point]) -> Sequence[Point]:
        """The points, adapted to this kind of output."""
        return points

    def details(
        self, points: Sequence[Point], inputs: OpenedInputs, tensors: Sequence[TensorPlan]
    ) -> tuple[Any, Sequence[PlanFinding]]:
        """Further decisions of this kind before weights are read, which must pickle, and findings about them."""
        return None, ()

    def least_bytes(self, details: Any, tensors: Sequence[TensorPlan]) -> int | None:
        """The least bytes of disk that the output takes while it is built; None for the size of a model."""
        return None

    def peak_bytes(self, details: Any) -> int:
        """The peak memory of the process in bytes after merging, while the files of this kind are made."""
        return 0

    def written(self, plan: MergePlan, size: str) -> str:
        """The text about the output in a plan; by default the size of the model."""
        return size
