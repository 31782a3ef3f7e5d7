"""Ways to map a function over blocks. They know nothing of merging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

Worker = TypeVar("Worker")
Block = TypeVar("Block")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs `work` on every block, with workers that each own something: buffers, open files."""

    def map(
        self,
        worker: Callable[[], AbstractContextManager[Worker]],
        work: Callable[[Worker, Block], Result],
        blocks: Iterable[Block],
    ) -> Iterator[Result]:
        """Results as they come, in any order. The first error ends it, after every worker has let go of its own."""
        ...
