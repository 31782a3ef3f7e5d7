"""The threads of BLAS, which all threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_held = 0
_limits: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread; what it had before comes back when the last of several merges at a time has ended."""
    import threadpoolctl  # looks at all loaded libraries, which other merges need not wait for

    global _held, _limits
    with _lock:
        if not _held:
            _limits = threadpoolctl.threadpool_limits(1, "blas")
        _held += 1
    try:
        yield
    finally:
        with _lock:
            _held -= 1
            if not _held:
                _limits.restore_original_limits()
