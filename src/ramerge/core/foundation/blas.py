"""The threads of BLAS, which all threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_holders = 0
_before: dict[str, tuple[Any, int]] = {}
"""By file, each library that is held, and the threads that it had."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread, for each thread that works with it.

    OpenBLAS has one limit for the process: what it had before comes back when the last of all threads has ended. MKL
    has one for each thread.
    """
    global _holders
    libraries = _libraries()
    with _lock:
        for library in libraries:  # some may have been loaded since the first thread came
            _before.setdefault(library.filepath, (library, library.get_num_threads()))
            _set(library, 1)
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                for library, number in _before.values():
                    _set(library, number)
                _before.clear()


def _libraries() -> list[Any]:
    import threadpoolctl  # looks at all loaded libraries, which other merges need not wait for

    return [each for each in threadpoolctl.ThreadpoolController().lib_controllers if each.user_api == "blas"]


def _set(library: Any, number: int) -> None:
    # since threadpoolctl 3.8, the limits that all threads but the first set for OpenBLAS are ignored without a word
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)
