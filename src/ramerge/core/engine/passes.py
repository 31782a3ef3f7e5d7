"""The passes over a plan's inputs, as values: inputs, work on each block, and results.

An executor takes a pass, opens workers, and calls `process` for each block. A pass can be sent to another node, because
its fields can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TypeVar

from typing_extensions import override

from ramerge.core.engine.executors.executor import in_runs
from ramerge.core.engine.operators import Operators
from ramerge.core.engine.result_codec import BlockResult, Results
from ramerge.core.engine.worker import Compiling, Message, Sink, Task, Worker
from ramerge.core.foundation.threads import one_blas_thread
from ramerge.core.kernels.native import notifying_compilation
from ramerge.core.methods.base import Statistic
from ramerge.core.planning.model import Batch, Block, MergePlan, Run, share_of
from ramerge.core.tensors.reader import Files

T = TypeVar("T")


@dataclass(frozen=True)
class PlanPass(ABC):
    """Base of the passes over a plan.

    Attributes:
        plan: the plan, as it travels: without the place of an upload, whose credentials stay here.
        files: the inputs.
        label: the name of its progress.
        batches: the blocks, in the order in which they are begun; a worker takes those of a run at a stretch.
        counted: the statistics that the pass counts, by the tensor's index.
    """

    plan: MergePlan
    files: Files
    label: str
    batches: tuple[Run, ...]
    counted: Mapping[int, Sequence[Statistic]]
    operators: Operators = field(kw_only=True)

    @contextmanager
    def open_worker(self, report: Callable[[Message], None]) -> Iterator[Worker]:
        """Resources of one thread. It reports what happens in the middle of a block, such as a kernel's compilation.

        BLAS has one thread where workers solve for whole matrices, or multiply by operators: workers are already as
        many as processors, and so the bytes of a result do not depend on the number of threads.
        """
        solves_matrices = any(tensor.matrix or tensor.recorded for tensor in self.plan.tensors)
        with (
            one_blas_thread() if solves_matrices else nullcontext(),
            notifying_compilation(lambda is_done: report(Compiling(is_done))),
        ):
            yield Worker(self.plan, self.files, self.operators, report)

    def prefetch(self, worker: Worker, run: Sequence[Batch]) -> None:
        """Tell a worker the blocks of its next run, which it prefetches."""
        worker.expect(run)

    @abstractmethod
    def process(self, worker: Worker, batch: Batch) -> BlockResult:
        """Have a worker read a batch of blocks, and count or merge it."""

    def settle(self) -> None:  # noqa: B027 - only a pass that writes has to
        """Flush written data to the disk, before another node reports it."""

    def close(self) -> None:
        """Close the inputs that the pass has opened on another node."""
        self.files.close()


@dataclass(frozen=True)
class CountPass(PlanPass):
    """Counts the statistics that merging needs.

    Attributes:
        results: of earlier passes, which some statistics need.
    """

    counted: Mapping[int, Sequence[Statistic]]
    results: Results

    def process(self, worker: Worker, batch: Batch) -> BlockResult:
        """Read the block of all inputs and count."""
        return worker.count(batch, self.counted[batch[0].tensor], self.results)


@dataclass(frozen=True)
class MergePass(PlanPass):
    """Merges and writes, and counts some statistics on the way.

    Attributes:
        tasks: for each tensor how every point merges it.
    """

    tasks: Sequence[tuple[Task, ...]]
    sink: Sink

    def process(self, worker: Worker, batch: Batch) -> BlockResult:
        """Read the block of all inputs, merge it, and write it for every point."""
        return worker.merge(batch[0], self.tasks, self.sink)

    @override
    def settle(self) -> None:
        self.sink.sync()

    @override
    def close(self) -> None:
        super().close()
        self.sink.close()


def in_order(
    plan: MergePlan, tensors: Sequence[int] | Mapping[int, object], before: int, *, apart: bool = False
) -> tuple[Run, ...]:
    """Blocks of tensors in the order of the output's files. Every second pass goes backwards, the last one forwards.

    So each begins with the blocks that the previous pass has read last, which are still in the page cache. Within a run
    all go forwards.

    Args:
        plan: the plan.
        tensors: indices of tensors.
        before: how many passes come after this one.
        apart: whether each block is a run.
    """
    resources = plan.resources
    blocks: list[Block] = []
    for index in tensors:
        tensor = plan.tensors[index]
        size, elements = tensor.block(resources.block_elements), tensor.base.elements
        blocks += [Block(index, start, min(start + size, elements)) for start in range(0, elements, size)]

    def operator(block: Block) -> Hashable:
        return plan.tensors[block.tensor].recorded

    def share(block: Block) -> int:
        return share_of(plan.tensors[block.tensor], block)

    in_bytes = 0 if apart else resources.run_bytes
    runs = tuple(
        tuple((block,) for block in run)
        for _, of_operator in groupby(blocks, operator)
        for run in in_runs(of_operator, share, in_bytes)
    )
    return runs[::-1] if before % 2 else runs


def in_turn(runs: Iterable[T], operator: Callable[[T], Hashable], count: int) -> Iterator[T]:
    """Runs of `count` operators in turn, so that each worker makes another one, where all would wait for the same.

    Runs without an operator keep their order.
    """
    groups: dict[Hashable, deque[T]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(operator(run) or number, deque()).append(run)
    waiting = iter(groups.values())
    queue = deque(islice(waiting, count))
    while queue:
        group = queue.popleft()
        yield group.popleft()
        queue.extend([group] if group else islice(waiting, 1))
