"""What differs between two arrays of words, and the way back: positions, and the xor of the words at these.

Words are the bits of elements of any dtype, in 1, 2, 4 or 8 bytes. They are compared as bits: -0.0 differs from 0.0,
and a NaN from one with another payload. Positions have two forms:

    bitmap   uint64, element i at bit i % 64 of word i // 64; on little-endian machines bit i % 8 of byte i // 8
    gaps     uint8: for each position its distance to the one after the previous position; 255 means "255, and the next
             value is added"

Positions in gaps can only ascend. All loops check that positions and values fit the words before they write to them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native

Words = NDArray[Any]
Bytes = NDArray[np.uint8]
Bitmap = NDArray[np.uint64]

WIDTHS = (1, 2, 4, 8)

_COMPARE = """
def {name}(base, other, bitmap, values):
    count, size, one = np.uint64(0), np.uint64(base.size), np.uint64(1)
    for word in range(np.uint64(bitmap.size)):
        start, mask = word * np.uint64(64), np.uint64(0)
        if start + np.uint64(64) <= size:
            mask = differing(base, other, start)
        else:
            for i in range(size - start):
                differs = one if base[start + i] != other[start + i] else np.uint64(0)
                mask |= differs << i
        bitmap[word] = mask
        while mask != np.uint64(0):
            place = start + trailing_zeros(mask)
            values[count] = base[place] ^ other[place]
            count += one
            mask &= mask - one
    return count
"""

_TO_GAPS = """
def {name}(bitmap, gaps):
    count, after, one, most = np.uint64(0), np.uint64(0), np.uint64(1), np.uint64(255)
    for word in range(np.uint64(bitmap.size)):
        start, mask = word * np.uint64(64), bitmap[word]
        while mask != np.uint64(0):
            place = start + trailing_zeros(mask)
            gap = place - after
            while gap >= most:
                gaps[count] = most
                count += one
                gap -= most
            gaps[count] = gap
            count += one
            after = place + one
            mask &= mask - one
    return count
"""

_PATCH_BITMAP = """
def {name}(words, bitmap, values):
    count, size, one = np.uint64(0), np.uint64(words.size), np.uint64(1)
    for word in range(np.uint64(bitmap.size)):
        start, mask = word * np.uint64(64), bitmap[word]
        if mask == np.uint64(0):
            continue
        if start + np.uint64(64) - leading_zeros(mask) > size:
            return -1
        if count + ones(mask) > np.uint64(values.size):
            return -1
        while mask != np.uint64(0):
            words[start + trailing_zeros(mask)] ^= values[count]
            count += one
            mask &= mask - one
    return count
"""

_PATCH_GAPS = """
def {name}(words, gaps, values):
    count, place, one, most = np.uint64(0), np.uint64(0), np.uint64(1), np.uint64(255)
    open = False
    for i in range(np.uint64(gaps.size)):
        gap = np.uint64(gaps[i])
        place += gap
        open = gap == most
        if open:
            continue
        if place >= np.uint64(words.size) or count >= np.uint64(values.size):
            return -1
        words[place] ^= values[count]
        count += one
        place += one
    return -1 if open else count
"""

_SPLIT = """
def {name}(words, planes):
    size = np.uint64(words.size)
    for i in range(size):
        {split}
    return 0
"""

_JOIN = """
def {name}(planes, words):
    size = np.uint64(words.size)
    for i in range(size):
        words[i] = {join}
    return 0
"""


def compare(base: Words, other: Words, bitmap: Bitmap, values: Words) -> int:
    """Find the words that differ.

    Args:
        base: 1-D, unsigned integers of any width.
        other: of the same type and length.
        bitmap: filled; `bitmap_words(base.size)` long.
        values: filled with base ^ other of the words that differ, in order; as long as `base`, of its type.

    Returns:
        How many differ.
    """
    return int(_kernel("compare", _COMPARE, base.itemsize, "wwbw")(base, other, bitmap, values))


def to_gaps(bitmap: Bitmap, gaps: Bytes) -> int:
    """Write the positions of a bitmap as gaps.

    Args:
        bitmap: uint64.
        gaps: filled; uint8, as long as `most_gaps` says.

    Returns:
        How many values were written.
    """
    return int(_kernel("to_gaps", _TO_GAPS, 1, "bp")(bitmap, gaps))


def patch_bitmap(words: Words, bitmap: Bitmap, values: Words) -> bool:
    """Xor `values` into the words that a bitmap names.

    Args:
        words: 1-D, unsigned integers; changed.
        bitmap: uint64, `bitmap_words(words.size)` long.
        values: of the type of `words`, one for each position.

    Returns:
        Whether positions lie inside of `words`, and are as many as values. If not, `words` hold anything.
    """
    return bool(_kernel("patch_bitmap", _PATCH_BITMAP, words.itemsize, "wbw")(words, bitmap, values) == values.size)


def patch_gaps(words: Words, gaps: Bytes, values: Words) -> bool:
    """As `patch_bitmap`, for positions in gaps."""
    return bool(_kernel("patch_gaps", _PATCH_GAPS, words.itemsize, "wpw")(words, gaps, values) == values.size)


def split_planes(words: Words, planes: Bytes) -> None:
    """Write the lowest bytes of all words, then the next ones, and so on.

    Args:
        words: 1-D, unsigned integers.
        planes: filled; uint8, as many bytes as `words`.
    """
    width = words.itemsize
    split = "\n        ".join(f"planes[np.uint64({k}) * size + i] = words[i] >> {8 * k}" for k in range(width))
    _kernel("split_planes", _SPLIT.replace("{split}", split), width, "wp")(words, planes)


def join_planes(planes: Bytes, words: Words) -> None:
    """The words that `split_planes` wrote as planes.

    Args:
        planes: uint8, as many bytes as `words`.
        words: filled; 1-D, unsigned integers.
    """
    width = words.itemsize
    join = " | ".join(f"(np.uint{8 * width}(planes[np.uint64({k}) * size + i]) << {8 * k})" for k in range(width))
    _kernel("join_planes", _JOIN.replace("{join}", join), width, "pw")(planes, words)


def bitmap_words(size: int) -> int:
    """Words of the bitmap of so many elements."""
    return -(-size // 64)


def most_gaps(size: int, moved: int) -> int:
    """The most values that the gaps of `moved` of `size` positions have."""
    return moved + size // 255


@cache
def _kernel(name: str, source: str, width: int, takes: str) -> Any:
    """A loop for words of `width` bytes; `takes` has a letter for each argument: words, bitmap, plain bytes."""
    kinds = {"w": f"u{8 * width}[]", "b": "u64[]", "p": "u8[]"}
    name = f"{name}_{8 * width}"
    return native.load(name, source.replace("{name}", name), tuple(kinds[letter] for letter in takes), "i64")
