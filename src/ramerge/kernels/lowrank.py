"""Adds a product of two thin matrices to part of a matrix: what a LoRA adapter does to a weight.

An element of the product is summed over the rank from its first to its last term, each with one fused multiplication
and addition, whatever is computed around it. So the bytes depend neither on the blocks in which a matrix is computed,
nor on threads, nor on the processor.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native

Reals = NDArray[np.float32]

TILE = 512
"""Columns that are computed at a time: four rows of sums stay in the L1 cache, and rank 64 of `right` in the L2."""

# Sums of four rows over four ranks at a time: 16 products for each 8 loads and 4 stores, which two units for products
# can be fed with. The last ranks and rows are done one by one, in the same order.
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


def _lines(*lines: str, indent: int) -> str:
    return ("\n" + " " * indent).join(lines)


@cache
def _compiled() -> Any:
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
    text = _SOURCE.format(
        tile=TILE,
        factors=_lines(*factors, indent=20),
        origins=_lines(*origins, indent=20),
        terms=_lines(*terms, indent=24),
        quad=_lines(*quad, indent=24),
    )
    arguments = ("f32[]", "u64", "u64", "f32[]", "f32[]", "u64", "u64", "u64", "u64", "u64", "f32", "f32[]")
    return native.load("add_product", text, arguments, "i64")
