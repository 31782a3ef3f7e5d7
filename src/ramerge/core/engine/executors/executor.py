"""Ways to carry out a pass. They have no notion of merging."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

Block = TypeVar("Block")
Result = TypeVar("Result")
Input = TypeVar("Input", contravariant=True)
Output = TypeVar("Output", covariant=True)
Entry = TypeVar("Entry", contravariant=True)

NumberedRun: TypeAlias = Sequence[tuple[int, Block]]
"""Blocks that a worker takes one after another, with their numbers in the pass."""


class Pass(Protocol[Input, Output]):
    """Work on blocks, as a value that can be sent to another node. Open files in it open themselves again there."""

    def open_worker(self, report: Callable[[object], None]) -> AbstractContextManager[Any]:
        """Resources of one thread: buffers, open files. It may report at any time, even in the middle of a block."""
        ...

    def prefetch(self, worker: Any, run: Sequence[Input]) -> None:
        """Tell a worker which blocks it will process next."""
        ...

    def process(self, worker: Any, block: Input) -> Output:
        """Process a block, and return its result."""
        ...

    def settle(self) -> None:
        """Flush written data to the disk; called on another node, before results are handed over."""
        ...

    def close(self) -> None:
        """Close the files that the pass has opened on another node."""
        ...


class Recorder(Protocol[Entry]):
    """Writes down the result of each block, as `PassJournal` does."""

    def record(self, number: int, result: Entry) -> None:
        """Write down the result of a block; called from any thread, as early as possible."""
        ...


@dataclass(frozen=True)
class Processed(Generic[Result]):
    """A block that an executor has processed, and its result.

    Attributes:
        number: the block's number in the pass.
        result: the return value of `Pass.process`.
    """

    number: int
    result: Result


class Executor(Protocol):
    """Processes the blocks of a pass."""

    def run(
        self, work: Pass[Block, Result], runs: Sequence[NumberedRun[Block]], recorder: Recorder[Result]
    ) -> Generator[Processed[Result] | Any, None, None]:
        """Each block as `Processed`, after it was recorded, in any order; and what workers report, as it is.

        It ends with the first error, or when it is closed. Then every worker has stopped and released its resources.
        """
        ...


class Unrecorded:
    """A recorder of results that no later run needs."""

    def record(self, number: int, result: object) -> None:
        """Do nothing."""


def in_runs(blocks: Iterable[Block], nbytes: Callable[[Block], int], size: int) -> Iterator[list[Block]]:
    """Runs of blocks: one after another, as many as have `size` bytes together; at least one."""
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
