"""A block of a tensor as what differs from the base's block: positions, and values, which are the xor of both.

A block is `BLOCK` elements, the last one of a tensor what is left. Its bytes in a file are its positions, then its
values; a row of eight numbers says how to read them. The sizes of all forms follow from the numbers of elements and of
those that moved, so nothing is read, decompressed or written before it is known to fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from ramerge.kernels import patches

Words = NDArray[Any]
Bytes = NDArray[np.uint8]
Take = Callable[[int], Bytes]
Compression = Literal["zstd", "none"]

BLOCK = 1 << 18
"""Elements of a block."""

COLUMNS = 8
"""Numbers of a row, uint64: see `Row`."""

NOTHING, GAPS, BITMAP, ALL = range(4)
_POSITIONS_PACKED, _VALUES_PACKED = 16, 32
_FORMS = {kind + flags for kind in range(4) for flags in (0, 16, 32, 48)}

# There is nothing in blocks that repeats, except zeros. So the search for what does is made as short as can be: files
# are as large as with level 3, or smaller, in half of the time.
_SEARCH = zstandard.ZstdCompressionParameters.from_level(1, source_size=BLOCK, min_match=7, hash_log=8)
# What is compressed by less is kept as it is, because reading it would cost more than it saves.
_WORTH = 15 / 16


class DamagedError(ValueError):
    """Bytes that are no block; says what is wrong with them."""


def digest(data: Any) -> bytes:
    """xxh3-128 of bytes: 16 bytes."""
    return xxhash.xxh3_128_digest(data)


def digest_of_blocks(blocks: NDArray[np.uint64]) -> str:
    """The digest of a tensor, in hexadecimal: xxh3-128 over those of its blocks, uint64 of shape (blocks, 2)."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(blocks).tobytes())


def blocks_of(elements: int) -> int:
    """How many blocks a tensor has."""
    return -(-elements // BLOCK)


@dataclass(frozen=True)
class Row:
    """What is known of a block, in the order of the table's columns.

    Attributes:
        begin: the byte of the tensor's data where its positions begin.
        positions: their bytes.
        values: bytes of the values, which follow.
        moved: elements that differ from the base's.
        form: `NOTHING` if none does; positions as `GAPS` or `BITMAP` of `kernels.patches`; or `ALL`, no positions and a
            value for each element. 16 more if positions are a zstd frame, 32 more if values are one, as byte planes:
            the lowest bytes of all values, then the next ones.
        payload: xxh3-64 of positions and values.
        base: `digest` of the base's block.
    """

    begin: int
    positions: int
    values: int
    moved: int
    form: int
    payload: int
    base: bytes

    @staticmethod
    def of(numbers: NDArray[np.uint64]) -> Row:
        """From a row of the table."""
        begin, positions, values, moved, form, payload = map(int, numbers[:6])
        return Row(begin, positions, values, moved, form, payload, numbers[6:8].tobytes())

    @property
    def numbers(self) -> NDArray[np.uint64]:
        """As a row of the table."""
        first = (self.begin, self.positions, self.values, self.moved, self.form, self.payload)
        return np.concatenate([np.array(first, np.uint64), np.frombuffer(self.base, np.uint64)])

    @property
    def stored(self) -> int:
        """Bytes in the file."""
        return self.positions + self.values

    def check(self, elements: int, width: int, data_bytes: int) -> None:
        """Refuse numbers that no block has.

        Args:
            elements: of the block.
            width: bytes of an element.
            data_bytes: bytes of the tensor's data.

        Raises:
            DamagedError: it says which.
        """
        if self.form not in _FORMS:
            raise DamagedError(f"form {self.form} is not known")
        kind = self.form & 15
        if self.moved > elements or (kind == NOTHING) != (self.moved == 0):
            raise DamagedError(f"{self.moved:,} of {elements:,} elements cannot have moved")
        positions, values = _most_bytes(kind, elements, self.moved, width)
        exact = not self.form & _VALUES_PACKED
        if self.positions > positions or self.values > values or (exact and self.values != values):
            raise DamagedError(
                f"{self.positions:,} and {self.values:,} bytes are not what {self.moved:,} elements take"
            )
        if self.begin + self.stored > data_bytes:
            raise DamagedError(f"bytes {self.begin:,} to {self.begin + self.stored:,} of {data_bytes:,} do not exist")


@dataclass(frozen=True)
class Encoded:
    """A block for a file: its row, without a place, its bytes, and the `digest` of the agent's block."""

    row: Row
    payload: bytes
    result: bytes


def _most_bytes(kind: int, elements: int, moved: int, width: int) -> tuple[int, int]:
    """Bytes of positions, at most, and of values before compression."""
    positions = {GAPS: patches.most_gaps(elements, moved), BITMAP: 8 * patches.bitmap_words(elements)}
    return positions.get(kind, 0), width * (elements if kind == ALL else moved)


def most_stored(elements: int, width: int) -> int:
    """The most bytes that a block of so many elements takes in a file."""
    return 8 * patches.bitmap_words(elements) + width * elements


class Encoder:
    """Encodes blocks, in one thread; its memory is used again for each.

    Args:
        compression: `none` leaves positions and values as they are; `zstd` compresses where that saves something.
    """

    def __init__(self, compression: Compression = "zstd") -> None:
        self._zstd = zstandard.ZstdCompressor(compression_params=_SEARCH) if compression == "zstd" else None
        self._bitmap = np.empty(patches.bitmap_words(BLOCK), np.uint64)
        self._gaps = np.empty(patches.most_gaps(BLOCK, BLOCK), np.uint8)
        self._values = np.empty(8 * BLOCK, np.uint8)
        self._planes = np.empty(8 * BLOCK, np.uint8)

    def encode(self, base: Words, other: Words) -> Encoded:
        """What `other` has changed of `base`.

        Args:
            base: the words of up to `BLOCK` elements: 1-D, unsigned integers.
            other: of the same type and length.
        """
        bitmap = self._bitmap[: patches.bitmap_words(base.size)]
        values = self._values[: base.nbytes].view(base.dtype)
        moved = patches.compare(base, other, bitmap, values)
        kind = _smallest(base.size, moved, base.itemsize)
        positions = np.empty(0, np.uint8)
        if kind == ALL:
            np.bitwise_xor(base, other, out=values)
        else:
            values = values[:moved]
        if kind == GAPS:
            positions = self._gaps[: patches.to_gaps(bitmap, self._gaps)]
        elif kind == BITMAP:
            positions = bitmap.view(np.uint8)
        first, is_first_packed = self._packed(positions)
        planes = self._planes[: values.nbytes]
        if self._zstd is not None:
            patches.split_planes(values, planes)
        second, is_second_packed = self._packed(planes, values)
        payload = first + second
        form = kind + _POSITIONS_PACKED * is_first_packed + _VALUES_PACKED * is_second_packed
        checksum = xxhash.xxh3_64_intdigest(payload)
        row = Row(0, len(first), len(second), moved, form, checksum, digest(base))
        return Encoded(row, payload, digest(other))

    def _packed(self, data: Bytes, plain: Words | None = None) -> tuple[bytes, bool]:
        """The bytes for the file, and whether they are compressed; if not, those of `plain`."""
        if self._zstd is not None and data.size:
            packed = self._zstd.compress(data.data)
            if len(packed) < _WORTH * data.nbytes:
                return packed, True
        return (data if plain is None else plain).tobytes(), False


def _smallest(elements: int, moved: int, width: int) -> int:
    """The form of the smallest size without compression; compressed, it is among the smallest too."""
    if not moved:
        return NOTHING
    sizes = {kind: sum(_most_bytes(kind, elements, moved, width)) for kind in (GAPS, BITMAP, ALL)}
    return min(sizes, key=sizes.__getitem__)


_local = threading.local()


def _unpacked(data: Bytes, most: int, what: str) -> Bytes:
    """The content of a zstd frame of at most `most` bytes."""
    try:
        size = zstandard.frame_content_size(data.data)
        if not 0 <= size <= most:
            raise DamagedError(f"the {what} say that they are {size:,} bytes, but can only be {most:,}")
        if not hasattr(_local, "zstd"):
            _local.zstd = zstandard.ZstdDecompressor()
        found = _local.zstd.decompress(data.data, max_output_size=most, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedError(f"the {what} cannot be decompressed") from error
    if len(found) != size:
        raise DamagedError(f"the {what} are {len(found):,} bytes, not {size:,} as they say")
    return np.frombuffer(found, np.uint8)


def decode(row: Row, payload: Bytes, words: Words, take: Take) -> None:
    """Change the words of a base's block to those of the agent's.

    Args:
        row: of the block; `Row.check` has accepted it.
        payload: uint8: its bytes in the file.
        words: unsigned integers: the base's words; changed.
        take: gives temporary memory of so many bytes.

    Raises:
        DamagedError: the bytes are not what the row says; `words` hold anything then.
    """
    if xxhash.xxh3_64_intdigest(payload.data) != row.payload:
        raise DamagedError("its bytes have another checksum")
    kind = row.form & 15
    if kind == NOTHING:
        return
    most, size = _most_bytes(kind, words.size, row.moved, words.itemsize)
    positions = payload[: row.positions]
    if row.form & _POSITIONS_PACKED:
        positions = _unpacked(positions, most, "positions")
    values = _values(row, payload[row.positions :], size, words.dtype, take)
    if kind == ALL:
        np.bitwise_xor(words, values, out=words)
    elif kind == GAPS:
        if not patches.patch_gaps(words, positions, values):
            raise DamagedError("its positions lie outside of it, or are not as many as its values")
    elif positions.size != most:
        raise DamagedError(f"its bitmap has {positions.size:,} bytes, not {most:,}")
    elif not patches.patch_bitmap(words, _aligned(positions, np.dtype(np.uint64), take), values):
        raise DamagedError("its positions lie outside of it, or are not as many as its values")


def _values(row: Row, stored: Bytes, size: int, dtype: np.dtype[Any], take: Take) -> Words:
    if not row.form & _VALUES_PACKED:
        return _aligned(stored, dtype, take)
    planes = _unpacked(stored, size, "values")
    if planes.size != size:
        raise DamagedError(f"its values have {planes.size:,} bytes, not {size:,}")
    if dtype.itemsize == 1:
        return planes.view(dtype)
    values = take(size).view(dtype)
    patches.join_planes(planes, values)
    return values


def _aligned(data: Bytes, dtype: np.dtype[Any], take: Take) -> Words:
    """Bytes as words, copied where they begin between two words."""
    if data.ctypes.data % dtype.itemsize == 0:
        return data.view(dtype)
    copy = take(data.size)
    copy[:] = data
    return copy.view(dtype)
