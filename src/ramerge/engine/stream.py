"""Merged tensors one after another: the work is done in a thread, which waits while a tensor is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import TypeAlias

from ramerge.engine.record import Record
from ramerge.engine.sinks import MergedTensor
from ramerge.foundation.progress import Listener, Progress

Work: TypeAlias = Callable[[Callable[[MergedTensor], None], Listener], tuple[Record, ...]]
"""Passes tensors to the first function, and progress to the second."""


class TensorStream(Iterator[MergedTensor]):
    """Merged tensors, one after another. Merging begins with the first one, and waits while a tensor is used.

    At most two tensors are in memory at a time, however slow the loop is. Leaving the loop early stops the merge.

    Attributes:
        records: what the merge did, one record for each point; empty until the last tensor was taken.

    Example:
        >>> plan = ramerge.plan("recipe.yaml")
        >>> with plan.tensors() as tensors:
        ...     first = next(tensors)
        >>> first.name, first.torch().dtype  # doctest: +SKIP
        ('lm_head.weight', torch.bfloat16)
    """

    def __init__(self, work: Work, listen: Listener) -> None:
        self.records: tuple[Record, ...] = ()
        self._work = work
        self._listen = listen
        self._channel: _Channel | None = None

    def __next__(self) -> MergedTensor:
        if self._channel is None:
            self._channel = _Channel()
            threading.Thread(target=self._channel.run, args=(self._work,), name="ramerge-tensors", daemon=True).start()
        else:
            self._channel.resume()
        while True:
            found = self._channel.events.get()
            if isinstance(found, MergedTensor):
                return found
            if isinstance(found, Progress):
                self._listen(found)
                continue
            self._channel.events.put(())  # a further call ends as well
            if isinstance(found, BaseException):
                raise found
            self.records = self.records or found
            raise StopIteration

    def close(self) -> None:
        """Stop the merge, if it has not ended."""
        if self._channel is not None:
            self._channel.close()

    def __enter__(self) -> TensorStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _ClosedError(Exception):
    """The loop takes no further tensors."""


class _Channel:
    """What the thread that merges and the loop that takes share. The thread does not hold the stream itself."""

    def __init__(self) -> None:
        self.events: SimpleQueue[MergedTensor | Progress | BaseException | tuple[Record, ...]] = SimpleQueue()
        self._taken = threading.Semaphore(0)
        self._ended = threading.Event()
        self._closed = False

    def run(self, work: Work) -> None:
        try:
            self.events.put(work(self._give, self._report))
        except BaseException as error:
            self.events.put(error)
        finally:
            self._ended.set()

    def resume(self) -> None:
        self._taken.release()

    def close(self) -> None:
        self._closed = True
        self._taken.release()
        self._ended.wait()

    def _give(self, tensor: MergedTensor) -> None:
        self._report(tensor)
        self._taken.acquire()

    def _report(self, event: MergedTensor | Progress) -> None:
        if self._closed:
            raise _ClosedError
        self.events.put(event)
