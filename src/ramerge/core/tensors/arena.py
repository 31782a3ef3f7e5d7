"""Memory of one worker, allocated once and handed out in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

# Every array in a worker's buffer begins at a cache line, a page and a few lines after the end of the previous array.
# Large arrays at distances of a power of two are read at half the speed, presumably because they compete for the same
# sets of the caches and the same banks of memory. `benchmarks/kernels.py` measures both.
CACHE_LINE = 64
STAGGER = 4096 + 5 * CACHE_LINE

Bytes = NDArray[np.uint8]
"""Memory of an arena, of which other arrays are views."""


def room(size: int) -> int:
    """Bytes of an arena that an array of `size` bytes needs."""
    return -(-size // CACHE_LINE) * CACHE_LINE + STAGGER


class Arena:
    """Memory allocated in order.

    If more is taken than planned, arrays of their own are allocated, and `excess_count` is their number.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self._memory = np.empty(nbytes, np.uint8)
        self._used_bytes = 0
        self.excess_count: int = 0

    def take(self, size: int) -> Bytes:
        """The next `size` bytes; they hold anything."""
        start = self._used_bytes
        self._used_bytes += room(size)
        if self._used_bytes <= self._memory.size:
            return self._memory[start : start + size]
        self.excess_count += 1
        return np.empty(size, np.uint8)

    def clear(self) -> None:
        """Take everything back."""
        self._used_bytes = 0

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Free at the end all memory taken inside."""
        used_bytes = self._used_bytes
        try:
            yield
        finally:
            self._used_bytes = used_bytes
