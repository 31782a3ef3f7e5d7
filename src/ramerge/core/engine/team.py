"""A worker of several threads: each merges a block of a run, so that a device solves for their matrices together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from typing_extensions import override

from ramerge.core.engine.operators import Operators
from ramerge.core.engine.result_codec import BlockResult
from ramerge.core.engine.worker import Compiling, Message, Sink, Task, Worker
from ramerge.core.kernels.native import notifying_compilation
from ramerge.core.linalg.together import Company, Member
from ramerge.core.planning.model import Batch, Block, MergePlan
from ramerge.core.tensors.reader import Files


class Team(Worker):
    """A worker that merges all blocks of a run when the first one is asked for.

    Args:
        plan: the plan, in which runs have at most `together` blocks.
        files: see `Worker`.
        operators: see `Worker`.
        tell: see `Worker`.
    """

    def __init__(self, plan: MergePlan, files: Files, operators: Operators, tell: Callable[[Message], None]) -> None:
        super().__init__(plan, files, operators, tell)
        more = plan.resources.together - 1
        self._workers = [self, *(Worker(plan, files, operators, tell) for _ in range(more))]
        self._run: Sequence[Block] = ()
        self._merged: dict[Block, BlockResult] = {}

    @override
    def expect(self, batches: Sequence[Batch]) -> None:
        self._run = [batch[0] for batch in batches]
        for worker, batch in zip(self._workers, batches, strict=False):
            Worker.expect(worker, [batch])

    @override
    def merge(self, block: Block, tasks: Sequence[Sequence[Task]], sink: Sink) -> BlockResult:
        if len(self._run) < 2:
            return super().merge(block, tasks, sink)
        if block not in self._merged:
            self._merged = self._merge_all(tasks, sink)
        return self._merged.pop(block)

    def _merge_all(self, tasks: Sequence[Sequence[Task]], sink: Sink) -> dict[Block, BlockResult]:
        company, results = Company(len(self._run)), dict[Block, Future[BlockResult]]()

        def merge(number: int, block: Block) -> BlockResult:
            worker = self._workers[number]
            worker.member = Member(company, number)
            try:
                with notifying_compilation(lambda done: self._tell(Compiling(done))):
                    return Worker.merge(worker, block, tasks, sink)
            finally:
                worker.member = None
                company.leave()

        with ThreadPoolExecutor(len(self._run), "ramerge-together") as threads:
            try:
                for number, block in enumerate(self._run):
                    results[block] = threads.submit(merge, number, block)
            finally:
                for _ in self._run[len(results) :]:  # the system allows no more threads
                    company.leave()
        return {block: result.result() for block, result in results.items()}
