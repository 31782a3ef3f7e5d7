"""The pass of `analyze`: merges without writing, and counts statistics of inputs and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from ramerge import PlanError
from ramerge.core.engine.executors.executor import Executor
from ramerge.core.engine.passes import PlanPass, runs_in_file_order
from ramerge.core.engine.reads import tasks_of
from ramerge.core.engine.result_codec import BlockResult, Results
from ramerge.core.engine.tally import NonFinite
from ramerge.core.engine.worker import Task, Worker
from ramerge.core.planning.model import Batch
from ramerge.sdk.methods import Counts, Statistic
from ramerge.sdk.passes import Passes
from ramerge.sdk.plans import MergePlan
from ramerge.sdk.progress import Listener, silence


@dataclass(frozen=True)
class ObservePass(PlanPass):
    """The pass of `observe`: merges the plan's first point without writing, and counts statistics.

    Attributes:
        results: the results of earlier passes.
    """

    counted: Mapping[int, Sequence[Statistic]]
    results: Results
    tasks: Sequence[tuple[Task, ...]]

    def process(self, worker: Worker, batch: Batch) -> BlockResult:
        """Read the block from all inputs, merge it, and count."""
        tensor = batch[0].tensor
        return worker.observe(batch[0], self.counted[tensor], self.results, self.tasks[tensor][0])


@dataclass(frozen=True)
class Observation:
    """The results of `observe`.

    Attributes:
        rounding: what rounding does to updates, int64, laid out as `kernels.piece.rounding_counts` returns it.
        non_finite: counts of NaN and Inf that entered the computation, as in `engine.tally.Refusals.allowed`.
    """

    results: Results
    rounding: Counts
    non_finite: Mapping[str, NonFinite]


def observe(
    plan: MergePlan,
    statistics: Sequence[Statistic],
    executor: Executor,
    listen: Listener = silence,
    watch: Callable[[BlockResult], object] = silence,
) -> Observation:
    """Merge without writing, and count statistics of inputs and results for all tensors that the method merges.

    The plan's first point is merged, after the counting passes of its method.

    Args:
        statistics: the statistics to count.

    Raises:
        PlanError: the plan has problems.
        WeightsError: values are not finite; all such tensors are listed.
        CheckpointError: an input cannot be read, or has changed since planning; all such files are listed.
    """
    if plan.findings.problems:
        raise PlanError(plan.findings.problems)
    with closing(Passes(plan, executor, listen)) as passes:
        passes.count()
        statistics_by_tensor = {index: statistics for index, tensor in enumerate(passes.plan.tensors) if tensor.merged}
        tasks, _ = tasks_of(passes.plan, passes.results)
        batches = runs_in_file_order(passes.plan, tuple(statistics_by_tensor), 0)
        work = ObservePass(
            passes.plan,
            passes.files,
            "reading",
            batches,
            statistics_by_tensor,
            dict(passes.results),
            tasks,
            operators=passes.operators,
        )
        passes.run(work, work.results, watch=watch)
        return Observation(passes.results, passes.rounding[0], passes.non_finite)
