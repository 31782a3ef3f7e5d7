"""From a plan to checkpoints: count, reduce, merge, commit. `execute` reads top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from ramerge.checkpoint.read import Reader
from ramerge.checkpoint.write import Writer, staged
from ramerge.engine.beside import make_records, write_beside
from ramerge.engine.events import Listener, Progress, silence
from ramerge.engine.sinks import Files, MergedTensor, Whole, all_shards
from ramerge.engine.tally import Refusals, Statistics
from ramerge.engine.worker import Block, Known, Outcome, Sink, Task, Worker, worker
from ramerge.errors import PlanError, WeightsError
from ramerge.executors import Executor
from ramerge.methods.base import Statistic
from ramerge.planning.model import Plan, TensorPlan, Tie
from ramerge.record import Record

Wanted = Mapping[int, Sequence[Statistic]]


def execute(
    plan: Plan,
    executor: Executor,
    listen: Listener = silence,
    on_tensor: Callable[[MergedTensor], None] | None = None,
) -> tuple[Record, ...]:
    """Carry a plan out: into its output folder, or with `on_tensor`, tensor by tensor into that function.

    Returns:
        A record for each point.

    Raises:
        PlanError: the plan has problems, or neither an output folder nor a function.
        WeightsError: values that cannot be merged; every tensor that holds some.
        CheckpointError: an input cannot be read.
        OutputError: the output cannot be written.
    """
    if plan.problems or (plan.out is None) == (on_tensor is None):
        raise PlanError(plan.problems or "either an output folder is needed, or a function that takes the tensors")
    began = time.monotonic()
    _check_ties(plan)
    if on_tensor is not None:
        known = _count(plan, executor, listen)
        with closing(Whole(plan, on_tensor)) as whole:
            known |= _merge(plan, executor, listen, known, whole)
            whole.finish()
        return make_records(plan, known, began)
    assert plan.out is not None
    with staged(plan.out, overwrite=plan.overwrite) as stage:
        with closing(Writer(stage, all_shards(plan))) as writer:
            known = _count(plan, executor, listen)
            known |= _merge(plan, executor, listen, known, Files(plan, writer))
            writer.finish()
        records = make_records(plan, known, began)
        write_beside(plan, records, stage)
    return records


def observe(
    plan: Plan, statistics: Sequence[Statistic], executor: Executor, listen: Listener = silence
) -> dict[tuple[Statistic, str], Any]:
    """Count statistics over all tensors that the method merges, in one read; nothing is merged.

    Returns:
        Results by statistic and part of the model.

    Raises:
        PlanError: the plan has problems.
        WeightsError: values that are not finite; every tensor that holds some.
        CheckpointError: an input cannot be read.
    """
    if plan.problems:
        raise PlanError(plan.problems)
    _check_ties(plan)
    wanted = {place: tuple(statistics) for place, tensor in enumerate(plan.tensors) if tensor.merged}
    blocks = _in_order(plan, wanted, 0)
    return dict(_read(plan, executor, listen, "reading", blocks, _counter(wanted, {}), wanted, {}))


# --- passes ----------------------------------------------------------------------------------------------------------


def _count(plan: Plan, executor: Executor, listen: Listener) -> dict[tuple[Statistic, str], Any]:
    """All that must be known before merging: one read of the inputs for each round."""
    known: dict[tuple[Statistic, str], Any] = {}
    for number, wanted in enumerate(plan.rounds):
        stage = "counting" if len(plan.rounds) == 1 else f"counting {number + 1}/{len(plan.rounds)}"
        known |= _read(
            plan,
            executor,
            listen,
            stage,
            _in_order(plan, wanted, number),
            _counter(wanted, known),
            wanted,
            known,
        )
    return known


def _counter(wanted: Wanted, known: Known) -> Callable[[Worker, Block], Outcome]:
    return lambda own, block: own.count(block, wanted[block.tensor], known)


def _merge(plan: Plan, executor: Executor, listen: Listener, known: Known, sink: Sink) -> Known:
    """The merging pass, and the results of what is counted on the way."""
    tasks, wanted = _tasks(plan, known)
    blocks = _in_order(plan, range(len(plan.tensors)), len(plan.rounds))
    return _read(
        plan,
        executor,
        listen,
        "merging",
        blocks,
        lambda own, block: own.merge(block, tasks[block.tensor], sink),
        wanted,
        known,
        sink,
    )


def _in_order(plan: Plan, tensors: Sequence[int] | Mapping[int, object], number: int) -> list[Block]:
    """Blocks of tensors in the order of the output's files; every other pass backwards.

    What the pass before has read last is still in the page cache.
    """
    blocks = [
        block for place in tensors for block in _blocks(plan.tensors[place], place, plan.resources.block_elements)
    ]
    return blocks[::-1] if number % 2 else blocks


def _blocks(tensor: TensorPlan, place: int, size: int) -> Iterator[Block]:
    # blocks begin at even elements, because two of a 16-bit format share a word
    size = max(tensor.base.elements if tensor.whole else size - size % 2, 2)
    for start in range(0, tensor.base.elements, size):
        yield Block(place, start, min(start + size, tensor.base.elements))


def _tasks(plan: Plan, known: Known) -> tuple[list[tuple[Task, ...]], dict[int, list[Statistic]]]:
    """For each tensor how every point merges it; and what is counted on the way."""
    agents = tuple(plan.agents)
    made: dict[object, Task] = {}

    def task(point: int, tensor: TensorPlan) -> Task:
        one = plan.points[point]
        statistics = one.statistics(tensor.rule)
        parts = tuple(tensor.part(statistic.scope) for statistic in statistics)
        if (point, tensor.rule, parts) not in made:
            results = {statistic: known[statistic, part] for statistic, part in zip(statistics, parts, strict=True)}
            prepared = one.method.prepare(one.parameters[tensor.rule], agents, results)
            reported = one.reported(tensor.rule)
            counted = reported is None or any(reported in wanted for read in plan.rounds for wanted in read.values())
            made[point, tensor.rule, parts] = Task(prepared, None if counted else reported)
        return made[point, tensor.rule, parts]

    tasks = [
        tuple(task(point, tensor) for point in range(len(plan.points))) if tensor.merged else ()
        for tensor in plan.tensors
    ]
    wanted = {
        place: list(dict.fromkeys(one.on_the_way for one in of if one.on_the_way is not None))
        for place, of in enumerate(tasks)
    }
    return tasks, wanted


def _read(
    plan: Plan,
    executor: Executor,
    listen: Listener,
    stage: str,
    blocks: Sequence[Block],
    work: Callable[[Worker, Block], Outcome],
    wanted: Wanted,
    known: Known,
    sink: Sink | None = None,
) -> Known:
    """One read of blocks: the results of what is `wanted`; refuse the weights at the end if any are bad."""
    statistics, refusals, done = Statistics(plan, wanted, known), Refusals(plan), 0
    total = sum(plan.tensors[place].bytes_read for place in {block.tensor for block in blocks})
    listen(Progress(stage, 0, total))
    # closed here and not by the garbage collector: no worker may write once the output is being taken away
    with closing(executor.map(lambda: worker(plan), work, blocks)) as outcomes:
        try:
            for outcome in outcomes:
                statistics.add(outcome)
                refusals.add(outcome)
                done += outcome.bytes_read
                if sink is not None:
                    sink.advance()
                listen(Progress(stage, done, total))
        except BaseException:
            if sink is not None:
                sink.close()  # workers may be waiting for it
            raise
    refusals.refuse()
    assert done == total, f"{stage} read {done:,} bytes of {total:,}"
    return statistics.results


def _check_ties(plan: Plan) -> None:
    """Refuse an output embedding that the base ties and an agent stores with other values."""
    problems = [
        f"{tie.head.path}: {tie.agent}: {tie.head.name!r} differs from {tie.embedding.name!r}, to which the base "
        "ties it; the merged model has no place for it (untie the base, or retrain with tied embeddings)"
        for tie in plan.ties
        if not _equal(tie)
    ]
    if problems:
        raise WeightsError(problems)


def _equal(tie: Tie) -> bool:
    if (tie.head.dtype, tie.head.nbytes) != (tie.embedding.dtype, tie.embedding.nbytes):
        return False
    size = 1 << 20
    left, right = np.empty(size, np.uint8), np.empty(size, np.uint8)
    with Reader() as head, Reader() as embedding:
        for start in range(0, tie.head.nbytes, size):
            stop = min(size, tie.head.nbytes - start)
            head.read(tie.head, start, left[:stop])
            embedding.read(tie.embedding, start, right[:stop])
            if not np.array_equal(left[:stop], right[:stop]):
                return False
    return True
