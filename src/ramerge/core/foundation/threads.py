"""Runs tasks concurrently with results in order, and limits the threads of BLAS, which a process shares."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Own = TypeVar("Own")
Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_threads(
    workers: int, make: Callable[[], Own], work: Callable[[Own, Task], Result], tasks: Iterable[Task]
) -> Iterator[Result]:
    """Yield results in the order of the tasks. Only a few tasks are started before earlier results are taken.

    Args:
        workers: the number of threads.
        make: called in each thread to create its own resources, such as open files and buffers.
        work: processes a task with the thread's resources.
        tasks: the tasks.
    """
    mine = threading.local()

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


_lock = threading.Lock()
_holders = 0
_before: dict[str, tuple[Any, int]] = {}
"""The libraries that are limited to one thread, by file, with their previous number of threads."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block, limit BLAS to one thread. Each thread that uses BLAS enters a block.

    OpenBLAS has one limit for the process, which is restored when the last thread leaves its block. MKL has a limit for
    each thread.
    """
    global _holders
    libraries = _loaded_libraries()
    with _lock:
        for library in libraries:  # libraries may have been loaded since the first thread entered
            _before.setdefault(library.filepath, (library, library.get_num_threads()))
            _set_threads(library, 1)
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                for library, number in _before.values():
                    _set_threads(library, number)
                _before.clear()


def _loaded_libraries() -> list[Any]:
    import threadpoolctl  # looks at all loaded libraries, which other merges need not wait for

    return [each for each in threadpoolctl.ThreadpoolController().lib_controllers if each.user_api == "blas"]


def _set_threads(library: Any, number: int) -> None:
    # since threadpoolctl 3.8, the limits that all threads but the first set for OpenBLAS are ignored without a word
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)
