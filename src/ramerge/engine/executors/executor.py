"""Ways to map a function over blocks. They know nothing of merging."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

Worker = TypeVar("Worker")
Block = TypeVar("Block")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs `work` on every block, with workers that each own something: buffers, open files."""

    def map(
        self,
        worker: Callable[[Callable[[Result], None]], AbstractContextManager[Worker]],
        work: Callable[[Worker, Block], Result],
        blocks: Iterable[Block],
    ) -> Generator[Result, None, None]:
        """Results as they come, in any order.

        A worker is given a function that hands over further results from its thread, even in the middle of a block.

        It ends with the first error, or when it is closed. Then every worker has stopped and released its resources.
        """
        ...
