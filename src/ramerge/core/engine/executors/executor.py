"""The interface between a pass and its executor, independent of merging."""

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
"""Blocks that one worker processes one after another, each with its number in the pass."""


class Pass(Protocol[Input, Output]):
    """Work on blocks, as a value that can be sent to another node, where its files are opened again."""

    def open_worker(self, report: Callable[[object], None]) -> AbstractContextManager[Any]:
        """Open the buffers and files of one thread. The worker may call `report` at any time, even within a block."""
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
    """Records the result of each block, as `PassJournal` does."""

    def record(self, number: int, result: Entry) -> None:
        """Record the result of a block; called from any thread, as early as possible."""
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
        """Yield each block as `Processed` once it is recorded, in any order, and reports of workers unchanged.

        The generator ends with the first error, or when it is closed; by then, every worker has stopped and released
        its resources.
        """
        ...


class Unrecorded:
    """A recorder that discards results, for work that is never resumed."""

    def record(self, number: int, result: object) -> None:
        """Do nothing."""


def group_into_runs(blocks: Iterable[Block], nbytes: Callable[[Block], int], size: int) -> Iterator[list[Block]]:
    """Group consecutive blocks into runs of at most `size` bytes, but at least one block."""
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
