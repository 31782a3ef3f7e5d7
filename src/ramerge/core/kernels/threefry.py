"""Threefry-2x32 with 20 rounds, a stateless random number generator (Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011; Random123's threefry2x32, the generator of JAX).

It enciphers a counter of two 32-bit words under a key of two words. All additions are modulo 2^32. With a third key
word key0 ^ key1 ^ 0x1BD11BDA: add the first two key words; then 20 rounds of x += y, y = rotate_left(y, r) ^ x with r
from 13, 15, 26, 6, 17, 29, 16, 24 in turn; after every fourth round add the next two key words, going round, and the
number of such additions so far to y.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native

if TYPE_CHECKING:  # intrinsics, which compiled code sees
    add32: Any = None
    rotl32: Any = None
    xor32: Any = None

_PARITY = np.uint32(0x1BD11BDA)


def threefry(low: Any, high: Any, key0: Any, key1: Any) -> Any:
    """Return the two uint32 words of a counter's block. Only callable from compiled code."""
    keys = (key0, key1, xor32(xor32(key0, key1), _PARITY))
    x, y = add32(low, key0), add32(high, key1)
    for group in range(5):
        for rotation in (13, 15, 26, 6) if group % 2 == 0 else (17, 29, 16, 24):
            x = add32(x, y)
            y = xor32(rotl32(y, np.uint32(rotation)), x)
        x = add32(x, keys[(group + 1) % 3])
        y = add32(y, add32(keys[(group + 2) % 3], np.uint32(group + 1)))
    return x, y


def key_words(digest: bytes) -> tuple[int, int]:
    """Return the key in the first 8 bytes of a digest, little-endian."""
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def words(key: tuple[int, int], start: int, count: int) -> NDArray[np.uint32]:
    """Return words `start:start + count` of a key: word i is word i % 2 of the block for the 64-bit counter i // 2."""
    offset = start % 2
    result = np.empty(-(-(count + offset) // 2) * 2, np.uint32)
    _blocks(result, start // 2, *key)
    return result[offset : offset + count]


_BLOCKS = """
def blocks(out, first, key0, key1):
    for j in range(np.uint64(out.size) >> np.uint64(1)):
        counter = first + j
        low, high = np.uint32(counter), np.uint32(counter >> np.uint64(32))
        x, y = threefry(low, high, key0, key1)
        out[j + j] = x
        out[j + j + np.uint64(1)] = y
    return 0
"""
_blocks = native.deferred_kernel("blocks", _BLOCKS, ("u32[]", "u64", "u32", "u32"), {"threefry": threefry})
