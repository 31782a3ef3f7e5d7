"""`AsDelta` and `AsAdapter`, the kinds of output of `ramerge merge --as-delta` and `--as-adapter`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ramerge import Record
from ramerge.core.planning.resources import BASELINE_BYTES
from ramerge.core.storage.own_files import BLOCK
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.sdk.options import about, documented
from ramerge.sdk.outputs import OpenOutput, OutputKind, OutputSpec
from ramerge.sdk.passes import Passes
from ramerge.sdk.plans import MergePlan, OpenedInputs, PlanFinding, TensorPlan
from ramerge.sdk.plans import requirements as needs
from ramerge.sdk.recipes import Point

if TYPE_CHECKING:
    from ramerge.deltas.adapter_plan import AdapterPlan


@dataclass(frozen=True)
class AsDelta(OutputKind):
    """A merge as a delta on its base; its details are the opened base."""

    help: ClassVar[str] = "Write a delta: only the changes to the base; `ramerge apply` restores the model."
    least_block: ClassVar[int] = BLOCK  # blocks are compared as a whole
    flag: ClassVar[str] = "--as-delta"
    requires: ClassVar[tuple[needs.Requirement, ...]] = (
        needs.one_merge,
        needs.named_base,
        needs.exact_base,
        needs.tied_as_base,
        needs.whole_base,
    )

    def details(
        self, points: Sequence[Point], inputs: OpenedInputs, tensors: Sequence[TensorPlan]
    ) -> tuple[Checkpoint | None, Sequence[PlanFinding]]:
        return inputs.opened_base, ()

    def least_bytes(self, details: Checkpoint | None, tensors: Sequence[TensorPlan]) -> int:
        return 0  # how large a delta becomes is known when it is made

    def written(self, plan: MergePlan, size: str) -> str:
        return f"{size} at most, as a delta"

    def spec(self, plan: MergePlan) -> OutputSpec:
        from ramerge.deltas.delta_output import slots_of
        from ramerge.deltas.spool import spec_of

        return spec_of(plan, slots_of(plan, plan.output.details))

    def write(
        self, plan: MergePlan, passes: Passes, output: OpenOutput, warnings: Sequence[str], start: float
    ) -> tuple[Record, ...]:
        from ramerge.deltas.delta_output import write

        return write(plan, passes, output, warnings, start)


@documented
@dataclass(frozen=True, kw_only=True)
class AsAdapter(OutputKind):
    """A merge as a LoRA adapter of PEFT on its base.

    A sum of adapters is written exactly, with concatenated factors. Every other matrix gets two factors from a
    truncated singular value decomposition, and the record states the loss.

    Example:
        >>> record = ramerge.merge("recipe.yaml", "adapter", kind=ramerge.AsAdapter(rank=8, save_modules=True))
        >>> max(layer["rank"] for layer in record.adapter.values())
        8
    """

    help: ClassVar[str] = (
        "Write a LoRA adapter for PEFT: an exact sum of adapters, or a low-rank approximation of each update."
    )
    has_companions: ClassVar[bool] = False
    smaller: ClassVar[str] = ", or a smaller --rank"
    flag: ClassVar[str] = "--as-adapter"
    requires: ClassVar[tuple[needs.Requirement, ...]] = (
        needs.one_merge,
        needs.named_base,
        needs.one_folder,
        needs.whole_base,
        needs.tied_as_base,
    )

    rank: int | None = field(
        default=None,
        metadata=about(
            "--rank",
            "output",
            "With --as-adapter: the adapter's maximum rank; default: the rank that the exact sum or --energy needs.",
            "R",
            kind=int,
        ),
    )
    energy: float | None = field(
        default=None,
        metadata=about(
            "--energy",
            "output",
            "With --as-adapter: choose the rank that keeps this share of the squared norm of each matrix's update. "
            "Default: 0.99 where no exact sum exists, unless --rank is given.",
            "SHARE",
            kind=float,
        ),
    )
    save_modules: bool = field(
        default=False,
        metadata=about(
            "--save-modules",
            "output",
            "With --as-adapter: save changed norms, biases and embeddings in full (modules_to_save); default: refuse "
            "them.",
        ),
    )

    def check(self, merge: needs.RequestedMerge) -> Iterator[PlanFinding]:
        from ramerge.deltas.adapter_plan import check

        return check(self, merge.points[0].recipe)

    def points(self, points: Sequence[Point]) -> Sequence[Point]:
        from ramerge.deltas.adapter_plan import points_in_float32

        return points_in_float32(points)

    def details(
        self, points: Sequence[Point], inputs: OpenedInputs, tensors: Sequence[TensorPlan]
    ) -> tuple[AdapterPlan | None, Sequence[PlanFinding]]:
        from ramerge.deltas.adapter_plan import plan_adapter

        return plan_adapter(self, points, inputs, tensors)

    def least_bytes(self, details: AdapterPlan | None, tensors: Sequence[TensorPlan]) -> int:
        from ramerge.deltas.adapter_plan import spooled_bytes

        return spooled_bytes(details, tensors) if details is not None else 0

    def peak_bytes(self, details: AdapterPlan | None) -> int:
        return BASELINE_BYTES + details.peak_bytes if details is not None else 0

    def written(self, plan: MergePlan, size: str) -> str:
        from rich.filesize import decimal

        spool_bytes = self.least_bytes(plan.output.details, plan.tensors)
        spooled = (
            f"; {decimal(spool_bytes)} ({spool_bytes:,} bytes) are next to it until its factors are made"
            if spool_bytes
            else ""
        )
        return f"a LoRA adapter{spooled}"

    def spec(self, plan: MergePlan) -> OutputSpec:
        from ramerge.deltas.adapter_output import slots_of
        from ramerge.deltas.spool import spec_of

        return spec_of(plan, slots_of(plan))

    def write(
        self, plan: MergePlan, passes: Passes, output: OpenOutput, warnings: Sequence[str], start: float
    ) -> tuple[Record, ...]:
        from ramerge.deltas.adapter_output import write

        return write(plan, passes, output, warnings, start)


DELTA, ADAPTER = AsDelta(), AsAdapter()
