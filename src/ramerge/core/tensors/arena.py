"""The memory of one worker, allocated once and handed out in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

# Each array in a worker's buffer begins at a cache line, a page and a few lines after the end of the previous array.
# Large arrays at distances of a power of two are read at half the speed, presumably because they compete for the same
# cache sets and memory banks. `benchmarks/kernels.py` measures both.
CACHE_LINE = 64
STAGGER = 4096 + 5 * CACHE_LINE

Bytes = NDArray[np.uint8]
"""A part of an arena's memory; arrays of other dtypes are views of it."""


def room(size: int) -> int:
    """Bytes that an array of `size` bytes takes in an arena, including gaps."""
    return -(-size // CACHE_LINE) * CACHE_LINE + STAGGER


class Arena:
    """Memory that is allocated once, and handed out in order.

    If more is taken than it has, separate arrays are allocated; `excess_count` counts them.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self._memory = np.empty(nbytes, np.uint8)
        self._used_bytes = 0
        self.excess_count: int = 0

    def take(self, size: int) -> Bytes:
        """Return the next `size` bytes, which are not initialized."""
        start = self._used_bytes
        self._used_bytes += room(size)
        if self._used_bytes <= self._memory.size:
            return self._memory[start : start + size]
        self.excess_count += 1
        return np.empty(size, np.uint8)

    def clear(self) -> None:
        """Free all memory that was taken."""
        self._used_bytes = 0

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """At the end of the `with` block, free all memory that was taken inside it."""
        used_bytes = self._used_bytes
        try:
            yield
        finally:
            self._used_bytes = used_bytes
