"""Blocks side by side in threads, with their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import TypeVar

Own = TypeVar("Own")
Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_threads(
    workers: int, make: Callable[[], Own], work: Callable[[Own, Task], Result], tasks: Iterable[Task]
) -> Iterator[Result]:
    """Results in the order of the tasks. Few are begun before the results of earlier ones have been taken.

    Args:
        workers: how many threads.
        make: makes what a thread owns, such as open files and buffers, in that thread.
        work: gives the result of a task.
        tasks: the tasks.
    """
    mine = local()

    def run(task: Task) -> Result:
        if not hasattr(mine, "own"):
            mine.own = make()
        return work(mine.own, task)

    pool = ThreadPoolExecutor(workers, "ramerge")
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(run, task))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
