"""From a plan to checkpoints: count, reduce, merge, commit. `execute` reads top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramerge.engine.executors.executor import Executor, Processed
from ramerge.engine.journal import Journal, UnrecordedPass
from ramerge.engine.kinds import kind_of
from ramerge.engine.open_output import open_output
from ramerge.engine.passes import CountPass, MergePass, ObservePass, in_order
from ramerge.engine.record import Record
from ramerge.engine.result_codec import BlockResult, Results, blank
from ramerge.engine.sidecars import make_records
from ramerge.engine.sinks import InMemorySink, MergedTensor
from ramerge.engine.tally import NonFinite, PassTally, Statistics
from ramerge.engine.warn import inspect, refuse, refuse_swapped
from ramerge.engine.worker import Sink, Task
from ramerge.foundation.dtypes import itemsize
from ramerge.foundation.errors import PlanError, WeightsError
from ramerge.foundation.events import Listener, silence
from ramerge.methods.base import Counts, Statistic
from ramerge.planning import cached_counts
from ramerge.planning.model import Batch, MergePlan, TensorPlan, Tie
from ramerge.storage.upload import UploadTarget
from ramerge.tensors.identity import check_unchanged
from ramerge.tensors.reader import Files, Reader


def execute(
    plan: MergePlan,
    executor: Executor,
    listen: Listener = silence,
    on_tensor: Callable[[MergedTensor], None] | None = None,
    *,
    fresh: bool = False,
) -> tuple[Record, ...]:
    """Carry out a plan: write to its output folder, or with `on_tensor` pass each tensor to that function.

    What an interrupted run has written to the same folder for an equal plan is not done again.

    Args:
        plan: the plan.
        executor: runs the work on blocks in this process.
        listen: gets the progress.
        on_tensor: the function.
        fresh: do all work again.

    Returns:
        A record for each point.

    Raises:
        PlanError: the plan has problems, or neither an output folder nor a function is given.
        WeightsError: values cannot be merged; all such tensors are listed. If the plan is strict, also warnings.
        CheckpointError: an input cannot be read, or has changed since planning; all such files are listed.
        OutputError: the output cannot be written.
    """
    if plan.problems or (plan.out is None) == (on_tensor is None):
        raise PlanError(plan.problems or "give either an output folder, or a function that takes the tensors")
    began = time.monotonic()
    with closing(Passes(plan, executor, listen)) as passes:
        seen = inspect(plan)
        refuse_swapped(plan, seen)
        if on_tensor is not None:
            passes.count()
            with closing(InMemorySink(plan, on_tensor)) as whole:
                passes.merge(whole)
                whole.finish()
            passes.keep()
            return records_of(plan, passes, 0, seen, began)
        kind = kind_of(plan)
        with open_output(kind.spec(plan), fresh=fresh) as output:
            passes.journal = output.journal
            records = kind.write(plan, passes, output, seen, began)
            check_unchanged(plan.files)  # the copied companions must not have changed either
        passes.keep()
        return records


def records_of(
    plan: MergePlan, passes: Passes, bytes_written: int, seen: Sequence[str], began: float
) -> tuple[Record, ...]:
    """A record for each point; see `OutputKind.write`.

    Raises:
        WeightsError: the plan is strict, and there are warnings.
    """
    records = make_records(plan, passes, bytes_written, seen, began)
    try:
        refuse(plan, (warning for record in records for warning in record.warnings))
    except WeightsError:
        passes.keep()
        raise
    return records


@dataclass(frozen=True)
class Observed:
    """The results of `observe`.

    Attributes:
        results: of statistics, by statistic and part of the model.
        rounding: int64: what rounding does to updates, as `kernels.piece.no_counts` has it.
        non_finite: NaN and Inf that were computed with, as `engine.tally.Refusals.allowed` has them.
    """

    results: Results
    rounding: Counts
    non_finite: Mapping[str, NonFinite]


def observe(
    plan: MergePlan,
    statistics: Sequence[Statistic],
    executor: Executor,
    listen: Listener = silence,
) -> Observed:
    """Count statistics of the tensors that the method merges, of inputs and results. Nothing is written.

    The plan's first point is merged, after the counting passes of its method.

    Args:
        plan: the plan.
        statistics: what is counted.
        executor: runs the work on blocks in this process.
        listen: gets the progress.

    Raises:
        PlanError: the plan has problems.
        WeightsError: values are not finite; all such tensors are listed.
        CheckpointError: an input cannot be read, or has changed since planning; all such files are listed.
    """
    if plan.problems:
        raise PlanError(plan.problems)
    with closing(Passes(plan, executor, listen)) as passes:
        passes.count()
        passes.observe(statistics)
        return Observed(passes.results, passes.rounding[0], passes.non_finite)


# --- passes ----------------------------------------------------------------------------------------------------------


class Passes:
    """The reads of a plan's inputs, and what they have found.

    Attributes:
        journal: of blocks that are done, if there is one.
        results: of statistics.
        rounding: int64: for each point what rounding does to updates, as `kernels.piece.no_counts` has it.
        non_finite: NaN and Inf that the last pass, which reads all tensors, has computed with.
        overflowing: warnings about results of that pass.
        bytes_read: bytes of weights that were read.
        listen: gets the progress.
    """

    def __init__(self, plan: MergePlan, executor: Executor, listen: Listener) -> None:
        self.journal: Journal | None = None
        self.results: dict[tuple[Statistic, str], Any] = dict(plan.remembered)
        self.rounding = blank(plan)
        self.non_finite: Mapping[str, NonFinite] = {}
        self.overflowing: tuple[str, ...] = ()
        self.bytes_read = sum(tie.head.nbytes + tie.embedding.nbytes for tie in plan.ties)
        self.listen = listen
        # what passes hold may travel to other nodes, so not what uploads, whose credentials stay here
        self._plan = replace(plan, out=None if isinstance(plan.out, UploadTarget) else plan.out, below=None)
        self._executor = executor
        self._by_tensor: dict[tuple[Statistic, str], Any] = {}
        check_unchanged(plan.files)
        self._files = Files(plan.files)
        _check_ties(plan, Reader(self._files))

    def close(self) -> None:
        """Close the inputs."""
        self._files.close()

    def count(self) -> None:
        """Count everything that merging needs: one read for each round."""
        rounds = self._plan.rounds
        for number, wanted in enumerate(rounds):
            label = "counting" if len(rounds) == 1 else f"counting {number + 1}/{len(rounds)}"
            batches = in_order(self._plan, wanted, len(rounds) - number)
            counting = CountPass(self._plan, self._files, label, batches, wanted, dict(self.results))
            self._learn(self._run(counting, counting.results))

    def observe(self, statistics: Sequence[Statistic]) -> None:
        """Count statistics of all tensors that the method merges, and of its results."""
        plan, (tasks, _) = self._plan, _tasks(self._plan, self.results)
        counted = {index: statistics for index, tensor in enumerate(plan.tensors) if tensor.merged}
        batches = in_order(plan, tuple(counted), 0)
        observing = ObservePass(plan, self._files, "reading", batches, counted, dict(self.results), tasks)
        self._learn(self._run(observing, observing.results))

    def merge(self, sink: Sink) -> None:
        """Run the merging pass, which also counts some statistics; `sink` takes the merged bytes."""
        plan, (tasks, on_the_way) = self._plan, _tasks(self._plan, self.results)
        batches = in_order(plan, range(len(plan.tensors)), 0, apart=sink.in_order)
        merging = MergePass(plan, self._files, "merging", batches, on_the_way, tasks, sink)
        self._learn(self._run(merging, self.results, sink))

    def _learn(self, counted: Statistics) -> None:
        self.results |= counted.results
        self._by_tensor |= counted.by_tensor

    def keep(self) -> None:
        """Store counts for later runs on the same files."""
        cached_counts.keep(self._plan.digest, self._plan.tensors, self._by_tensor)

    def _run(self, work: CountPass | ObservePass | MergePass, results: Results, sink: Sink | None = None) -> Statistics:
        """Carry out a pass: first what earlier runs have done of it, then the rest.

        At the end, inputs that have changed since planning are refused, and so are bad weights.
        """
        tally = PassTally(work, results, self.listen)
        kept = self.journal.open_pass(work.runs(), work.codec()) if self.journal is not None else None
        noted: UnrecordedPass[Batch, BlockResult] = kept or UnrecordedPass(work.runs())
        for result in noted.earlier():
            _take(result, tally, sink)
        # closed here and not by the garbage collector: workers must have stopped before the output is removed
        with closing(self._executor.run(work, noted.remaining(), noted)) as events, _no_longer_waiting(sink):
            for event in events:
                if isinstance(event, Processed):
                    _take(event.result, tally, sink)
                else:
                    tally.report(event)
        refusals = tally.finish()
        self.rounding += tally.rounding
        self.non_finite, self.overflowing = refusals.allowed(), refusals.overflowing()
        self.bytes_read += tally.done
        return tally.statistics


@contextmanager
def _no_longer_waiting(sink: Sink | None) -> Iterator[None]:
    """After an error, close the sink, for which workers may be waiting, before anything waits for the workers."""
    try:
        yield
    except BaseException:
        if sink is not None:
            sink.close()
        raise


def _take(result: BlockResult, tally: PassTally, sink: Sink | None) -> None:
    tally.take(result)
    if sink is not None:
        sink.advance(result.block)


def _tasks(plan: MergePlan, results: Results) -> tuple[list[tuple[Task, ...]], dict[int, list[Statistic]]]:
    """For each tensor: how every point merges it, and the statistics that are counted during merging."""
    agents = tuple(plan.agents)
    made: dict[object, Task] = {}

    def task(index: int, tensor: TensorPlan) -> Task:
        point = plan.points[index]
        statistics = point.statistics(tensor.rule)
        parts = tuple(tensor.part(statistic.scope) for statistic in statistics)
        if (index, tensor.rule, parts) not in made:
            known = {statistic: results[statistic, part] for statistic, part in zip(statistics, parts, strict=True)}
            prepared = point.method.prepare(point.parameters[tensor.rule], agents, known)
            reported = point.reported(tensor.rule)
            if reported is not None and (reported, tensor.part(reported.scope)) in results:
                reported = None
            made[index, tensor.rule, parts] = Task(prepared, reported)
        return made[index, tensor.rule, parts]

    tasks = [
        tuple(task(index, tensor) for index in range(len(plan.points))) if tensor.merged else ()
        for tensor in plan.tensors
    ]
    wanted = {
        index: list(dict.fromkeys(task.on_the_way for task in by_point if task.on_the_way is not None))
        for index, by_point in enumerate(tasks)
    }
    return tasks, wanted


def _check_ties(plan: MergePlan, reader: Reader) -> None:
    problems = [
        f"{tie.head.path}: {tie.agent}: {tie.head.name!r} differs from {tie.embedding.name!r}, but the base ties "
        f"them, so the merged model cannot hold both; {tie.untie}"
        for tie in plan.ties
        if not _equal(tie, reader)
    ]
    if problems:
        raise WeightsError(problems)


def _equal(tie: Tie, reader: Reader) -> bool:
    if (tie.head.dtype, tie.head.nbytes) != (tie.embedding.dtype, tie.embedding.nbytes):
        return False
    size = 1 << 20
    width = itemsize(tie.head.dtype)
    left, right = np.empty(size * width, np.uint8), np.empty(size * width, np.uint8)
    for start in range(0, tie.head.elements, size):
        stop = min(start + size, tie.head.elements)
        used = (stop - start) * width
        reader.read(tie.head, start, stop, left[:used])
        reader.read(tie.embedding, start, stop, right[:used])
        if not np.array_equal(left[:used], right[:used]):
            return False
    return True
