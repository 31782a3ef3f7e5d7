"""Blocks of a delta as bytes: differences from the base's block as positions and xors; their table and digests.

A block is `BLOCK` elements; the last block of a tensor may be shorter. Its bytes in a file are its positions, then its
values, in the forms of `word_patches`; a row of eight numbers says how to read them. The sizes of all forms follow from
the numbers of elements, of changed elements, and of long values, so nothing is read, decompressed or written before it
is known to fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.storage.own_files import BLOCK
from ramerge.core.tensors.arena import room
from ramerge.deltas import word_patches
from ramerge.deltas.word_patches import Bytes, Words
from ramerge.sdk.tensors import Tensor

Take = Callable[[int], Bytes]
Compression = Literal["zstd", "none"]

TOGETHER = 4
"""Blocks of a tensor that a worker processes in one step: with fewer, threads wait for each other more often."""

COLUMNS = 8
"""The number of uint64 numbers in a row: see `BlockRow`."""

NOTHING, GAPS, BITMAP = range(3)
SEVERAL_FORMS = -1
"""Stands for the form of several blocks with different forms."""
_PLANES, _COMPRESSION = 16, 256

# There is nothing in blocks that repeats, except zeros. So the search for what does is made as short as can be: files
# are as large as with level 3, or smaller, in half of the time.
_SEARCH = zstandard.ZstdCompressionParameters.from_level(1, source_size=BLOCK, min_match=7, hash_log=8)
# What is compressed by less is kept as it is, because reading it would cost more than it saves.
_WORTH = 15 / 16
# A bitmap is read faster than gaps, so it may make a block that much larger.
_FASTER = 1.1


class DamagedError(ValueError):
    """The bytes are not a block of a delta.

    Attributes:
        index: the index of the block among the arguments.
    """

    def __init__(self, text: str, index: int = 0) -> None:
        super().__init__(text)
        self.index = index


def digest(data: Any) -> bytes:
    return xxhash.xxh3_128_digest(data)


tensor_digest = xxhash.xxh3_128
"""The digest of a tensor; update it with the `digest` of each block in order."""


def digest_of_blocks(blocks: NDArray[np.uint64]) -> str:
    """Return the digest of a tensor in hexadecimal, from the digests of its blocks, uint64 of shape (blocks, 2)."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(blocks).tobytes())


def blocks_of(elements: int) -> int:
    """Return the number of blocks of a tensor."""
    return -(-elements // BLOCK)


def arena_bytes(tensor: Tensor) -> int:
    """The bytes of an arena that a worker needs to read a tensor, alone or with another of its dtype and shape."""
    most = TOGETHER * BLOCK
    return 2 * room(most * itemsize(tensor.dtype)) + tensor.scratch(most)


class BlockRow(NamedTuple):
    """A row of the table of blocks, in the order of its columns.

    Attributes:
        begin: the offset of the block in the tensor's data, in bytes.
        nbytes: the size of the block in bytes.
        updates: the number of elements that differ from the base's.
        escapes: the number of updates whose values do not fit into the planes.
        form: `NOTHING` if no element differs; otherwise, positions as `GAPS` or `BITMAP`, plus 16 times the number
            of planes of the values, plus 256 if the bytes are a zstd frame.
        payload: xxh3-64 of the block's bytes.
        base: `digest` of the base's block.
    """

    begin: int
    nbytes: int
    updates: int
    escapes: int
    form: int
    payload: int
    base: bytes

    @staticmethod
    def from_numbers(numbers: NDArray[np.uint64]) -> BlockRow:
        begin, nbytes, updates, escapes, form, payload = numbers[:6].tolist()
        return BlockRow(begin, nbytes, updates, escapes, form, payload, numbers[6:8].tobytes())

    @property
    def numbers(self) -> NDArray[np.uint64]:
        """The row as numbers, for the table."""
        first = (self.begin, self.nbytes, self.updates, self.escapes, self.form, self.payload)
        return np.concatenate([np.array(first, np.uint64), np.frombuffer(self.base, np.uint64)])

    @property
    def kind(self) -> int:
        return self.form % _PLANES

    @property
    def planes(self) -> int:
        return self.form % _COMPRESSION // _PLANES

    @property
    def is_compressed(self) -> bool:
        """Whether the bytes of the block are a zstd frame."""
        return self.form >= _COMPRESSION

    def content(self, elements: int, width: int) -> range:
        """Return the possible sizes of the block's positions and values, before compression."""
        values = word_patches.values_size(self.updates, self.escapes, self.planes, width)
        if self.kind == GAPS:
            return range(values + self.updates, values + word_patches.most_gaps(elements, self.updates) + 1)
        positions = 8 * word_patches.bitmap_words(elements) if self.kind == BITMAP else 0
        return range(values + positions, values + positions + 1)

    def check(self, elements: int, width: int, data_bytes: int) -> None:
        """Refuse a row that no block can have.

        Args:
            width: bytes per element.
        """
        kind, planes, updates, nbytes = self.kind, self.planes, self.updates, self.nbytes
        if self.form >= 2 * _COMPRESSION or kind > BITMAP or (kind == NOTHING) != (self.form == 0):
            raise DamagedError(f"form {self.form} is not known")
        if self.form and not 1 <= planes <= width:
            raise DamagedError(f"form {self.form} is not one of elements of {width} bytes")
        if updates > elements or (updates == 0) != (self.form == 0):
            raise DamagedError(f"{updates:,} of {elements:,} elements cannot have moved")
        if self.escapes > (updates if planes < width else 0):
            raise DamagedError(f"{self.escapes:,} of {updates:,} values cannot be long")
        sizes, most = self.content(elements, width), most_nbytes(elements, width)
        if nbytes >= sizes.stop or sizes.start > most or nbytes < (1 if self.is_compressed else sizes.start):
            raise DamagedError(f"{nbytes:,} bytes are not what {updates:,} elements take")
        if nbytes > most or self.begin + nbytes > data_bytes:
            raise DamagedError(f"bytes {self.begin:,} to {self.begin + nbytes:,} of {data_bytes:,} do not exist")


@dataclass(frozen=True)
class BlockTable:
    """Rows of contiguous blocks of a tensor, from one or several deltas; checked as by `BlockRow.check`, but column by
    column.

    Attributes:
        numbers: uint64 of shape (deltas, blocks, COLUMNS).
        values: int64 of shape (deltas, blocks): the bytes of each block's values.
    """

    numbers: NDArray[np.uint64]
    values: NDArray[np.int64]

    @staticmethod
    def check_rows(
        numbers: NDArray[np.uint64], first: int, elements: int, width: int, data_bytes: Sequence[int]
    ) -> BlockTable:
        """Check rows and return their table. Checking them together takes as long as checking two rows.

        Args:
            first: the number of the first block in the tensor.
            data_bytes: bytes of the tensor's data in each delta.

        Raises:
            DamagedError: a row holds numbers that no block can have. Its index counts the blocks of all deltas.
        """
        begin, nbytes, updates, escapes, form = (np.minimum(numbers[..., k], _HUGE).astype(np.int64) for k in range(5))
        sizes = np.minimum(elements - BLOCK * np.arange(first, first + numbers.shape[1]), BLOCK)
        kind, planes = form % _PLANES, form % _COMPRESSION // _PLANES
        values = updates * planes + escapes * width
        bitmap = 8 * (-(-sizes // 64))
        fewest = values + np.where(kind == BITMAP, bitmap, np.where(kind == GAPS, updates, 0))
        most = fewest + np.where(kind == GAPS, sizes // 255, 0)
        fine = (
            (form < 2 * _COMPRESSION)
            & (kind <= BITMAP)
            & ((kind == NOTHING) == (form == 0))
            & ((updates == 0) == (form == 0))
        )
        fine &= (updates <= sizes) & (escapes <= np.where(planes < width, updates, 0))
        fine &= (form == 0) | ((planes >= 1) & (planes <= width))
        fine &= (nbytes <= most) & (fewest <= bitmap + width * sizes) & (nbytes <= bitmap + width * sizes)
        fine &= nbytes >= np.where(form >= _COMPRESSION, 1, fewest)
        fine &= begin + nbytes <= np.array(data_bytes, np.int64)[:, np.newaxis]
        for delta, block in np.argwhere(~fine).tolist():
            try:
                BlockRow.from_numbers(numbers[delta, block]).check(int(sizes[block]), width, data_bytes[delta])
            except DamagedError as error:
                raise DamagedError(str(error), delta * len(sizes) + block) from None
        return BlockTable(numbers, values)

    def blocks(self, first: int, last: int) -> BlockTable:
        """Return the table of a range of blocks."""
        return BlockTable(self.numbers[:, first:last], self.values[:, first:last])

    def deltas(self, numbers: Sequence[int]) -> BlockTable:
        """Return the table of some of the deltas."""
        return BlockTable(self.numbers[numbers], self.values[numbers])

    def rows(self, delta: int) -> list[BlockRow]:
        """Return the rows of one delta."""
        return [BlockRow.from_numbers(each) for each in self.numbers[delta]]

    @property
    def nbytes(self) -> NDArray[np.int64]:
        """Bytes of each block, shape (deltas, blocks)."""
        return self.numbers[:, :, 1].astype(np.int64)

    @property
    def forms(self) -> list[int]:
        """For each delta, the common form of its blocks that differ from the base's; `SEVERAL_FORMS` if they have
        several, or are compressed.
        """
        forms = self.numbers[:, :, 4].astype(np.int64)
        highest = forms.max(axis=1)
        alike = ((forms == NOTHING) | (forms == highest[:, np.newaxis])).all(axis=1)
        result: list[int] = np.where(alike & (highest < _COMPRESSION), highest, SEVERAL_FORMS).tolist()
        return result

    @property
    def gapless(self) -> list[bool]:
        """For each delta, whether the bytes of its blocks are contiguous in the file."""
        starts = self.numbers[:, :, 0].astype(np.int64)
        result: list[bool] = (starts[:, 1:] == (starts + self.nbytes)[:, :-1]).all(axis=1).tolist()
        return result


_HUGE = np.uint64(1 << 48)


@dataclass(frozen=True)
class EncodedBlock:
    """An encoded block for a file: its row without an offset, its bytes, and the `digest` of the agent's block."""

    row: BlockRow
    payload: bytes | memoryview
    result: bytes


def most_nbytes(elements: int, width: int) -> int:
    """Return the most bytes that a block of `elements` elements takes, in a file and before compression."""
    return 8 * word_patches.bitmap_words(elements) + width * elements


class Encoder:
    """Encoder of blocks, for one thread; it reuses its memory for each block.

    Args:
        compression: `none` leaves positions and values uncompressed; `zstd` compresses blocks that become smaller.
    """

    def __init__(self, compression: Compression = "none") -> None:
        self._zstd = zstandard.ZstdCompressor(compression_params=_SEARCH) if compression == "zstd" else None
        self._bitmap = np.empty(word_patches.bitmap_words(BLOCK), np.uint64)
        self._xors = np.empty(8 * BLOCK, np.uint8)
        self._content = np.empty(most_nbytes(BLOCK, 8), np.uint8)

    def encode(self, base: Words, other: Words) -> EncodedBlock:
        """Encode the changes of a block `other` against `base`.

        Args:
            base: the words of up to `BLOCK` elements: 1-D, unsigned integers.
        """
        bitmap = self._bitmap[: word_patches.bitmap_words(base.size)]
        xors = self._xors[: base.nbytes].view(base.dtype)
        xors = xors[: word_patches.compare(base, other, bitmap, xors)]
        if not xors.size:
            same = digest(base)
            return EncodedBlock(BlockRow(0, 0, 0, 0, NOTHING, xxhash.xxh3_64_intdigest(b""), same), b"", same)
        width = base.itemsize
        beyond = {planes: word_patches.count_overflowing(xors, planes) for planes in range(1, width + 1)}
        sizes = {planes: word_patches.values_size(xors.size, beyond[planes], planes, width) for planes in beyond}
        planes = min(sizes, key=sizes.__getitem__)
        size, escapes = sizes[planes], beyond[planes]
        kind, positions = self._encode_positions(bitmap, base.size, xors.size, size)
        content = self._content[: positions.size + size]
        content[: positions.size] = positions
        word_patches.split(xors, planes, content[positions.size :])
        payload, is_packed = self._compress_block(content, positions.size)
        form = kind + _PLANES * planes + _COMPRESSION * is_packed
        checksum = xxhash.xxh3_64_intdigest(payload)
        row = BlockRow(0, len(payload), xors.size, escapes, form, checksum, digest(base))
        return EncodedBlock(row, payload, digest(other))

    def encode_all(self, base: Words, other: Words) -> list[EncodedBlock]:
        """Encode contiguous blocks with `encode`."""
        starts = range(0, base.size, BLOCK)
        return [self.encode(base[start : start + BLOCK], other[start : start + BLOCK]) for start in starts]

    def _encode_positions(
        self, bitmap: NDArray[np.uint64], elements: int, updates: int, values: int
    ) -> tuple[int, Bytes]:
        """The form and the bytes of positions: gaps if they can be, and are, much smaller; otherwise the bitmap."""
        if bitmap.nbytes + values > _FASTER * (updates + values):
            gaps = np.empty(word_patches.most_gaps(elements, updates), np.uint8)
            gaps = gaps[: word_patches.to_gaps(bitmap, gaps)]
            if bitmap.nbytes + values > _FASTER * (gaps.size + values):
                return GAPS, gaps
        return BITMAP, bitmap.view(np.uint8)

    def _compress_block(self, content: Bytes, positions: int) -> tuple[bytes, bool]:
        """The bytes of a block for the file, positions and values in one frame, and whether they are compressed."""
        if self._zstd is not None:
            frame = self._zstd.compressobj(size=content.size)
            first = frame.compress(content[:positions].data) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
            compressed_bytes = first + frame.compress(content[positions:].data) + frame.flush()
            if len(compressed_bytes) < _WORTH * content.size:
                return compressed_bytes, True
        return content.tobytes(), False


_local = threading.local()


def decode(rows: Sequence[BlockRow], payload: Bytes, base: Words, out: Words, take: Take) -> None:
    """Decode the words of an agent's blocks, given the base's.

    Args:
        rows: the rows of contiguous blocks, accepted by `BlockRow.check`.
        payload: uint8: the blocks' bytes in the file, one block after another.
        base: unsigned integers: the base's words of all blocks.
        out: filled with the agent's words; has the type of `base`, and may be the same array.
        take: returns temporary memory of a number of bytes.

    Raises:
        DamagedError: the bytes do not match a row; the content of `out` is then undefined.
    """
    data, spans = _decompress_blocks(rows, payload, base, take)
    first = 0
    for form, alike in groupby(rows, lambda row: row.form % _COMPRESSION):
        stop = first + len(list(alike))
        place = slice(first * BLOCK, stop * BLOCK)
        if form == NOTHING:
            out[place] = base[place]
        else:
            planes, part = form // _PLANES, spans[first:stop]
            elements = word_patches.patch(_form_of(form), base[place], part, BLOCK, data, planes, out[place])
            if elements < stop - first:
                raise DamagedError(
                    "its positions lie outside of it, or are not as many as its values", first + elements
                )
        first = stop


def fold(
    table: BlockTable,
    payload: Bytes,
    format: str,
    base_words: Bytes,
    weights: Sequence[float],
    total: NDArray[Any],
    take: Take,
) -> None:
    """Apply changes to the words of blocks in place, one after another, and add up the differences of numbers.

    Args:
        table: the table of changes to the same blocks; several changes must have one form, not `SEVERAL_FORMS`.
        payload: uint8: the blocks' bytes in the files, change after change.
        format: dtype of the numbers, such as `BF16`.
        base_words: uint8: the base's words; replaced by the agent's.
        weights: the factor of each change's differences.
        total: float32, or float64 for F64; one number per element.
        take: returns temporary memory of a number of bytes.

    Raises:
        DamagedError: the bytes do not match the table; the content of `base_words` and `total` is then undefined. Its
            index counts the blocks of all changes.
    """
    words, form = base_words.view(f"u{base_words.size // total.size}"), table.forms[0]
    if form != SEVERAL_FORMS:
        _apply_changes(form, words, _verified_spans(table, payload), payload, format, weights, total)
        return
    rows, first = table.rows(0), 0
    data, spans = _decompress_blocks(rows, payload, words, take)
    for form, alike in groupby(row.form % _COMPRESSION for row in rows):
        stop = first + len(list(alike))
        place = slice(first * BLOCK, stop * BLOCK)
        if form:
            try:
                _apply_changes(form, words[place], spans[first:stop], data, format, weights, total[place])
            except DamagedError as error:
                raise DamagedError(str(error), first + error.index) from None
        first = stop


def _form_of(form: int) -> word_patches.Positions:
    return "gaps" if form % _PLANES == GAPS else "bitmaps"


def _apply_changes(
    form: int,
    words: Words,
    spans: word_patches.Spans,
    data: Bytes,
    format: str,
    weights: Sequence[float],
    total: NDArray[Any],
) -> None:
    """Apply changes to words in place. Spans are ordered by block, then by change."""
    span_count = word_patches.fold(_form_of(form), format, words, spans, BLOCK, data, form // _PLANES, weights, total)
    if span_count < len(spans):
        block, change = divmod(span_count, len(weights))
        index = change * (len(spans) // len(weights)) + block
        raise DamagedError("its positions lie outside of it, or are not as many as its values", index)


def _verified_spans(table: BlockTable, payload: Bytes) -> word_patches.Spans:
    """Verify checksums of uncompressed blocks, and return where their positions and values are."""
    nbytes, updates = table.nbytes, table.numbers[:, :, 2].astype(np.int64)
    ends = np.cumsum(nbytes.reshape(-1)).reshape(nbytes.shape)
    view = payload.data
    pieces = (column.reshape(-1).tolist() for column in (ends, nbytes, table.numbers[:, :, 5]))
    for index, (end, size, checksum) in enumerate(zip(*pieces, strict=True)):
        if size and xxhash.xxh3_64_intdigest(view[end - size : end]) != checksum:
            raise DamagedError("the checksum differs", index)
    spans = np.stack([ends - nbytes, ends - table.values, ends, updates], axis=2).swapaxes(0, 1)
    return np.ascontiguousarray(spans.reshape(-1, 4), np.uint64)


def _decompress_blocks(
    rows: Sequence[BlockRow], payload: Bytes, base: Words, take: Take
) -> tuple[Bytes, word_patches.Spans]:
    """Return the decompressed positions and values of all blocks, and where they are in this array."""
    begin, contents = 0, []
    for index, row in enumerate(rows):
        block_bytes = payload[begin : begin + row.nbytes]
        if row.form and xxhash.xxh3_64_intdigest(block_bytes.data) != row.payload:
            raise DamagedError("the checksum differs", index)
        sizes = row.content(min(BLOCK, base.size - index * BLOCK), base.itemsize)
        contents.append(_decompress_frame(block_bytes, sizes, index) if row.is_compressed else block_bytes)
        begin += row.nbytes
    ends = list(accumulate(content.size for content in contents))
    spans = [
        (
            end - content.size,
            end - word_patches.values_size(row.updates, row.escapes, row.planes, base.itemsize),
            end,
            row.updates,
        )
        for row, content, end in zip(rows, contents, ends, strict=True)
    ]
    data = payload
    if any(row.is_compressed for row in rows):
        data = np.concatenate(contents, out=take(ends[-1]))
    return data, np.array(spans, np.uint64)


def _decompress_frame(data: Bytes, allowed_sizes: range, block_index: int) -> Bytes:
    """Decompress a zstd frame, whose content must have one of the allowed sizes."""
    try:
        size = zstandard.frame_content_size(data.data)
        if size not in allowed_sizes:
            wrong = (
                f"it says that it has {size:,} bytes, but it has {allowed_sizes.start:,} to {allowed_sizes.stop - 1:,}"
            )
            raise DamagedError(wrong, block_index)
        if not hasattr(_local, "zstd"):
            _local.zstd = zstandard.ZstdDecompressor()
        content = _local.zstd.decompress(data.data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedError("its bytes cannot be decompressed", block_index) from error
    if len(content) != size:
        raise DamagedError(f"it has {len(content):,} bytes, not {size:,} as it says", block_index)
    return np.frombuffer(content, np.uint8)
