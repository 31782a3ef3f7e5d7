"""The threads of BLAS, which all threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_held = 0
_before: list[int] = []


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread, for each thread that works with it.

    OpenBLAS has one limit for the process: what it had before comes back when the last of all threads has ended. MKL
    has one for each thread.
    """
    global _held, _before
    libraries = _libraries()
    with _lock:
        if not _held:
            _before = [library.get_num_threads() for library in libraries]
        for library in libraries:
            _set(library, 1)
        _held += 1
    try:
        yield
    finally:
        with _lock:
            _held -= 1
            if not _held:
                for library, number in zip(libraries, _before, strict=False):
                    _set(library, number)


def _libraries() -> list[Any]:
    import threadpoolctl  # looks at all loaded libraries, which other merges need not wait for

    return [each for each in threadpoolctl.ThreadpoolController().lib_controllers if each.user_api == "blas"]


def _set(library: Any, number: int) -> None:
    # since threadpoolctl 3.8, the limits that all threads but the first set for OpenBLAS are ignored without a word
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)
