"""Blocks side by side in threads, with their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Generic, TypeVar

Own = TypeVar("Own")
Task = TypeVar("Task")
Result = TypeVar("Result")


class Pool(Generic[Own]):
    """Threads that each own something, such as open files and buffers.

    Args:
        workers: how many threads.
        make: makes what a thread owns, in that thread.
    """

    def __init__(self, workers: int, make: Callable[[], Own]) -> None:
        self._workers = workers
        self._make = make

    def map(self, work: Callable[[Own, Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results in the order of the tasks. Few are begun before the results of earlier ones have been taken."""
        mine = local()

        def run(task: Task) -> Result:
            if not hasattr(mine, "own"):
                mine.own = self._make()
            return work(mine.own, task)

        pool = ThreadPoolExecutor(self._workers, "ramerge")
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(run, task))
                if len(waiting) > 2 * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
