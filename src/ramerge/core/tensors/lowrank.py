"""Origins that are computed: a base plus a low-rank product (LoRA, DoRA), and a base with other rows for some tokens.

Results are float32. As in PEFT's `merge_and_unload` of a float32 model, the product is summed in float32, then
multiplied by the scaling, then added to the base, with one rounding in each step. PEFT may sum products in another
order.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from typing_extensions import override

from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.lowrank import TILE, Reals, add_product, add_squares, scale_columns, scale_rows
from ramerge.core.tensors.arena import Bytes, room
from ramerge.core.tensors.reader import Reader
from ramerge.core.tensors.tensor import Origin, Tensor

WIDENABLE = ("BF16", "F16", "F32")
"""The dtypes that these origins can compute with."""

# The number of elements of a factor in memory at a time: rank 64 times 8,192 columns.
_PANEL = 1 << 19
# Column factors of one tensor are computed at a time, because all threads need the same ones. Reentrant, because a base
# may have column factors, too.
_computing = threading.RLock()


def _take_float32(reader: Reader, elements: int) -> Reals:
    return reader.arena.take(4 * elements).view(np.float32)


def _read_float32(reader: Reader, tensor: Tensor, start: int, stop: int, out: Reals) -> None:
    if tensor.dtype == "F32":
        reader.read(tensor, start, stop, out.view(np.uint8))
        return
    with reader.arena.scratch():
        raw = reader.arena.take(2 * (stop - start))
        reader.read(tensor, start, stop, raw)
        convert(tensor.dtype, raw, "F32", out.view(np.uint32), stop - start)


def _load_scratch(tensor: Tensor, elements: int) -> int:
    return (0 if tensor.dtype == "F32" else room(2 * elements)) + tensor.scratch(elements)


@dataclass(frozen=True)
class Factor:
    """One of the two thin matrices of a product, or of the products of several experts, stored in a tensor.

    The matrix element for row or column `i`, rank `k` and expert `e` is the element `first` + `i` * `index` + `k` *
    `rank` + `e` * `expert` of `tensor`.
    """

    tensor: Tensor
    index: int
    rank: int
    expert: int = 0
    first: int = 0

    def panel(self, length: int, rank: int) -> int:
        """How many of `length` rows or columns are read at a time."""
        return max(1, min(length, _PANEL // max(self.index, rank)))

    def scratch(self, count: int, rank: int) -> int:
        """The most bytes that `read` takes for up to `count` rows or columns."""
        spanned = max(count * rank, (count - 1) * self.index + (rank - 1) * self.rank + 1)
        if self.index == 1:
            spanned = count * rank
        return room(4 * spanned) + room(4 * count * rank) + _load_scratch(self.tensor, spanned)

    def read(self, reader: Reader, expert: int, rank: int, low: int, high: int, *, ranks_first: bool) -> Reals:
        """Read rows or columns `low:high` as a matrix in row-major order.

        Its shape is (`high` - `low`, `rank`), or (`rank`, `high` - `low`) with `ranks_first`.
        """
        count, begin = high - low, self.first + expert * self.expert + low * self.index
        if self.index == 1 and count < self.rank:  # each rank's elements are contiguous, with others between the ranks
            span = _take_float32(reader, count * rank)
            for k in range(rank):
                place = begin + k * self.rank
                _read_float32(reader, self.tensor, place, place + count, span[k * count : (k + 1) * count])
            index, step = 1, count
        else:
            span = _take_float32(reader, (count - 1) * self.index + (rank - 1) * self.rank + 1)
            _read_float32(reader, self.tensor, begin, begin + span.size, span)
            index, step = self.index, self.rank
        expected_strides = (1, count) if ranks_first else (rank, 1)
        if span.size == count * rank and ((index, step) == expected_strides or 1 in (count, rank)):
            return span
        matrix = np.lib.stride_tricks.as_strided(span, (count, rank), (4 * index, 4 * step), writeable=False)
        result = _take_float32(reader, count * rank)
        if ranks_first:
            result.reshape(rank, count)[:] = matrix.T
        else:
            result.reshape(count, rank)[:] = matrix
        return result


@dataclass(frozen=True)
class Region:
    """The rows or columns of a matrix to which a product is added: `first`, and each `step`-th after it."""

    first: int
    step: int
    count: int
    is_columns: bool = False


@dataclass(frozen=True)
class LowRank(Origin):
    """base + scaling * left @ right. With magnitudes (DoRA), each row or column is then scaled to that norm.

    The tensor is one matrix, a stack of one matrix per expert, or a vector, which counts as a matrix of one row.

    Attributes:
        base: the tensor to which products are added.
        left: the left factor, shape (rows, rank); None for ones, with rank 1.
        right: the right factor, shape (rank, columns).
        ranks: the rank of the product.
        scaling: factor of the product.
        magnitude: norms of rows, or of columns if `by_column`; None without DoRA.
        region: the rows or columns to which the product is added, if not all; not with DoRA.
        places: for each matrix, the index of its product, or -1 for none; by default, each matrix has its own.
    """

    base: Tensor
    left: Factor | None
    right: Factor
    ranks: int
    scaling: float
    magnitude: Tensor | None = None
    by_column: bool = False
    region: Region | None = None
    places: tuple[int, ...] = ()

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        factors = [factor.tensor for factor in (self.left, self.right) if factor is not None]
        return (*factors, *([self.magnitude] if self.magnitude is not None else []), self.base)

    # --- memory ------------------------------------------------------------------------------------------------------

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        if self.magnitude is None:
            return self._sum_scratch(tensor, elements)
        rows, columns = _matrix_shape(tensor)
        if self.by_column:
            panel = self._rows_per_panel(tensor) * columns
            return max(
                self._sum_scratch(tensor, elements),
                room(4 * panel) + room(4 * columns) + _load_scratch(self.magnitude, columns),
                room(4 * panel) + self._sum_scratch(tensor, panel),
            )
        row_count = min(rows, elements // columns + 2)
        return (
            room(4 * row_count)
            + _load_scratch(self.magnitude, row_count)
            + room(4 * columns)
            + self._sum_scratch(tensor, max(elements, columns))
        )

    def _sum_scratch(self, tensor: Tensor, elements: int) -> int:
        rows, columns = _matrix_shape(tensor)
        row_count = min(rows, elements // columns + 2)
        right = self.right.scratch(self.right.panel(columns, self.ranks), self.ranks)
        left = room(4 * row_count)
        if self.left is not None:
            left = self.left.scratch(self.left.panel(row_count, self.ranks), self.ranks)
        apart = 0
        if self.region is not None:
            high, width = self._panel_shape(self.region, columns)
            apart = room(4 * min(high, row_count) * width)
        return max(_load_scratch(self.base, elements), room(16 * TILE) + right + left + apart)

    # --- reading -----------------------------------------------------------------------------------------------------

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        values = out.view(np.float32)
        if self.magnitude is None:
            self._sum_products(reader, tensor, start, stop, values)
        elif self.by_column:
            factors = self._column_factors(reader, tensor)
            self._sum_products(reader, tensor, start, stop, values)
            scale_columns(values, start, factors)
        else:
            columns = _matrix_shape(tensor)[1]
            top, bottom = start // columns, -(-stop // columns)
            magnitudes = _take_float32(reader, bottom - top)
            _read_float32(reader, self.magnitude, top, bottom, magnitudes)
            first, last = -(-start // columns), stop // columns  # the complete rows
            if first < last:
                inside = values[first * columns - start : last * columns - start]
                self._sum_products(reader, tensor, first * columns, last * columns, inside)
                scale_rows(inside, columns, magnitudes[first - top : last - top])
            for row in {top, bottom - 1} - set(range(first, last)):  # norms need the whole row
                with reader.arena.scratch():
                    whole = _take_float32(reader, columns)
                    self._sum_products(reader, tensor, row * columns, (row + 1) * columns, whole)
                    scale_rows(whole, columns, magnitudes[row - top : row - top + 1])
                    low, high = max(start, row * columns), min(stop, (row + 1) * columns)
                    values[low - start : high - start] = whole[low - row * columns : high - row * columns]

    def _sum_products(self, reader: Reader, tensor: Tensor, start: int, stop: int, values: Reals) -> None:
        _read_float32(reader, self.base, start, stop, values)
        rows, columns = _matrix_shape(tensor)
        size = rows * columns
        with reader.arena.scratch():
            sums = _take_float32(reader, 4 * TILE)
            for expert in range(start // size, -(-stop // size)):
                begin = expert * size
                low, high = max(start, begin), min(stop, begin + size)
                place = self.places[expert] if self.places else expert
                inside = values[low - start : high - start]
                if place >= 0 and self.region is not None:
                    self._add_region(reader, place, self.region, columns, low - begin, inside, sums)
                elif place >= 0:
                    self._add_expert_product(reader, place, columns, low - begin, inside, sums)

    @staticmethod
    def _panel_shape(region: Region, columns: int) -> tuple[int, int]:
        """How many rows of a region are computed at a time, and their width."""
        width = region.count if region.is_columns else columns
        return max(1, _PANEL // width), width

    def _add_region(
        self, reader: Reader, expert: int, region: Region, columns: int, start: int, values: Reals, sums: Reals
    ) -> None:
        """Like `_add_expert_product`, but only for some rows or columns of the expert's matrix."""
        stop = start + values.size
        top, bottom = start // columns, -(-stop // columns)
        high, width = self._panel_shape(region, columns)
        first, step = (0, 1) if region.is_columns else (region.first, region.step)
        begin, end = max(0, -(-(top - first) // step)), -(-(bottom - first) // step)
        end = end if region.is_columns else min(end, region.count)
        for low in range(begin, end, high):
            with reader.arena.scratch():
                rows = min(high, end - low)
                product = _take_float32(reader, rows * width)
                product[:] = 0
                self._add_expert_product(reader, expert, width, low * width, product, sums)
                for row in range(rows):
                    place = (first + (low + row) * step) * columns - start
                    line = product[row * width : (row + 1) * width]
                    if region.is_columns:
                        _add_strided(values, line, place + region.first, region.step)
                    else:
                        _add_strided(values, line, place, 1)

    def _add_expert_product(
        self, reader: Reader, expert: int, columns: int, start: int, values: Reals, sums: Reals
    ) -> None:
        """Add the product to elements of an expert's matrix, beginning with element `start`."""
        stop = start + values.size
        top, bottom = start // columns, -(-stop // columns)
        begin, end = (start % columns, (stop - 1) % columns + 1) if bottom - top == 1 else (0, columns)
        wide = self.right.panel(columns, self.ranks)
        high = self.left.panel(bottom - top, self.ranks) if self.left is not None else bottom - top
        for column in range(begin, end, wide):
            last = min(column + wide, end)
            with reader.arena.scratch():
                right = self.right.read(reader, expert, self.ranks, column, last, ranks_first=True)
                for row in range(top, bottom, high):
                    below = min(row + high, bottom)
                    with reader.arena.scratch():
                        if self.left is not None:
                            left = self.left.read(reader, expert, self.ranks, row, below, ranks_first=False)
                        else:
                            left = _take_float32(reader, below - row)
                            left[:] = 1
                        add_product(
                            values,
                            start,
                            columns,
                            left,
                            right,
                            (row, below - row),
                            (column, last - column),
                            self.ranks,
                            self.scaling,
                            sums,
                        )

    def _column_factors(self, reader: Reader, tensor: Tensor) -> Reals:
        """The factors that scale columns to their magnitudes.

        They depend on all elements of a column, so they are computed once and kept.
        """
        assert self.magnitude is not None
        with _computing:
            if (cache := vars(self).get("_factors")) is not None:
                return cast(Reals, cache)
            rows, columns = _matrix_shape(tensor)
            sums = np.zeros(columns, np.float64)
            step = self._rows_per_panel(tensor)
            with reader.arena.scratch():
                values = _take_float32(reader, step * columns)
                for row in range(0, rows, step):
                    below = min(row + step, rows)
                    part = values[: (below - row) * columns]
                    self._sum_products(reader, tensor, row * columns, below * columns, part)
                    add_squares(part, sums)
                magnitudes = _take_float32(reader, columns)
                _read_float32(reader, self.magnitude, 0, columns, magnitudes)
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    factors = np.divide(magnitudes, np.sqrt(sums).astype(np.float32), dtype=np.float32)
            vars(self)["_factors"] = factors
            return factors

    @staticmethod
    def _rows_per_panel(tensor: Tensor) -> int:
        rows, columns = _matrix_shape(tensor)
        return max(1, min(rows, _PANEL // columns))


def _add_strided(values: Reals, line: Reals, place: int, step: int) -> None:
    """Add a line to each `step`-th value, beginning with index `place`; indexes outside of `values` are skipped."""
    begin, end = max(0, -(place // step)), min(line.size, -((place - values.size) // step))
    if begin < end:
        values[place + begin * step : place + (end - 1) * step + 1 : step] += line[begin:end]


def _matrix_shape(tensor: Tensor) -> tuple[int, int]:
    rows, columns = tensor.shape[-2:] if len(tensor.shape) > 1 else (1, *tensor.shape)
    return rows, columns


@dataclass(frozen=True)
class OtherRows(Origin):
    """A float32 matrix in which some rows are replaced by rows of another: embeddings with new values for some tokens.

    Attributes:
        base: the matrix.
        rows: the numbers of the replaced rows, ascending.
        places: for each replaced row, the number of its row in `values`.
        values: the matrix with the new rows.
    """

    base: Tensor
    rows: tuple[int, ...]
    places: tuple[int, ...]
    values: Tensor

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        return self.values, self.base

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        columns = min(elements, tensor.shape[1])
        return max(_load_scratch(self.base, elements), _load_scratch(self.values, columns))

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        values, columns = out.view(np.float32), tensor.shape[1]
        _read_float32(reader, self.base, start, stop, values)
        for number in range(bisect_left(self.rows, start // columns), bisect_left(self.rows, -(-stop // columns))):
            begin = self.rows[number] * columns
            low, high = max(start, begin), min(stop, begin + columns)
            place = self.places[number] * columns + low - begin
            _read_float32(reader, self.values, place, place + high - low, values[low - start : high - start])
