"""Threads that take blocks from one list. Kernels, reads and writes release the GIL, so they run side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import TypeVar

from ramerge.engine.executors.executor import Elsewhere, bare

Worker = TypeVar("Worker")
Block = TypeVar("Block")
Result = TypeVar("Result")


class ThreadExecutor:
    """An executor of `workers` threads. Blocks are begun in order; more threads than processors hide disk waits."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"at least one worker is needed, not {workers}")
        self.workers = workers

    def map(
        self,
        worker: Callable[[Callable[[Result], None]], AbstractContextManager[Worker]],
        work: Callable[[Worker, Block], Iterable[Result]],
        blocks: Iterable[Block],
        _elsewhere: Elsewhere = bare,
    ) -> Generator[Result, None, None]:
        """See `Executor.map`."""
        remaining, lock, stop = iter(blocks), threading.Lock(), threading.Event()
        results: SimpleQueue[Result | _Failure | _Done] = SimpleQueue()

        def take() -> tuple[Block] | None:
            with lock:
                return next(((block,) for block in remaining), None)

        def run() -> None:
            try:
                with worker(results.put) as own:
                    while not stop.is_set() and (taken := take()) is not None:
                        for result in work(own, taken[0]):
                            results.put(result)
                            if stop.is_set():
                                break
            except BaseException as error:
                results.put(_Failure(error))
            finally:
                results.put(_Done())

        threads = [
            threading.Thread(target=run, name=f"ramerge-{number}", daemon=True) for number in range(self.workers)
        ]
        running = 0
        try:
            while running < len(threads) and _starts(threads[running], needed=not running):
                running += 1
            while running:
                result = results.get()
                if isinstance(result, _Done):
                    running -= 1
                elif isinstance(result, _Failure):
                    raise result.error
                else:
                    yield result
        finally:
            stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


def _starts(thread: threading.Thread, *, needed: bool) -> bool:
    """Start a thread. Return whether the system allows it; if the thread is `needed`, raise otherwise."""
    try:
        thread.start()
    except RuntimeError:
        if needed:
            raise
        return False
    return True


class _Done:
    """A worker has ended."""


class _Failure:
    """A worker has failed."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
