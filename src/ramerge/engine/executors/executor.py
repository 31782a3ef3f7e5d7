"""Ways to map a function over blocks. They know nothing of merging."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

Worker = TypeVar("Worker")
Block = TypeVar("Block")
Result = TypeVar("Result")

Elsewhere = Callable[[], AbstractContextManager[Callable[[], None]]]
"""What another process that works has around its workers. It gives a function that brings what they have written to
the disk, which is called before their results are handed over."""


@contextmanager
def bare() -> Iterator[Callable[[], None]]:
    """Nothing around the workers."""
    yield lambda: None


def in_runs(blocks: Iterable[Block], nbytes: Callable[[Block], int], size: int) -> Iterator[list[Block]]:
    """Blocks one after another, as many as have `size` bytes together; at least one."""
    run: list[Block] = []
    left = size
    for block in blocks:
        of_block = nbytes(block)
        if run and of_block > left:
            yield run
            run, left = [], size
        run.append(block)
        left -= of_block
    if run:
        yield run


class Executor(Protocol):
    """Runs `work` on every block, with workers that each own something: buffers, open files.

    A block is whatever one worker does at a stretch, and has any number of results.
    """

    def map(
        self,
        worker: Callable[[Callable[[Result], None]], AbstractContextManager[Worker]],
        work: Callable[[Worker, Block], Iterable[Result]],
        blocks: Iterable[Block],
        elsewhere: Elsewhere = bare,
    ) -> Generator[Result, None, None]:
        """Results as they come, in any order.

        `elsewhere` is used by executors whose workers are in other processes. There, everything open that `worker` and
        `work` hold must open itself again when it is used.

        A worker is given a function that hands over further results from its thread, even in the middle of a block.

        It ends with the first error, or when it is closed. Then every worker has stopped and released its resources.
        """
        ...
