"""Turns quantized weights into float32: widens every code exactly, and multiplies by the scale with one rounding.

Scales form a grid: each belongs to a rectangle of `block_rows` by `block_columns` elements of a matrix; rectangles at
the lower and right edges may be smaller. So one loop serves scales per tensor, channel, group and block. Any range of
elements can be decoded separately, and gives the same bits.

An invalid scale (NaN, infinite, negative, or 0 where a scale cannot underflow) makes its elements NaN. They are then
counted and refused like any other weights that are not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.native import Kernel


@dataclass(frozen=True)
class Grid:
    """Layout of a tensor's scales.

    A tensor of more than two dimensions is a stack of matrices, each with its own scales; `rows` counts the rows of one
    matrix. Blocks at the lower and right edges may be smaller than `block_rows` by `block_columns`.
    """

    rows: int
    columns: int
    block_rows: int
    block_columns: int

    @property
    def down(self) -> int:
        return -(-self.rows // self.block_rows)

    @property
    def across(self) -> int:
        return -(-self.columns // self.block_columns)

    def scales_of(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of the row-major grid with the scales of elements `start:stop`: whole rows of the grid."""
        if start >= stop:
            return 0, 0
        return self._row_of(start) * self.across, (self._row_of(stop - 1) + 1) * self.across

    def _row_of(self, element: int) -> int:
        row = element // self.columns
        return row // self.rows * self.down + row % self.rows // self.block_rows


# By format: the intrinsics that widen the codes of a byte, in memory order.
CODES = {"F8_E4M3": ("e4m3",), "F8_E5M2": ("e5m2",), "E2M1": ("e2m1_low", "e2m1_high")}


@dataclass(frozen=True)
class Scales:
    """A format of scales: bytes of a scale, the expression of scale number `at`, and the condition of a valid scale."""

    itemsize: int
    value: str
    least: str


_POSITIVE = "value > np.float32(0)"
SCALES = {
    "F32": Scales(4, "f32_whole(words[at])", _POSITIVE),
    "BF16": Scales(2, "bf16_bytes(scales[2 * at], scales[2 * at + ONE])", _POSITIVE),
    "F8_E8M0": Scales(1, "e8m0(scales[at])", _POSITIVE),
    # a group whose weights are tiny has a scale of 0
    "F8_E4M3": Scales(1, "e4m3(scales[at])", "value >= np.float32(0)"),
}
_TEXT = """
def {name}(codes, scales, words, out, first, first_scale, factor, divisor, rows, columns, block_rows, block_columns):
    ONE, TWO, INFINITY = np.uint64(1), np.uint64(2), np.float32(np.inf)
    size = np.uint64(out.size)
    down = (rows + block_rows - ONE) // block_rows
    across = (columns + block_columns - ONE) // block_columns
    behind = first % TWO  # the first of two codes in a byte that is not needed
    row, column = first // columns, first % columns
    i = np.uint64(0)
    while i < size:
        grid_row = row // rows * down + row % rows // block_rows
        end = min(size, i + columns - column)
        at = grid_row * across + column // block_columns - first_scale
        left = block_columns - column % block_columns
        while i < end:
            value = {value} * factor / divisor
            scale = value if {least} and value < INFINITY else np.float32(np.nan)
            length = min(left, end - i)
            {run}
            i += length
            left = block_columns
            at += ONE
        row, column = row + ONE, np.uint64(0)
    return 0
"""

_ONE_A_BYTE = """
            for j in range(length):
                out[i + j] = {low}(codes[i + j]) * scale
"""
_TWO_A_BYTE = """
            odd = (i + behind) % TWO
            if odd == ONE:
                out[i] = {high}(codes[(i + behind) // TWO]) * scale
            pairs, at_pair = (length - odd) // TWO, (i + behind + odd) // TWO
            for j in range(pairs):
                pair = codes[at_pair + j]
                out[i + odd + TWO * j] = {low}(pair) * scale
                out[i + odd + TWO * j + ONE] = {high}(pair) * scale
            if odd + TWO * pairs < length:
                out[i + length - ONE] = {low}(codes[at_pair + pairs]) * scale
"""


@cache
def _dequantization_kernel(codes: str, scales: str) -> Kernel:
    name = f"dequantize_{codes.lower()}_{scales.lower()}"
    lanes, scale = CODES[codes], SCALES[scales]
    run = (_ONE_A_BYTE if len(lanes) == 1 else _TWO_A_BYTE).format(low=lanes[0], high=lanes[-1])
    text = _TEXT.format(name=name, value=scale.value, least=scale.least, run=run.strip())
    return native.load(name, text, ("u8[]", "u8[]", "u32[]", "f32[]", "u64", "u64", "f32", "f32", *["u64"] * 4), "i64")


def dequantize(
    codes: str,
    code_bytes: NDArray[np.uint8],
    scales: str,
    scale_bytes: NDArray[np.uint8],
    grid: Grid,
    first: int,
    out: NDArray[np.float32],
    factor: float = 1.0,
    divisor: float = 1.0,
) -> None:
    """Write elements `first : first + out.size` of a tensor, in row-major order, to `out`.

    Args:
        codes: format of the codes, a key of `CODES`.
        code_bytes: the codes of these elements; if a byte holds two codes, starting with the byte of the first element.
        scales: format of the scales, a key of `SCALES`.
        scale_bytes: the scales `grid.scales_of(first, first + out.size)`, aligned for their format.
        grid: the layout of the scales.
        first: index of the first element.
        out: float32, the result.
        factor: multiplies every scale first, in float32 (the second scale of ModelOpt's NVFP4).
        divisor: divides every scale first, in float32 (the global scale of compressed-tensors' NVFP4).
    """
    if not out.size:
        return
    words = scale_bytes.view(np.uint32) if scales == "F32" else np.empty(0, np.uint32)
    _dequantization_kernel(codes, scales)(
        code_bytes,
        scale_bytes,
        words,
        out,
        first,
        grid.scales_of(first, first + out.size)[0],
        factor,
        divisor,
        grid.rows,
        grid.columns,
        grid.block_rows,
        grid.block_columns,
    )
