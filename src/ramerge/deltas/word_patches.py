"""The compiled loops of `codec`: encode differences of two arrays of words as positions and xors, and apply them.

Words are the bits of elements of any dtype, in 1, 2, 4 or 8 bytes. They are compared as bits: -0.0 differs from 0.0,
and a NaN from a NaN with another payload. Positions have two forms:

    bitmap   uint64, element i at bit i % 64 of word i // 64; on little-endian machines bit i % 8 of byte i // 8
    gaps     uint8: for each position, its distance from the previous position + 1; 255 means "add 255, and go on
             with the next value"

Positions in gaps can only ascend. Most xors fit into fewer bytes than their words, so they are stored in the best
number of byte planes; words that do not fit follow. All loops check that positions and values fit the words
before they write to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS

Words = NDArray[Any]
Bytes = NDArray[np.uint8]
Bitmap = NDArray[np.uint64]
Spans = NDArray[np.uint64]
Positions = Literal["bitmaps", "gaps"]

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

# Each row of `spans` is a block, and one whose positions or values do not fit ends the loop.
_PATCH = """
def {name}({arguments}):
    {number}
    size, one = np.uint64(base.size), np.uint64(1)
    for row in range(np.uint64(spans.size) // np.uint64(4)):
        {which}
        at, count = row * np.uint64(4), np.uint64(0)
        positions, values, end, moved = spans[at], spans[at + one], spans[at + np.uint64(2)], spans[at + np.uint64(3)]
        escape = values + moved * {planes}
        if first > size or positions > values or escape > end or end > np.uint64(data.size):
            return row
        {changes}
        if count != moved or escape != end:
            return row
    return np.uint64(spans.size) // np.uint64(4)
"""

_BITMAP = """
full = np.uint64(64)
if values - positions != (stop - first + np.uint64(63)) // full * np.uint64(8):
    return row
for word in range((stop - first + np.uint64(63)) // full):
    start, mask = first + word * full, word_at(data, positions + word * np.uint64(8))
    if count + ones(mask) > moved:
        return row
    if start + full <= stop:
        {copy_full}
    elif mask != np.uint64(0) and start + full - leading_zeros(mask) > stop:
        return row
    else:
        {copy_rest}
    while mask != np.uint64(0):
        place = start + trailing_zeros(mask)
        mask &= mask - one
        {value}
        {change}
        count += one
"""

_GAPS = """
{copy}
place, open, most = first, False, np.uint64(255)
for i in range(positions, values):
    gap = np.uint64(data[i])
    place += gap
    open = gap == most
    if open:
        continue
    if place >= stop or count >= moved:
        return row
    {value}
    {change}
    count += one
    place += one
if open:
    return row
"""

_CHANGES = {"bitmaps": _BITMAP, "gaps": _GAPS}

_SPLIT = """
def {name}(xors, values):
    size, escape = np.uint64(xors.size), np.uint64(xors.size) * {planes}
    for i in range(size):
        value = np.uint64(xors[i])
        if value > {most}:
            {escaped}
            escape += {width}
            value = np.uint64(0)
        {split}
    return 0
"""


def compare(base: Words, other: Words, bitmap: Bitmap, values: Words) -> int:
    """Find the words that differ between two 1-D arrays of unsigned integers, of one type and length.

    Fills `bitmap`, of `bitmap_words(base.size)` words, and `values`, as long as `base` and of its type, with base ^
    other for the words that differ, in order. Returns the number of words that differ.
    """
    return int(_compare_kernel(base.itemsize)(base, other, bitmap, values))


def to_gaps(bitmap: Bitmap, gaps: Bytes) -> int:
    """Write the positions of a bitmap as gaps, at most `most_gaps` values; return the number of values written."""
    return int(_gaps_kernel()(bitmap, gaps))


def patch(positions: Positions, base: Words, spans: Spans, block: int, data: Bytes, planes: int, out: Words) -> int:
    """Copy blocks of words from `base` to `out`, with changes at the given positions.

    One call handles many blocks, because a thread that returns from a short call waits longer for Python's lock than
    the call took.

    Args:
        positions: the form of the positions.
        base: 1-D, unsigned integers: the words of all blocks.
        spans: shape (blocks, 4): where in `data` a block's positions begin, where its values begin, as `split` writes
            them, where these end, and how many words are changed.
        block: words per block, except the last.
        data: positions and values of all blocks.
        planes: as for `split`.
        out: as `base`; may be the same array.

    Returns:
        The number of blocks before the first whose positions or values do not fit; from that block on, the content of
        `out` is undefined.
    """
    kernel = _patch_kernel(positions, base.itemsize, planes)
    return int(kernel(base, spans.reshape(-1), block, data, out))


def fold(
    positions: Positions,
    format: str,
    words: Words,
    spans: Spans,
    block: int,
    data: Bytes,
    planes: int,
    weights: Sequence[float],
    total: NDArray[Any],
) -> int:
    """Change words in place as `patch` does, and add the weighted differences of their numbers to `total`.

    Several changes of the same words are made one after another, block by block, so that a block stays in the cache.

    Args:
        positions: the form of the positions.
        format: the numbers' format, a key of `kernels.element_formats.FORMATS`.
        words: as `base` of `patch`.
        spans: as for `patch`, for the first block in every change, then for the second, and so on.
        block, data, planes: as for `patch`.
        weights: one for each change, rounded to the type of `total`.
        total: float32, or float64 for F64; one number per word.

    Returns:
        As `patch`.
    """
    kernel = _fold_kernel(positions, format, planes)
    return int(kernel(words, spans.reshape(-1), block, data, np.array(weights, total.dtype), total))


def count_overflowing(xors: Words, planes: int) -> int:
    """Count the xors that do not fit into so many planes of bytes."""
    return int(np.count_nonzero(xors > _largest_in_planes(planes, xors.itemsize))) if planes < xors.itemsize else 0


def split(xors: Words, planes: int, values: Bytes) -> None:
    """Write the xors as planes of bytes, lowest bytes first; then xors that do not fit.

    For an xor with more bits, all bytes in the planes are 0, and its word follows the planes. Requires that no xor is
    0, that planes are from 1 to the bytes of a word, and that `values` has `values_size(...)` bytes.
    """
    _split_kernel(xors.itemsize, planes)(xors, values)


def values_size(updates: int, escapes: int, planes: int, width: int) -> int:
    """Return the bytes that `split` writes for `updates` xors of `width` bytes, of which `escapes` do not fit the
    planes.
    """
    return updates * planes + escapes * width


def bitmap_words(size: int) -> int:
    """Return the words of a bitmap for so many elements."""
    return -(-size // 64)


def most_gaps(size: int, updates: int) -> int:
    """Return the most values that the gaps of `updates` positions below `size` have."""
    return updates + size // 255


def _largest_in_planes(planes: int, width: int) -> int:
    return int((1 << 8 * min(planes, width)) - 1)


@cache
def _compare_kernel(width: int) -> Any:
    return _compile_kernel("compare", _COMPARE, width, "wwbw")


@cache
def _gaps_kernel() -> Any:
    return _compile_kernel("to_gaps", _TO_GAPS, 1, "bp")


@cache
def _patch_kernel(positions: Positions, width: int, planes: int) -> Any:
    parts = {
        "arguments": "base, spans, block, data, out",
        "which": ["first, stop = row * block, min((row + one) * block, size)"],
        "copy": _copy_lines("first", "stop - first"),
        "copy_full": _copy_lines("start", "full"),
        "copy_rest": _copy_lines("start", "stop - start"),
        "change": ["out[place] ^= value"],
    }
    types = _argument_types(width, "wbnpw")
    return _positions_kernel(f"patch_{positions}_{planes}_{8 * width}", positions, width, planes, types, parts)


@cache
def _fold_kernel(positions: Positions, format: str, planes: int) -> Any:
    form = ELEMENTS[format]
    lane, word = form.lanes[0], f"np.uint{8 * form.itemsize}"
    parts = {
        "arguments": "base, spans, block, data, weights, total",
        "number": ["changes = np.uint64(weights.size)"],
        "which": [
            "weight = weights[row % changes]",
            "first, stop = row // changes * block, min((row // changes + one) * block, size)",
        ],
        "copy_full": ["pass"],
        "copy_rest": ["pass"],
        "change": [
            f"old, new = base[place], {word}(base[place] ^ {word}(value))",
            "base[place] = new",
            f"total[place] += weight * ({lane}(new) - {lane}(old))",
        ],
    }
    types = (*_argument_types(form.itemsize, "wbnp"), f"{form.real_code}[]", f"{form.real_code}[]")
    name = f"fold_{positions}_{planes}_{format.lower()}"
    return _positions_kernel(name, positions, form.itemsize, planes, types, parts)


def _positions_kernel(
    name: str,
    positions: Positions,
    width: int,
    planes: int,
    types: tuple[str, ...],
    parts: Mapping[str, str | Sequence[str]],
) -> Any:
    value = [_join_lines(planes, "values + {k} * moved + count")]
    if planes < width:
        size = f"np.uint64({width})"
        value += [
            "if value == np.uint64(0):",
            f"    if escape + {size} > end:",
            "        return row",
            f"    {_join_lines(width, 'escape + {k}')}",
            f"    escape += {size}",
        ]
    nothing: dict[str, str | Sequence[str]] = {key: [] for key in ("number", "copy", "copy_full", "copy_rest")}
    parts = {**nothing, "name": name, "planes": f"np.uint64({planes})", "value": value, **parts}
    changes = native.fill(_CHANGES[positions], **parts).splitlines()
    source = native.fill(_PATCH, **parts, changes=changes)
    return native.load(name, source, types, "i64")


def _join_lines(count: int, place: str) -> str:
    """Return source that composes a value from so many bytes."""
    parts = (f"(np.uint64(data[{place.format(k=f'np.uint64({k})')}]) << {8 * k})" for k in range(count))
    return "value = " + " | ".join(parts)


def _copy_lines(first: str, count: str) -> list[str]:
    return [f"for i in range({count}):", f"    out[{first} + i] = base[{first} + i]"]


@cache
def _split_kernel(width: int, planes: int) -> Any:
    escape_lines = [f"values[escape + np.uint64({k})] = value >> {8 * k}" for k in range(width)]
    plane_lines = [f"values[np.uint64({k}) * size + i] = value >> {8 * k}" for k in range(planes)]
    numbers = {"planes": planes, "most": _largest_in_planes(planes, width), "width": width}
    constants = {name: f"np.uint64({number})" for name, number in numbers.items()}
    return _compile_kernel(f"split_{planes}", _SPLIT, width, "wp", escaped=escape_lines, split=plane_lines, **constants)


def _compile_kernel(name: str, template: str, width: int, arguments: str, /, **parts: str | list[str]) -> Any:
    """Compile a loop for words of `width` bytes. `arguments` has a letter for each argument: words, bitmap, plain
    bytes, number.
    """
    name = f"{name}_{8 * width}"
    return native.load(name, native.fill(template, name=name, **parts), _argument_types(width, arguments), "i64")


def _argument_types(width: int, takes: str) -> tuple[str, ...]:
    kinds = {"w": f"u{8 * width}[]", "b": "u64[]", "p": "u8[]", "n": "u64"}
    return tuple(kinds[letter] for letter in takes)
