"""A worker of several threads: each merges a block of a run, so that a device solves for their matrices together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from typing_extensions import override

from ramerge.core.engine.operators import Operators
from ramerge.core.engine.result_codec import BlockResult
from ramerge.core.engine.worker import Compiling, Message, Sink, Task, Worker
from ramerge.core.kernels.native import notifying_compilation
from ramerge.core.linalg.together import Member, at_once
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
        def merge(worker: Worker, block: Block, member: Member) -> BlockResult:
            worker.member = member
            try:
                with notifying_compilation(lambda done: self._tell(Compiling(done))):
                    return Worker.merge(worker, block, tasks, sink)
            finally:
                worker.member = None

        pairs = zip(self._workers, self._run, strict=False)
        results = at_once([partial(merge, worker, block) for worker, block in pairs])
        return dict(zip(self._run, results, strict=True))
