"""From a plan to checkpoints: count, reduce, merge, commit. `execute` reads top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ramerge.checkpoint.delta.collect import collect
from ramerge.checkpoint.delta.write import DeltaWriter
from ramerge.checkpoint.identity import check_unchanged
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.outputs import Out
from ramerge.checkpoint.read import Files, Reader
from ramerge.checkpoint.storage.destination import Destination
from ramerge.engine.beside import make_records, write_beside, write_beside_delta
from ramerge.engine.executors.executor import Executor, in_runs
from ramerge.engine.journal import Journal
from ramerge.engine.outcomes import Outcomes
from ramerge.engine.patches import COMPRESSION, Patches
from ramerge.engine.planned import built_of, facts_of, shards_of
from ramerge.engine.ranks import Rank
from ramerge.engine.record import Record
from ramerge.engine.sinks import MergedTensor, Whole
from ramerge.engine.site import Site, building, meeting
from ramerge.engine.tally import NonFinite, Refusals, Statistics
from ramerge.engine.warn import inspect, refuse
from ramerge.engine.worker import Compiling, Known, Message, Outcome, Sink, Solving, Task, Worker, blank, worker
from ramerge.foundation.dtypes import itemsize
from ramerge.foundation.errors import PlanError, WeightsError
from ramerge.foundation.events import Listener, Progress, silence
from ramerge.methods.base import Counted, Counts, Statistic
from ramerge.planning import remembered
from ramerge.planning.model import Batch, Block, Plan, Run, TensorPlan, Tie, share_of
from ramerge.planning.sample import sample

Wanted = Mapping[int, Sequence[Statistic]]


def execute(
    plan: Plan,
    executor: Executor,
    listen: Listener = silence,
    on_tensor: Callable[[MergedTensor], None] | None = None,
    *,
    rank: Rank | None = None,
    fresh: bool = False,
) -> tuple[Record, ...]:
    """Carry out a plan: write to its output folder, or with `on_tensor` pass each tensor to that function.

    What an earlier run that was stopped has written to the same folder for an equal plan is not done again.

    Args:
        plan: the plan.
        executor: runs the work on blocks in this process.
        listen: gets the progress.
        on_tensor: the function.
        rank: which process this is, if several carry out the plan.
        fresh: do all work again.

    Returns:
        A record for each point.

    Raises:
        PlanError: the plan has problems, or neither an output folder nor a function is given.
        WeightsError: values cannot be merged; all such tensors are listed. If the plan is strict, also warnings.
        CheckpointError: an input cannot be read, or has changed since planning; all such files are listed.
        OutputError: the output cannot be written.
        RankError: another rank has failed or is lost.
    """
    if plan.problems or (plan.out is None) == (on_tensor is None):
        raise PlanError(plan.problems or "give either an output folder, or a function that takes the tensors")
    began = time.monotonic()
    with closing(_Passes(plan, executor, listen)) as passes:
        seen = inspect(plan)
        if on_tensor is not None:
            passes.count()
            with closing(Whole(plan, on_tensor)) as whole:
                passes.merge(whole)
                whole.finish()
            passes.keep()
            return _records(plan, passes, 0, seen, began)
        with building(built_of(plan), rank, fresh=fresh) as site:
            if plan.below is not None:
                records = _write_delta(plan, plan.below, passes, site, seen, began)
            else:
                records = _write(plan, passes, site, seen, began)
            check_unchanged(plan.files)  # the copied companions must not have changed either
        passes.keep()
        return records


def _write(plan: Plan, passes: _Passes, site: Site, seen: Sequence[str], began: float) -> tuple[Record, ...]:
    with closing(site.opened(lambda: shards_of(plan, site))) as shards:
        passes.journal = site.journal
        if not passes.merge_guessed(shards):
            passes.count()
            passes.merge(shards)
        written = shards.finish(passes.listen)
    records = _records(plan, passes, written, seen, began)
    site.written()
    if site.leads:
        write_beside(plan, records, site.stage)
    return records


def _write_delta(
    plan: Plan, below: Checkpoint, passes: _Passes, site: Site, seen: Sequence[str], began: float
) -> tuple[Record, ...]:
    with closing(Patches(plan, below, site.opened(site.spool))) as patches:
        passes.journal = site.journal
        if not site.leads:
            passes.count()
            passes.merge(patches)
            return _records(plan, passes, site.written(patches.spool.finish), seen, began)
        passes.count()
        passes.merge(patches)
        site.written()
        with DeltaWriter(site.stage, [entry.name for entry in patches.spool.slots.entries]) as writer:
            collect(patches.spool, writer, below, COMPRESSION)
            site.say(writer.written)
            records = _records(plan, passes, writer.written, seen, began)
            write_beside_delta(plan, records[0], writer, site.stage)
    return records


def _records(plan: Plan, passes: _Passes, bytes_written: int, seen: Sequence[str], began: float) -> tuple[Record, ...]:
    records = make_records(
        plan,
        passes.known,
        passes.rounding,
        passes.non_finite,
        passes.bytes_read,
        bytes_written,
        [*seen, *passes.overflowing],
        began,
    )
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
        known: results of statistics, by statistic and part of the model.
        rounding: int64: what rounding does to updates, as `kernels.piece.no_counts` has it.
        non_finite: NaN and Inf that were computed with, as `engine.tally.Refusals.allowed` has them.
    """

    known: Known
    rounding: Counts
    non_finite: Mapping[str, NonFinite]


def observe(
    plan: Plan,
    statistics: Sequence[Statistic],
    executor: Executor,
    listen: Listener = silence,
    *,
    rank: Rank | None = None,
    meet: Out | None = None,
) -> Observed:
    """Count statistics of the tensors that the method merges, of inputs and results. Nothing is written.

    The plan's first point is merged, after the counting passes of its method.

    Args:
        plan: the plan.
        statistics: what is counted.
        executor: runs the work on blocks in this process.
        listen: gets the progress.
        rank: which process this is, if several carry out the plan.
        meet: the folder in which these meet.

    Raises:
        PlanError: the plan has problems.
        WeightsError: values are not finite; all such tensors are listed.
        CheckpointError: an input cannot be read, or has changed since planning; all such files are listed.
    """
    if plan.problems:
        raise PlanError(plan.problems)
    with closing(_Passes(plan, executor, listen)) as passes:
        with _met(plan, statistics, rank, meet) as site:
            passes.journal = site.journal if site is not None else None
            passes.count()
            passes.observe(statistics)
        return Observed(passes.known, passes.rounding[0], passes.non_finite)


def _met(
    plan: Plan, statistics: Sequence[Statistic], rank: Rank | None, meet: Out | None
) -> AbstractContextManager[Site | None]:
    """The site of ranks, if there are several."""
    if rank is None or meet is None:
        return nullcontext()
    return meeting(facts_of(plan, statistics), plan.bytes_read, rank, meet)


# --- passes ----------------------------------------------------------------------------------------------------------


class _Passes:
    """The reads of a plan's inputs, and what is known after them.

    Attributes:
        known: results of statistics.
        rounding: int64: for each point what rounding does to updates, as `kernels.piece.no_counts` has it.
        non_finite: NaN and Inf that the last pass, which reads all tensors, has computed with.
        overflowing: warnings about results of that pass.
        bytes_read: bytes of weights that were read.
        listen: gets the progress.
        journal: of blocks that are done, if there is one.
    """

    def __init__(self, plan: Plan, executor: Executor, listen: Listener) -> None:
        self.journal: Journal | None = None
        self.known: dict[tuple[Counted, str], Any] = dict(plan.remembered)
        self.rounding = blank(plan)
        self.non_finite: Mapping[str, NonFinite] = {}
        self.overflowing: tuple[str, ...] = ()
        self.bytes_read = sum(tie.head.nbytes + tie.embedding.nbytes for tie in plan.ties)
        self._plan = plan
        self._executor = executor
        self.listen = listen
        self._by_tensor: dict[tuple[Counted, str], Any] = {}
        self._kernels_begun = self._kernels_done = 0
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
            stage = "counting" if len(rounds) == 1 else f"counting {number + 1}/{len(rounds)}"
            self._count(stage, wanted, number)

    def observe(self, statistics: Sequence[Statistic]) -> None:
        """Count statistics of all tensors that the method merges, and of its results."""
        plan = self._plan
        known, (tasks, _) = dict(self.known), _tasks(plan, self.known, {})
        wanted = {index: statistics for index, tensor in enumerate(plan.tensors) if tensor.merged}
        runs = _in_order(plan, wanted, 0)

        def work(own: Worker, batch: Batch) -> Outcome:
            return own.observe(batch[0], statistics, known, tasks[batch[0].tensor][0])

        with _blas(plan):
            self._learn(self._read("reading", runs, work, wanted, known))

    def _count(self, stage: str, wanted: Wanted, number: int) -> None:
        before = len(self._plan.rounds) - number
        self._learn(self._counted(stage, _in_order(self._plan, wanted, before), wanted, self.known))

    def _counted(self, stage: str, runs: Sequence[Run], wanted: Wanted, known: Known) -> Statistics:
        known = dict(known)
        return self._read(
            stage, runs, lambda own, batch: own.count(batch, wanted[batch[0].tensor], known), wanted, known
        )

    def _learn(self, counted: Statistics) -> None:
        self.known |= counted.results
        self._by_tensor |= counted.by_tensor

    def merge(self, sink: Sink) -> None:
        """Run the merging pass, which also counts some statistics."""
        self._merge(sink, self.known, {})

    def merge_guessed(self, sink: Sink) -> bool:
        """Merge with what a sample says that counting would give, and see on the way whether it does.

        False if the plan does not ask for it, the sample does not say it, or it was wrong: then everything must be
        counted, and merged again.
        """
        plan = self._plan
        if not plan.guessed:
            return False
        sampled = self._sampled()
        guesses = {
            key: key[0].guess(result)
            for key, result in sampled.items()
            if isinstance(key[0], Statistic) and key[0].guessable
        }
        verified = {key: guess for key, guess in guesses.items() if guess is not None}
        if len(verified) < len(guesses) or not guesses.keys() >= _asked(plan):
            return False
        rounding = self.rounding.copy()
        self._merge(sink, {**self.known, **sampled}, verified)
        found = {key: self.known[guess, key[1]] for key, guess in verified.items()}
        if any(result is None for result in found.values()):
            self.rounding = rounding
            return False
        self.known |= found
        return True

    def _sampled(self) -> dict[tuple[Counted, str], Any]:
        """What a sample says of everything that must be counted; nothing of parts of the model that it lacks."""
        batches, known = list(sample(self._plan.tensors)), dict(self.known)
        for wanted in self._plan.rounds:
            due = [(batch,) for batch in batches if batch[0].tensor in wanted]
            known |= self._counted("sampling", due, wanted, known).results
        return {key: result for key, result in known.items() if key not in self.known}

    def _merge(self, sink: Sink, known: Known, verified: Mapping[tuple[Counted, str], Counted]) -> None:
        tasks, wanted = _tasks(self._plan, known, verified)
        runs = _in_order(self._plan, range(len(self._plan.tensors)), 0, apart=sink.in_order)
        with _blas(self._plan):
            self._learn(
                self._read(
                    "merging",
                    runs,
                    lambda own, batch: own.merge(batch[0], tasks[batch[0].tensor], sink),
                    wanted,
                    self.known,
                    sink,
                )
            )

    def keep(self) -> None:
        """Store counts for later runs on the same files."""
        remembered.keep(self._plan.digest, self._plan.tensors, self._by_tensor)

    def _read(
        self,
        stage: str,
        runs: Sequence[Run],
        work: Callable[[Worker, Batch], Outcome],
        wanted: Mapping[int, Sequence[Counted]],
        known: Known,
        sink: Sink | None = None,
    ) -> Statistics:
        """Read blocks once, those of a run by the same worker, and count the statistics in `wanted`.

        At the end, inputs that have changed since planning are refused, and so are bad weights.
        """
        plan, blocks = self._plan, [block for run in runs for batch in run for block in batch]
        statistics, refusals, done = Statistics(plan, wanted, known, blocks), Refusals(plan), 0
        solving: dict[Block, int] = {}
        total = sum(share_of(plan.tensors[block.tensor], block) for block in blocks)
        self.listen(Progress(stage, 0, total))
        # closed here and not by the garbage collector: workers must have stopped before the output is removed
        with closing(self._outcomes(work, runs, wanted, sink)) as outcomes:
            try:
                for outcome in outcomes:
                    if isinstance(outcome, Compiling):
                        self._compiling(outcome)
                        continue
                    if isinstance(outcome, Solving):
                        solving[outcome.block] = outcome.bytes_done
                        self.listen(Progress(stage, done + sum(solving.values()), total))
                        continue
                    statistics.add(outcome)
                    refusals.add(outcome)
                    if outcome.rounding is not None:
                        self.rounding += outcome.rounding
                    done += outcome.bytes_read
                    solving.pop(outcome.block, None)
                    if sink is not None:
                        sink.advance(outcome.block)
                    self.listen(Progress(stage, done + sum(solving.values()), total))
            except BaseException:
                if sink is not None:
                    sink.close()  # workers may be waiting for it
                raise
        check_unchanged(plan.files)
        refusals.refuse()
        self.non_finite, self.overflowing = refusals.allowed(), refusals.overflowing()
        assert done == total, f"{stage} read {done:,} bytes of {total:,}"
        self.bytes_read += done
        return statistics

    def _outcomes(
        self,
        work: Callable[[Worker, Batch], Outcome],
        runs: Sequence[Run],
        wanted: Mapping[int, Sequence[Counted]],
        sink: Sink | None,
    ) -> Generator[Outcome | Message, None, None]:
        # what these close over may travel to other processes, so nothing of `self`, and not what sends, whose
        # credentials stay here
        out = None if isinstance(self._plan.out, Destination) else self._plan.out
        plan, files = replace(self._plan, out=out, below=None), self._files

        def of_thread(tell: Callable[[Message], None]) -> AbstractContextManager[Worker]:
            return worker(plan, files, tell)

        def elsewhere() -> AbstractContextManager[Callable[[], None]]:
            return _elsewhere(plan, files, sink)

        def along(own: Worker, run: Sequence[Batch]) -> Iterator[Outcome]:
            own.expect(run)
            return (work(own, batch) for batch in run)

        if self.journal is None:
            return self._executor.map(of_thread, along, runs, elsewhere)

        def owner(batch: Batch) -> int | None:
            return sink.owner(batch[0]) if sink is not None else None

        def lasting(batch: Batch) -> bool:
            return sink is None or sink.holds(batch[0])

        codec = Outcomes(plan, wanted)
        return self.journal.map(self._executor, of_thread, along, runs, codec, elsewhere, owner, lasting)

    def _compiling(self, kernel: Compiling) -> None:
        self._kernels_begun += not kernel.done
        self._kernels_done += kernel.done
        self.listen(Progress("compiling kernels", self._kernels_done, self._kernels_begun, "kernels"))


@contextmanager
def _elsewhere(plan: Plan, files: Files, sink: Sink | None) -> Iterator[Callable[[], None]]:
    """See `Elsewhere`."""
    with _blas(plan), closing(files), closing(sink) if sink is not None else nullcontext():
        yield sink.sync if sink is not None else lambda: None


def _blas(plan: Plan) -> AbstractContextManager[object]:
    """Holds BLAS to one thread where workers solve for whole matrices.

    Workers are already as many as processors, and so the bytes of a result do not depend on the number of threads.
    """
    if not any(tensor.whole for tensor in plan.tensors):
        return nullcontext()
    import threadpoolctl  # looks at all loaded libraries, which other merges need not wait for

    return cast(AbstractContextManager[object], threadpoolctl.threadpool_limits(1, "blas"))


def _in_order(
    plan: Plan, tensors: Sequence[int] | Mapping[int, object], before: int, *, apart: bool = False
) -> list[Run]:
    """Blocks of tensors in the order of the output's files. Every second pass goes backwards, the last one forwards.

    So each begins with the blocks that the previous pass has read last, which are still in the page cache. Within a run
    all go forwards.

    Args:
        plan: the plan.
        tensors: indices of tensors.
        before: how many passes come after this one.
        apart: whether each block is a run.
    """
    size = plan.resources.block_elements
    blocks = [block for index in tensors for block in _blocks(plan.tensors[index], index, size)]
    in_bytes = 0 if apart else plan.resources.run_bytes
    found = in_runs(blocks, lambda block: share_of(plan.tensors[block.tensor], block), in_bytes)
    runs: list[Run] = [tuple((block,) for block in run) for run in found]
    return runs[::-1] if before % 2 else runs


def _blocks(tensor: TensorPlan, index: int, size: int) -> Iterator[Block]:
    size = tensor.block(size)
    for start in range(0, tensor.base.elements, size):
        yield Block(index, start, min(start + size, tensor.base.elements))


def _asked(plan: Plan) -> set[tuple[Counted, str]]:
    """The statistics that merging needs and that are not known when the plan is made, by part of the model."""
    return {
        (statistic, tensor.part(statistic.scope))
        for point in plan.points
        for tensor in plan.tensors
        if tensor.merged
        for statistic in point.statistics(tensor.rule)
        if (statistic, tensor.part(statistic.scope)) not in plan.remembered
    }


def _tasks(
    plan: Plan, known: Known, verified: Mapping[tuple[Counted, str], Counted]
) -> tuple[list[tuple[Task, ...]], dict[int, list[Counted]]]:
    """For each tensor: how every point merges it, and the statistics that are counted during merging.

    Args:
        plan: the plan.
        known: results of statistics.
        verified: those of them that are guesses, with what verifies them.
    """
    agents = tuple(plan.agents)
    made: dict[object, Task] = {}

    def task(index: int, tensor: TensorPlan) -> Task:
        point = plan.points[index]
        statistics = point.statistics(tensor.rule)
        parts = tuple(tensor.part(statistic.scope) for statistic in statistics)
        if (index, tensor.rule, parts) not in made:
            results = {statistic: known[statistic, part] for statistic, part in zip(statistics, parts, strict=True)}
            prepared = point.method.prepare(point.parameters[tensor.rule], agents, results)
            reported = point.reported(tensor.rule)
            if reported is not None and (reported, tensor.part(reported.scope)) in known:
                reported = None
            guessed = [verified[key] for key in zip(statistics, parts, strict=True) if key in verified]
            made[index, tensor.rule, parts] = Task(prepared, guessed[0] if guessed else reported)
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


def _check_ties(plan: Plan, reader: Reader) -> None:
    """Refuse an output embedding that the base ties, if an agent stores other values for it."""
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
