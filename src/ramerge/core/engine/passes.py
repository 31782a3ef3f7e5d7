"""The passes over a plan's inputs, as values.

An executor takes a pass, opens workers, and calls `process` for each block. A pass can be sent to another node, because
all of its fields can be pickled.
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

from ramerge.core.engine.executors.executor import group_into_runs
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
    """Base class of the passes over a plan.

    Attributes:
        plan: the plan without its upload target, because credentials must not leave this process.
        files: the input files.
        label: the label of progress messages.
        batches: the blocks in processing order, grouped into runs; one worker processes a whole run.
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
        """Open the resources of one thread. `report` gets messages from within a block, such as a kernel's compilation.

        If workers solve for whole matrices or multiply by operators, BLAS gets one thread: there already is a worker
        for each processor, and the bytes of a result must not depend on the number of threads.
        """
        solves_matrices = any(tensor.matrix or tensor.recorded for tensor in self.plan.tensors)
        with (
            one_blas_thread() if solves_matrices else nullcontext(),
            notifying_compilation(lambda is_done: report(Compiling(is_done))),
        ):
            yield Worker(self.plan, self.files, self.operators, report)

    def prefetch(self, worker: Worker, run: Sequence[Batch]) -> None:
        """Tell a worker the blocks of its next run, so that it prefetches them."""
        worker.expect(run)

    @abstractmethod
    def process(self, worker: Worker, batch: Batch) -> BlockResult:
        """Let the worker read a batch of blocks, and count or merge it."""

    def settle(self) -> None:  # noqa: B027 - only a pass that writes has to
        """Flush written data to the disk; called on another node, before it reports results."""

    def close(self) -> None:
        """Close the inputs that the pass has opened on another node."""
        self.files.close()


@dataclass(frozen=True)
class CountPass(PlanPass):
    """Counts the statistics that merging needs.

    Attributes:
        results: the results of earlier passes, which some statistics need.
    """

    counted: Mapping[int, Sequence[Statistic]]
    results: Results

    def process(self, worker: Worker, batch: Batch) -> BlockResult:
        """Read a batch of blocks from all inputs, and count it."""
        return worker.count(batch, self.counted[batch[0].tensor], self.results)


@dataclass(frozen=True)
class MergePass(PlanPass):
    """Merges and writes, and counts some statistics at the same time.

    Attributes:
        tasks: for each tensor, a task for each point.
    """

    tasks: Sequence[tuple[Task, ...]]
    sink: Sink

    def process(self, worker: Worker, batch: Batch) -> BlockResult:
        """Read a block from all inputs, merge it, and write it for every point."""
        return worker.merge(batch[0], self.tasks, self.sink)

    @override
    def settle(self) -> None:
        self.sink.sync()

    @override
    def close(self) -> None:
        super().close()
        self.sink.close()


def runs_in_file_order(
    plan: MergePlan, tensors: Sequence[int] | Mapping[int, object], before: int, *, apart: bool = False
) -> tuple[Run, ...]:
    """Return runs of blocks of tensors in the order of the output's files, reversed in every second pass.

    The last pass goes forwards. So each pass begins with the blocks that the previous pass read last, which are still
    in the page cache. Blocks within a run always go forwards.

    Args:
        plan: the plan.
        tensors: indices of tensors.
        before: the number of passes that follow this one.
        apart: whether each block is a run of its own.
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
        for run in group_into_runs(of_operator, share, in_bytes)
    )
    return runs[::-1] if before % 2 else runs


def interleave_operators(runs: Iterable[T], operator: Callable[[T], Hashable], count: int) -> Iterator[T]:
    """Yield runs of `count` operators in turn, so that workers compute different operators instead of waiting for one.

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
