"""A pass around another pass, which does something more for each block. It can be sent to another node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wrapped:
    """See above.

    Attributes:
        work: the pass.
        around: called with a function that processes the block, the worker, and the block; gives the result.
    """

    work: Any
    around: Callable[[Callable[[Any, Any], Any], Any, Any], Any]

    def open_worker(self, report: Any) -> Any:
        return self.work.open_worker(report)

    def prefetch(self, worker: Any, run: Any) -> None:
        self.work.prefetch(worker, run)

    def process(self, worker: Any, block: Any) -> Any:
        return self.around(self.work.process, worker, block)

    def settle(self) -> None:
        self.work.settle()

    def close(self) -> None:
        self.work.close()


@dataclass(frozen=True)
class Around:
    """An executor whose blocks are processed with something more.

    Attributes:
        executor: does the work.
        around: see `Wrapped`.
    """

    executor: Any
    around: Callable[[Callable[[Any, Any], Any], Any, Any], Any]

    def run(self, work: Any, runs: Any, recorder: Any) -> Any:
        """See `Executor.run`."""
        return self.executor.run(Wrapped(work, self.around), runs, recorder)
