"""The passes over a plan's inputs that count, observe and merge, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.engine.executors.executor import Executor, Processed
from ramerge.core.engine.journal import Journal, PassJournal
from ramerge.core.engine.operators import Operators
from ramerge.core.engine.passes import CountPass, MergePass, PlanPass, interleave_operators, runs_in_file_order
from ramerge.core.engine.result_codec import BlockResult, ResultCodec, Results, blank
from ramerge.core.engine.tally import NonFinite, PassTally
from ramerge.core.engine.worker import Sink, Task
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.errors import WeightsError
from ramerge.core.foundation.progress import Listener, silence
from ramerge.core.methods.base import Counts, Statistic
from ramerge.core.methods.means import one_of
from ramerge.core.planning import cached_counts
from ramerge.core.planning.kinds import PlannedKind
from ramerge.core.planning.model import Batch, MergePlan, TensorPlan, Tie
from ramerge.core.recipe.points import means_of
from ramerge.core.tensors.identity import check_unchanged
from ramerge.core.tensors.reader import Files, Reader


class Passes:
    """Runs the passes over a plan's inputs, and holds their results.

    Attributes:
        journal: the journal of finished blocks, if there is one.
        results: the results of statistics.
        rounding: int64 counts of what rounding does to updates, for each point, laid out as in
            `kernels.piece.rounding_counts`.
        non_finite: NaN and Inf in the inputs of the last pass, which reads all tensors, where they are allowed.
        overflowing: warnings about results of that pass that overflow.
        warnings: warnings of workers.
        bytes_read: bytes of weights that were read.
        listen: gets the progress.
        plan: the plan without its upload target.
        files: the open input files.
        operators: a cache of operators that methods compute from recorded inputs.
    """

    def __init__(self, plan: MergePlan, executor: Executor, listen: Listener) -> None:
        self.journal: Journal | None = None
        self.results: dict[tuple[Statistic, str], Any] = dict(plan.counts.cached)
        self.rounding: Counts = blank(plan)
        self.non_finite: Mapping[str, NonFinite] = {}
        self.overflowing: tuple[str, ...] = ()
        self.warnings: list[str] = []
        self.bytes_read: int = sum(tie.head.nbytes + tie.embedding.nbytes for tie in plan.ties)
        self.listen = listen
        # passes are sent to other nodes, so they do not hold the upload target and its credentials
        output = replace(plan.output, target=None, kind=PlannedKind(), details=None)
        self.plan: MergePlan = replace(plan, output=output)
        self._executor = executor
        self._by_tensor: dict[tuple[Statistic, str], NDArray[np.int64]] = {}
        check_unchanged(plan.inputs.files)
        self.files: Files = Files(plan.inputs.files)
        self.operators: Operators = Operators(plan.resources.workers * len(plan.points))
        reader = Reader(self.files)
        problems = [
            f"{tie.head.path}: {tie.agent}: {tie.head.name!r} differs from {tie.embedding.name!r}, but the base ties "
            f"them, so the merged model cannot hold both; {tie.untie}"
            for tie in plan.ties
            if not _has_equal_elements(tie, reader)
        ]
        if problems:
            raise WeightsError(problems)

    def close(self) -> None:
        """Close the inputs."""
        self.files.close()

    def count(self) -> None:
        """Count everything that merging needs, with one pass for each round."""
        rounds = self.plan.counts.rounds
        for number, statistics_by_tensor in enumerate(rounds):
            label = "counting" if len(rounds) == 1 else f"counting {number + 1}/{len(rounds)}"
            batches = runs_in_file_order(self.plan, statistics_by_tensor, len(rounds) - number)
            counting = CountPass(
                self.plan,
                self.files,
                label,
                batches,
                statistics_by_tensor,
                dict(self.results),
                operators=self.operators,
            )
            self.run(counting, counting.results)

    def merge(self, sink: Sink) -> None:
        """Run the merging pass, which also counts some statistics; `sink` takes the merged bytes."""
        plan, (tasks, on_the_way) = self.plan, tasks_of(self.plan, self.results)
        batches = runs_in_file_order(plan, range(len(plan.tensors)), 0, apart=sink.in_order)
        merging = MergePass(plan, self.files, "merging", batches, on_the_way, tasks, sink, operators=self.operators)
        self.run(merging, self.results, sink)

    def keep(self) -> None:
        """Store the counts in the user's cache, for later runs on the same files."""
        cached_counts.keep(self.plan.counts.digest, self.plan.tensors, self._by_tensor)

    def run(
        self,
        work: PlanPass,
        results: Results,
        sink: Sink | None = None,
        watch: Callable[[BlockResult], object] = silence,
    ) -> None:
        """Run a pass: take the results of earlier runs from the journal, and process the remaining blocks.

        `watch` is called with each new result. Inputs that have changed since planning and bad weights are errors.
        """
        tally = PassTally(work, results, self.listen)
        journal, runs = self.journal, work.batches
        pass_journal: PassJournal[Batch, BlockResult] = (
            journal.open_pass(runs, ResultCodec(self.plan, work.counted)) if journal is not None else PassJournal(runs)
        )
        for result in pass_journal.earlier():
            _take_result(result, tally, sink)
        remaining, tensors = pass_journal.remaining(), self.plan.tensors
        if sink is None or not sink.in_order:  # the blocks of a run share an operator, if they have any
            workers = self.plan.resources.workers
            remaining = list(
                interleave_operators(remaining, lambda run: tensors[run[0][1][0].tensor].recorded, workers)
            )
        # closed here and not by the garbage collector: workers must have stopped before the output is removed
        with closing(self._executor.run(work, remaining, pass_journal)) as events, _close_sink_on_error(sink):
            for event in events:
                if isinstance(event, Processed):
                    _take_result(event.result, tally, sink)
                    watch(event.result)
                else:
                    tally.report(event)
        refusals = tally.finish()
        self.rounding += tally.rounding
        self.warnings += dict.fromkeys(tally.warnings)
        self.non_finite, self.overflowing = refusals.allowed_sources(), refusals.overflowing()
        self.bytes_read += tally.done_bytes
        self.results |= tally.statistics.results
        self._by_tensor |= tally.statistics.by_tensor


@contextmanager
def _close_sink_on_error(sink: Sink | None) -> Iterator[None]:
    """After an error, close the sink first: workers may be waiting for it, and the executor waits for the workers."""
    try:
        yield
    except BaseException:
        if sink is not None:
            sink.close()
        raise


def _take_result(result: BlockResult, tally: PassTally, sink: Sink | None) -> None:
    tally.take(result)
    if sink is not None:
        sink.advance(result.block)


def tasks_of(plan: MergePlan, results: Results) -> tuple[list[tuple[Task, ...]], dict[int, list[Statistic]]]:
    """Return each tensor's tasks, one for each point, and the statistics to count during merging, by tensor."""
    agents = tuple(plan.inputs.agents)
    cached_tasks: dict[object, Task] = {}

    def task(index: int, tensor: TensorPlan) -> Task:
        point = plan.points[index]
        statistics = point.statistics(tensor.rule)
        parts = tuple(tensor.part(statistic.scope) for statistic in statistics)
        if (index, tensor.rule, parts) not in cached_tasks:
            results_of_tensor = {
                statistic: results[statistic, part] for statistic, part in zip(statistics, parts, strict=True)
            }
            preparation = point.method.prepare(point.parameters[tensor.rule], agents, results_of_tensor)
            if means := means_of(plan.points, tensor.rule):
                preparation = one_of(means.index(point.mean(tensor.rule)), len(means))
            figures = point.reported(tensor.rule)
            if figures is not None and (figures, tensor.part(figures.scope)) in results:
                figures = None
            cached_tasks[index, tensor.rule, parts] = Task(preparation, figures)
        return cached_tasks[index, tensor.rule, parts]

    tasks = [
        tuple(task(index, tensor) for index in range(len(plan.points))) if tensor.merged else ()
        for tensor in plan.tensors
    ]
    wanted_statistics = {
        index: list(dict.fromkeys(task.on_the_way for task in by_point if task.on_the_way is not None))
        for index, by_point in enumerate(tasks)
    }
    return tasks, wanted_statistics


def _has_equal_elements(tie: Tie, reader: Reader) -> bool:
    if (tie.head.dtype, tie.head.nbytes) != (tie.embedding.dtype, tie.embedding.nbytes):
        return False
    size = 1 << 20
    width = itemsize(tie.head.dtype)
    left, right = np.empty(size * width, np.uint8), np.empty(size * width, np.uint8)
    for start in range(0, tie.head.elements, size):
        stop = min(start + size, tie.head.elements)
        nbytes = (stop - start) * width
        reader.read(tie.head, start, stop, left[:nbytes])
        reader.read(tie.embedding, start, stop, right[:nbytes])
        if not np.array_equal(left[:nbytes], right[:nbytes]):
            return False
    return True
