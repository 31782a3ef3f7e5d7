"""Runs a pass on threads that share one list of runs. Kernels, reads and writes release the GIL, so they overlap."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, TypeVar

from ramerge.core.engine.executors.executor import NumberedRun, Pass, Processed, Recorder

Block = TypeVar("Block")
Result = TypeVar("Result")


class ThreadExecutor:
    """An executor of `workers` threads, which take runs in order. More threads than processors hide disk waits."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"at least one worker is needed, not {workers}")
        self.workers = workers

    def run(
        self, work: Pass[Block, Result], runs: Sequence[NumberedRun[Block]], recorder: Recorder[Result]
    ) -> Generator[Processed[Result] | Any, None, None]:
        remaining, lock, stop = iter(runs), threading.Lock(), threading.Event()
        # bounded, so that workers wait for the consumer: the counts of one block may be megabytes
        results: Queue[Any] = Queue(self.workers)

        def take() -> NumberedRun[Block] | None:
            with lock:
                return next(remaining, None)

        def process_all() -> None:
            try:
                with work.open_worker(results.put) as worker:
                    while not stop.is_set() and (run := take()) is not None:
                        work.prefetch(worker, [block for _, block in run])
                        for number, block in run:
                            result = work.process(worker, block)
                            recorder.record(number, result)
                            results.put(Processed(number, result))
                            if stop.is_set():
                                break
            except BaseException as error:
                results.put(error)
            finally:
                results.put(None)  # this thread has ended

        threads = [
            threading.Thread(target=process_all, name=f"ramerge-{number}", daemon=True)
            for number in range(self.workers)
        ]
        running = 0
        try:
            for thread in threads:
                try:
                    thread.start()
                except RuntimeError:  # the system allows no more threads
                    if not running:
                        raise
                    break
                running += 1
            while running:
                result = results.get()
                if result is None:
                    running -= 1
                elif isinstance(result, BaseException):
                    raise result
                else:
                    yield result
        finally:
            stop.set()
            for thread in threads:
                while thread.is_alive():  # it may wait for room in the queue, which is no longer read
                    with suppress(Empty):
                        results.get(timeout=0.01)
