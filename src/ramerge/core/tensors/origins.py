"""Origins that rearrange elements without changing them: tensors in pieces, parts of tensors, transposed tensors.

A box in a tensor of many dimensions is read as a box in a matrix: each dimension that the box covers completely is
merged into the dimension before it. A block then consists of rows, of which only the first and the last may be
incomplete.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.text import quantity
from ramerge.core.tensors.arena import Bytes, room
from ramerge.core.tensors.reader import Reader
from ramerge.core.tensors.tensor import Origin, Stored, Tensor


@dataclass(frozen=True)
class Box:
    """A box in a matrix.

    Attributes:
        row: the first row of the box in the matrix.
        rows: the number of rows in the box.
        column: the first column of the box in the matrix.
        columns: the number of columns in the box.
        width: the number of columns in the matrix.
    """

    row: int
    rows: int
    column: int
    columns: int
    width: int

    @staticmethod
    def find_box(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> Box | None:
        """Convert a box in a tensor, with these offsets and sizes, to a box in a matrix; None if that is impossible."""
        axes: list[tuple[int, int, int]] = []  # extent, offset, size
        for extent, offset, size in zip(shape, offsets, sizes, strict=True):
            if axes and size == extent:
                outer, place, count = axes.pop()
                axes.append((outer * extent, place * extent, count * extent))
            elif axes and axes[-1][2] == 1:
                outer, place, _ = axes.pop()
                axes.append((outer * extent, place * extent + offset, size))
            else:
                axes.append((extent, offset, size))
        if len(axes) > 2:
            return None
        (_, row, rows), (width, column, columns) = [(1, 0, 1)] * (2 - len(axes)) + axes
        return Box(row, rows, column, columns, width)

    @property
    def is_run(self) -> bool:
        """Whether its elements are contiguous in the matrix."""
        return self.columns == self.width or self.rows == 1


def _segments(start: int, stop: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Split elements `start:stop` of a matrix into boxes: an incomplete row, complete rows, an incomplete row.

    Yields (first row, row after the last, first column, column after the last) for each box.
    """
    while start < stop:
        row, column = divmod(start, width)
        if column or stop - start < width:
            end = min(width, column + stop - start)
            yield row, row + 1, column, end
            start += end - column
        else:
            last = stop // width
            yield row, last, 0, width
            start = last * width


def _strided_view(flat: Bytes, first: int, rows: int, pitch: int, columns: int) -> Bytes:
    """A view of `rows` runs of `columns` bytes each, at distances of `pitch` bytes, beginning with byte `first`."""
    end = first + (rows - 1) * pitch + columns
    return np.lib.stride_tricks.as_strided(flat[first:end], (rows, columns), (pitch, 1))


@dataclass(frozen=True)
class PlacedPiece:
    """A tensor that is one piece of a larger tensor: a box at `offsets`, one for each dimension."""

    offsets: tuple[int, ...]
    tensor: Tensor


class _Rearrangement(Origin):
    """An origin that takes elements unchanged from other tensors of one checkpoint, which has only one encoding."""

    @property
    def encoding(self) -> str:
        return next((part.encoding for part in self.parts if part.encoding), "")


@dataclass(frozen=True)
class Pieces(_Rearrangement):
    """Pieces of the same dtype that together cover a tensor without overlap; formats check this."""

    pieces: tuple[PlacedPiece, ...]

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        return [piece.tensor for piece in self.pieces]

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        width = itemsize(tensor.dtype)
        most = 0
        for piece in self.pieces:
            if not piece.tensor.elements:
                continue
            box = self._box(tensor, piece)
            inside = min(elements, piece.tensor.elements)
            copy_bytes = 0 if box.columns == box.width else room(inside * width)
            most = max(most, copy_bytes + piece.tensor.scratch(inside))
        return most

    @staticmethod
    def _box(tensor: Tensor, piece: PlacedPiece) -> Box:
        box = Box.find_box(tensor.shape, piece.offsets, piece.tensor.shape)
        assert box is not None, f"{tensor.name} at {piece.offsets} is no box in a matrix"
        return box

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        for piece in self.pieces:
            if piece.tensor.elements:
                self._read_box(reader, piece.tensor, self._box(tensor, piece), start, stop, out)

    @staticmethod
    def _read_box(reader: Reader, part: Tensor, box: Box, start: int, stop: int, out: Bytes) -> None:
        size = itemsize(part.dtype)
        for top, bottom, left, right in _segments(
            max(start, box.row * box.width), min(stop, (box.row + box.rows) * box.width), box.width
        ):
            left, right = max(left, box.column), min(right, box.column + box.columns)
            if left >= right:
                continue
            rows, columns = bottom - top, right - left
            first = (top - box.row) * box.columns + left - box.column
            last = first + rows * columns
            place = (top * box.width + left - start) * size
            if columns == box.width or rows == 1:
                reader.read(part, first, last, out[place : place + rows * columns * size])
                continue
            with reader.arena.scratch():
                buffer = reader.arena.take(rows * columns * size)
                reader.read(part, first, last, buffer)
                target = _strided_view(out, place, rows, box.width * size, columns * size)
                target[:] = buffer.reshape(rows, columns * size)


@dataclass(frozen=True)
class Cut(_Rearrangement):
    """A box of another tensor, at `offsets`, one for each of that tensor's dimensions.

    The resulting tensor may have fewer dimensions than the other; `sizes` has one for each of the other's dimensions.
    """

    whole: Tensor
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        """The whole other tensor, although only a part of it may be read."""
        return (self.whole,)

    @property
    def _box(self) -> Box:
        box = Box.find_box(self.whole.shape, self.offsets, self.sizes)
        assert box is not None, f"{self.offsets} of {self.whole.name} is no box in a matrix"
        return box

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        box = self._box
        # the most elements of the other tensor from the first to the last of this many elements
        spanned = min(elements if box.is_run else -(-elements // box.columns) * box.width, self.whole.elements)
        own = 0 if box.is_run else room(spanned * itemsize(tensor.dtype))
        return own + self.whole.scratch(spanned)

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        box, size = self._box, itemsize(tensor.dtype)
        position = 0
        for top, bottom, left, right in _segments(start, stop, box.columns):
            rows, columns = bottom - top, right - left
            first = (box.row + top) * box.width + box.column + left
            part = out[position : position + rows * columns * size]
            position += part.size
            if rows == 1 or columns == box.width:
                reader.read(self.whole, first, first + rows * columns, part)
                continue
            spanned = (rows - 1) * box.width + columns
            with reader.arena.scratch():
                buffer = reader.arena.take(spanned * size)
                reader.read(self.whole, first, first + spanned, buffer)
                part.reshape(rows, columns * size)[:] = _strided_view(buffer, 0, rows, box.width * size, columns * size)


@dataclass(frozen=True)
class Transposed(_Rearrangement):
    """Another tensor with its last two dimensions swapped.

    The elements of a block are spread in short runs over the whole other matrix. Therefore that matrix is read in
    stripes of at most half a megabyte of rows, and the needed elements are copied from each stripe.
    """

    other: Tensor

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        return (self.other,)

    def _stripe_rows(self) -> int:
        rows, columns = self.other.shape[-2:]
        return max(1, min(rows, _STRIPE_BYTES // max(1, columns * itemsize(self.other.dtype))))

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        stripe = self._stripe_rows() * self.other.shape[-1]
        return room(stripe * itemsize(tensor.dtype)) + self.other.scratch(stripe)

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        rows, columns = self.other.shape[-2:]  # of the other tensor; the transposed one has `columns` rows
        size = itemsize(tensor.dtype)
        words = out.view(f"u{size}")
        for matrix in range(start // (rows * columns), -(-stop // (rows * columns))):
            begin = matrix * rows * columns
            for row in range(0, rows, self._stripe_rows()):
                height = min(self._stripe_rows(), rows - row)
                with reader.arena.scratch():
                    buffer = reader.arena.take(height * columns * size)
                    reader.read(self.other, begin + row * columns, begin + (row + height) * columns, buffer)
                    stripe = buffer.view(words.dtype).reshape(height, columns).T
                    low, high = max(start, begin), min(stop, begin + rows * columns)
                    for top, bottom, left, right in _segments(low - begin, high - begin, rows):
                        left, right = max(left, row), min(right, row + height)
                        if left < right:
                            place = begin + top * rows + left - start
                            end = place + (bottom - top - 1) * rows + right - left
                            target = np.lib.stride_tricks.as_strided(
                                words[place:end], (bottom - top, right - left), (rows * size, size)
                            )
                            target[:] = stripe[top:bottom, left - row : right - row]


_STRIPE_BYTES = 1 << 19


def rows_of(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows `start:stop` of a tensor, along its first dimension."""
    return box_of(tensor, (start, *(0 for _ in tensor.shape[1:])), (stop - start, *tensor.shape[1:]))


def box_of(tensor: Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """Cut a box out of a tensor. Its origin only refers to the pieces and bytes that the box needs."""
    if sizes == tensor.shape:
        return tensor
    origin = tensor.origin
    if isinstance(origin, Pieces):
        starts = np.array([piece.offsets for piece in origin.pieces])
        lows = np.maximum(starts, offsets)
        highs = np.minimum(starts + [piece.tensor.shape for piece in origin.pieces], np.add(offsets, sizes))
        pieces = []
        for place in np.flatnonzero((lows < highs).all(axis=1)).tolist():
            piece, low, high = origin.pieces[place], lows[place], highs[place]
            inner = box_of(piece.tensor, tuple((low - piece.offsets).tolist()), tuple((high - low).tolist()))
            pieces.append(PlacedPiece(tuple((low - offsets).tolist()), inner))
        is_whole = len(pieces) == 1 and pieces[0].tensor.shape == sizes
        return Tensor(tensor.name, tensor.dtype, sizes, pieces[0].tensor.origin if is_whole else Pieces(tuple(pieces)))
    box = Box.find_box(tensor.shape, offsets, sizes)
    if isinstance(origin, Stored) and box is not None and box.is_run:
        size = itemsize(tensor.dtype)
        begin = origin.offset + (box.row * box.width + box.column) * size
        return Tensor(tensor.name, tensor.dtype, sizes, Stored(origin.path, begin, math.prod(sizes) * size))
    return Tensor(tensor.name, tensor.dtype, sizes, Cut(tensor, offsets, sizes))


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in the same order, with another shape."""
    outer, origin = len(tensor.shape) - len(shape), tensor.origin
    if isinstance(origin, Pieces) and outer >= 0 and tensor.shape == (1,) * outer + shape:
        inner = (PlacedPiece(p.offsets[outer:], reshaped(p.tensor, p.tensor.shape[outer:])) for p in origin.pieces)
        origin = Pieces(tuple(inner))
    elif not isinstance(origin, Stored) and shape != tensor.shape:
        origin = Cut(tensor, (0,) * len(tensor.shape), tensor.shape)
    return Tensor(tensor.name, tensor.dtype, shape, origin)


def stack(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors of one dtype along the first dimension."""
    first, *_ = tensors
    starts = np.cumsum([0, *[tensor.shape[0] for tensor in tensors]]).tolist()
    pieces = tuple(
        PlacedPiece((start, *(0 for _ in first.shape[1:])), tensor)
        for start, tensor in zip(starts[:-1], tensors, strict=True)
    )
    return Tensor(name, first.dtype, (starts[-1], *first.shape[1:]), Pieces(pieces))


def is_covered(shape: Sequence[int], boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str | None:
    """Why boxes (offsets, sizes) do not exactly cover a tensor of this shape; None if they do."""
    for offsets, sizes in boxes:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return f"a piece has {quantity(len(sizes), 'dimension')}, the tensor {len(shape)}"
        if any(o < 0 or s < 0 or o + s > extent for o, s, extent in zip(offsets, sizes, shape, strict=True)):
            return f"the piece of {list(sizes)} at {list(offsets)} lies outside of {list(shape)}"
    full = [(tuple(offsets), tuple(sizes)) for offsets, sizes in boxes if 0 not in sizes]
    if twins := _overlap_problem(shape, full):
        return twins
    missing = math.prod(shape) - sum(math.prod(sizes) for _, sizes in full)
    return f"its shards lack {missing:,} of {math.prod(shape):,} elements" if missing else None


def _overlap_problem(shape: Sequence[int], boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> str | None:
    """Why boxes overlap; None if they do not. Their faces cut the tensor into cells; no cell may be in two boxes."""
    if not shape:
        return "a scalar is there twice" if len(boxes) > 1 else None
    places = []
    for dim, extent in enumerate(shape):
        cuts = {0, extent, *(o[dim] for o, _ in boxes), *(o[dim] + s[dim] for o, s in boxes)}
        places.append({cut: place for place, cut in enumerate(sorted(cuts))})
    # shards from training give about as many cells as boxes; malicious ones could give quadratically many
    if math.prod(map(len, places)) > _CELLS * (len(boxes) + _CELLS):
        return f"{len(boxes):,} pieces lie in no order that a training makes"
    cells = np.zeros([len(cuts) - 1 for cuts in places], np.int32)
    for number, (offsets, sizes) in enumerate(boxes, 1):
        inside = [slice(cuts[o], cuts[o + s]) for cuts, o, s in zip(places, offsets, sizes, strict=True)]
        cell = cells[tuple(inside)]
        if cell.any():
            return f"the pieces at {list(boxes[int(cell.max()) - 1][0])} and {list(offsets)} overlap"
        cell[...] = number
    return None


_CELLS = 64
