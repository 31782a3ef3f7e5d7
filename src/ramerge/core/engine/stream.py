"""Yields merged tensors one after another from a merging thread, which waits while the caller uses a tensor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import TypeAlias

from ramerge.core.engine.record import Record
from ramerge.core.engine.sinks import MergedTensor
from ramerge.core.foundation.progress import Listener, Progress

_Work: TypeAlias = Callable[[Callable[[MergedTensor], None], Listener], tuple[Record, ...]]
"""A merge that passes tensors to its first argument and progress to its second."""


class TensorStream(Iterator[MergedTensor]):
    """An iterator over merged tensors. Merging starts when the first is taken, and waits while you use a tensor.

    At most two tensors are in memory at a time, however slow your loop is. Leaving the loop early stops the merge.

    Attributes:
        records: the record of each point; empty until the iterator is exhausted.

    Example:
        >>> plan = ramerge.plan("recipe.yaml")
        >>> with plan.tensors() as tensors:
        ...     first = next(tensors)
        >>> first.name, first.torch().dtype  # doctest: +SKIP
        ('lm_head.weight', torch.bfloat16)
    """

    records: tuple[Record, ...]

    def __init__(self, work: _Work, listen: Listener) -> None:
        self.records = ()
        self._tensors = _merged_tensors(work, listen)

    def __next__(self) -> MergedTensor:
        try:
            return next(self._tensors)
        except StopIteration as end:
            self.records = self.records or end.value or ()
            raise

    def close(self) -> None:
        """Stop the merge if it is still running."""
        self._tensors.close()

    def __enter__(self) -> TensorStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _ClosedError(Exception):
    """Raised in the merging thread when the caller takes no further tensors."""


def _merged_tensors(work: _Work, listen: Listener) -> Generator[MergedTensor, None, tuple[Record, ...]]:
    """Yield the tensors and return the records. The merging thread holds no reference to the stream."""
    events: SimpleQueue[MergedTensor | Progress | BaseException | tuple[Record, ...]] = SimpleQueue()
    consumption, closing = threading.Semaphore(0), threading.Event()

    def report(event: MergedTensor | Progress) -> None:
        if closing.is_set():
            raise _ClosedError
        events.put(event)

    def give(tensor: MergedTensor) -> None:
        report(tensor)
        consumption.acquire()

    def run() -> None:
        try:
            events.put(work(give, report))
        except BaseException as error:
            events.put(error)

    merging = threading.Thread(target=run, name="ramerge-tensors", daemon=True)
    merging.start()
    try:
        while True:
            message = events.get()
            if isinstance(message, MergedTensor):
                yield message
                consumption.release()
            elif isinstance(message, Progress):
                listen(message)
            elif isinstance(message, BaseException):
                raise message
            else:
                return message
    finally:
        closing.set()
        consumption.release()
        merging.join()
