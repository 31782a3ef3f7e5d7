"""Adds a product of two thin matrices to part of a matrix, and scales rows or columns, for LoRA and DoRA.

An element of the product is summed over the rank in order, with one fused multiply-add for each term, however the
loops are tiled. Norms are float64 sums in a fixed order. So the bytes depend neither on the blocks in which a matrix is
computed, nor on threads, nor on the processor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native

Reals = NDArray[np.float32]

TILE = 512
"""Columns computed at a time: four rows of sums stay in the L1 cache, and 64 rows of `right` in the L2 cache."""

# Four rows are summed over four ranks at a time: 16 products for every 8 loads and 4 stores, which keeps two FMA units
# busy. The remaining ranks and rows are computed one by one, in the same order.
_SOURCE = """
def add_product(target, start, width, left, right, first, rows, columns, begin, rank, scaling, sums):
    # element (i, j) of the matrix is target[i * width + j - start], left[(i - first) * rank + k] and
    # right[k * columns + j - begin]
    length = np.uint64(target.size)
    tile = np.uint64({tile})
    one = np.uint64(1)
    zero = np.float32(0)
    stop = start + length
    for left_edge in range(np.uint64(0), columns, tile):
        right_edge = min(left_edge + tile, columns)
        row = np.uint64(0)
        while row < rows:
            flat = (first + row) * width + begin
            low, high, group = left_edge, right_edge, one
            if flat + low >= start and row + np.uint64(4) <= rows and (
                flat + np.uint64(3) * width + high <= stop
            ):
                group = np.uint64(4)
            else:
                if flat + high <= start or flat + low >= stop:
                    row += one
                    continue
                if flat + low < start:
                    low = start - flat
                if flat + high > stop:
                    high = stop - flat
            count = high - low
            for j in range(group * tile):
                sums[j] = zero
            k = np.uint64(0)
            if group == np.uint64(4):
                while k + np.uint64(4) <= rank:
                    {factors}
                    {origins}
                    for j in range(count):
                        {terms}
                        {quad}
                    k += np.uint64(4)
            for r in range(group):
                for last in range(k, rank):
                    factor = left[(row + r) * rank + last]
                    at = last * columns + low
                    for j in range(count):
                        sums[r * tile + j] = fused(factor, right[at + j], sums[r * tile + j])
                at = flat + r * width + low - start
                for j in range(count):
                    target[at + j] += scaling * sums[r * tile + j]
            row += group
    return 0
"""


def _add_product_source() -> str:
    four = range(4)
    factors = [f"f{r}{k} = left[(row + np.uint64({r})) * rank + k + np.uint64({k})]" for r in four for k in four]
    origins = [f"at{k} = (k + np.uint64({k})) * columns + low" for k in four]
    terms = [f"x{k} = right[at{k} + j]" for k in four]
    quad = []
    for r in four:
        place = f"sums[np.uint64({r * TILE}) + j]"
        quad.append(f"s{r} = {place}")
        quad += [f"s{r} = fused(f{r}{k}, x{k}, s{r})" for k in four]
    quad += [f"sums[np.uint64({r * TILE}) + j] = s{r}" for r in four]
    return native.fill(_SOURCE, tile=TILE, factors=factors, origins=origins, terms=terms, quad=quad)


_add_product = native.deferred_kernel(
    "add_product",
    _add_product_source(),
    ("f32[]", "u64", "u64", "f32[]", "f32[]", "u64", "u64", "u64", "u64", "u64", "f32", "f32[]"),
)


def add_product(
    values: Reals,
    start: int,
    width: int,
    left: Reals,
    right: Reals,
    rows: tuple[int, int],
    columns: tuple[int, int],
    rank: int,
    scaling: float,
    sums: Reals,
) -> None:
    """Add `scaling` * (`left` @ `right`) to part of a matrix in float32: sum over the rank, multiply, then add.

    Args:
        values: elements `start:start + values.size` of a matrix with `width` columns, row by row; changed in place.
        start: index of the first element of `values` in the matrix.
        width: columns of the matrix.
        left: float32, shape (rows, rank), row by row.
        right: float32, shape (rank, columns), row by row.
        rows: the first row of the matrix that changes, and the number of rows of `left`.
        columns: the first column of the matrix that changes, and the number of columns of `right`.
        rank: the rank of the product.
        scaling: the factor, which is rounded to float32.
        sums: float32 scratch memory of 4 * `TILE` elements.
    """
    (first, high), (begin, wide) = rows, columns
    _add_product(values, start, width, left, right, first, high, wide, begin, rank, scaling, sums)


# Eight independent sums: a single sum would wait for each addition.
_SCALE_ROWS = """
def scale_rows(values, width, magnitudes):
    for i in range(np.uint64(magnitudes.size)):
        at = i * width
        {zero}
        whole = width - width % np.uint64(8)
        for j in range(np.uint64(0), whole, np.uint64(8)):
            {add}
        for j in range(whole, width):
            x = np.float64(values[at + j])
            s0 = s0 + x * x
        norm = np.float32(root_f64(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))))
        factor = magnitudes[i] / norm
        for j in range(width):
            values[at + j] = factor * values[at + j]
    return 0
"""


def _scale_rows_source() -> str:
    lanes = range(8)
    add = [f"x{lane} = np.float64(values[at + j + np.uint64({lane})])" for lane in lanes]
    add += [f"s{lane} = s{lane} + x{lane} * x{lane}" for lane in lanes]
    return native.fill(_SCALE_ROWS, zero=[f"s{lane} = np.float64(0)" for lane in lanes], add=add)


scale_rows = native.deferred_kernel("scale_rows", _scale_rows_source(), ("f32[]", "u64", "f32[]"))
"""`scale_rows(values, width, magnitudes)`: scale each row of `width` elements to its magnitude, in place.

A row is multiplied by magnitude / norm in float32. The norm is summed in float64, and rounded to float32.
"""

_ADD_SQUARES = """
def add_squares(values, sums):
    width = np.uint64(sums.size)
    for i in range(np.uint64(values.size) // width):
        for j in range(width):
            x = np.float64(values[i * width + j])
            sums[j] += x * x
    return 0
"""
add_squares = native.deferred_kernel("add_squares", _ADD_SQUARES, ("f32[]", "f64[]"))
"""`add_squares(values, sums)`: add the squares in each column of whole float32 rows, in order, to a float64 sum."""


def scale_columns(values: Reals, start: int, factors: Reals) -> None:
    """Multiply float32 elements of a matrix by the factor of their column, in place.

    `values` are elements `start:start + values.size` of the matrix, row by row.
    """
    head = min(-start % factors.size, values.size)
    rows = (values.size - head) // factors.size
    tail = head + rows * factors.size
    values[:head] *= factors[start % factors.size :][:head]
    values[head:tail].reshape(rows, factors.size)[:] *= factors
    values[tail:] *= factors[: values.size - tail]
