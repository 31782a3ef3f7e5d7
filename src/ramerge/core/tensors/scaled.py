"""Tensors that are stored as 8-bit or 4-bit codes and scales."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.kernels import dequantize, quantize
from ramerge.core.kernels.dequantize import Grid
from ramerge.core.tensors.arena import Bytes, room
from ramerge.core.tensors.reader import Reader
from ramerge.core.tensors.tensor import Origin, Tensor


@dataclass(frozen=True)
class Scaling(Origin):
    """float32 numbers, each a code times a scale, computed by `kernels.dequantize`.

    Attributes:
        codes: the tensor of codes, in the same row-major order.
        format: the format of the codes.
        scales: the tensor of scales, with a grid for each matrix.
        scale_format: the format of the scales.
        grid: the shape of a matrix, and of the blocks that share a scale.
        factor: a tensor with one float32 number, or one per matrix; each scale is multiplied by it first.
        divisor: a tensor with one float32 number; each scale is divided by it first.
        dtype: the dtype that the model's tensor had before it was quantized.
        powers: whether all scales are powers of two, even if their format allows others.
    """

    codes: Tensor
    format: str
    scales: Tensor
    scale_format: str
    grid: Grid
    factor: Tensor | None = None
    divisor: Tensor | None = None
    dtype: str = "F32"
    powers: bool = False

    @property
    @override
    def encoding(self) -> str:
        return self.format

    @property
    @override
    def likeness(self) -> Hashable:
        return self.format, self.codes.likeness, self.scale_format, self.scales.likeness, self.grid

    @override
    def usual_dtype(self, tensor: Tensor) -> str:
        return self.dtype

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        return [part for part in (self.codes, self.scales, self.factor, self.divisor) if part is not None]

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        grid, per = self.grid, len(dequantize.CODES[self.format])
        codes = elements // per + (per > 1)
        rows = (elements - 1) // grid.columns + 2 if elements else 0
        # an incomplete row of scales at each end, and at the end of each matrix
        down = rows // grid.block_rows + 2 + rows // grid.rows + 1
        scales = min(min(rows, down) * grid.across, self.scales.elements)
        inner = max(self.codes.scratch(codes), self.scales.scratch(scales))
        return room(codes) + room(scales * itemsize(self.scales.dtype)) + 2 * room(4) + inner

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        size = self.grid.rows * self.grid.columns
        while start < stop:
            matrix = start // size
            end = min(stop, (matrix + 1) * size) if self.factor is not None and self.factor.elements > 1 else stop
            part, out = out[: 4 * (end - start)], out[4 * (end - start) :]
            with reader.arena.scratch():
                codes, scales = self.read_parts(reader, start, end)
                factor, divisor = self.number(reader, self.factor, matrix), self.number(reader, self.divisor, 0)
                dequantize.dequantize(
                    self.format,
                    codes,
                    self.scale_format,
                    scales,
                    self.grid,
                    start,
                    part.view(np.float32),
                    factor,
                    divisor,
                )
            start = end

    @staticmethod
    def number(reader: Reader, tensor: Tensor | None, place: int) -> float:
        """Read the factor or divisor of the scales of matrix number `place`; 1 if there is none."""
        if tensor is None:
            return 1.0
        place = place if tensor.elements > 1 else 0
        one = reader.arena.take(4)
        reader.read(tensor, place, place + 1, one)
        return float(one.view(np.float32)[0])

    def read_parts(self, reader: Reader, start: int, stop: int) -> tuple[Bytes, Bytes]:
        """Read the bytes of codes and scales for elements `start:stop`, into memory of the reader's arena."""
        per = len(dequantize.CODES[self.format])
        first, last = start // per, -(-stop // per)
        codes = reader.arena.take(last - first)
        reader.read(self.codes, first, last, codes)
        first, last = self.grid.scales_of(start, stop)
        scales = reader.arena.take((last - first) * itemsize(self.scales.dtype))
        reader.read(self.scales, first, last, scales)
        return codes, scales


def writable_scaling(tensor: Tensor) -> Scaling | None:
    """The codes and scales of a tensor, if results can be quantized in the same way; None if they cannot."""
    origin = tensor.origin
    if not isinstance(origin, Scaling) or origin.factor is not None or origin.divisor is not None:
        return None
    return origin if origin.format in quantize.CODES and origin.scale_format in quantize.STORES else None


def countable_scaling(tensor: Tensor) -> Scaling | None:
    """The codes and scales of a tensor, if the effect of quantizing a result to this format can be counted; else None.

    This includes formats to which results cannot be written (see `writable_scaling`).
    """
    origin = tensor.origin
    if isinstance(origin, Scaling) and origin.format == "E2M1" and origin.scale_format in quantize.GROUPS:
        return origin if origin.grid.block_rows == 1 else None
    return writable_scaling(tensor)


def scaling_unit(origin: Scaling) -> int:
    """The least number of elements that can be quantized alone, if they begin at a multiple of this number."""
    grid = origin.grid
    rows = grid.block_rows
    if rows >= grid.rows or (grid.rows % rows and origin.codes.elements > grid.rows * grid.columns):
        rows = grid.rows
    return rows * grid.columns


def scratch_of(origin: Scaling, elements: int) -> int:
    """The most bytes of temporary memory that `requantize` takes for this many elements."""
    tensor = Tensor("", "F32", (elements,), origin)
    return 2 * origin.scratch(tensor, elements)


def requantize(
    origin: Scaling, reader: Reader, start: int, stop: int, values: NDArray[np.float32], old: NDArray[np.float32]
) -> tuple[Bytes, Bytes]:
    """Quantize new values of elements `start:stop` like the stored tensor. Unchanged blocks keep their codes.

    Args:
        start: a multiple of `scaling_unit`.
        stop: a multiple of `scaling_unit`, or the end of the tensor.
        values: the new values.
        old: the decoded values of the stored tensor.

    Returns:
        The bytes of the codes, and of the scales.
    """
    old_codes, old_scales = origin.read_parts(reader, start, stop)
    codes, scales = reader.arena.take(old_codes.size), reader.arena.take(old_scales.size)
    quantize.quantize(
        origin.format,
        origin.scale_format,
        values,
        old,
        old_codes,
        old_scales,
        origin.grid,
        start,
        codes,
        scales,
        powers=origin.powers,
    )
    return codes, scales


def reread(
    origin: Scaling, reader: Reader, start: int, stop: int, values: NDArray[np.float32], old: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The values that elements `start:stop` would have after quantizing them like the stored tensor and decoding them.

    The arguments are those of `requantize`, with an origin from `countable_scaling`.
    """
    values_read = reader.arena.take(4 * values.size).view(np.float32)
    if origin.format in quantize.CODES:
        decode_parts(origin, start, *requantize(origin, reader, start, stop, values, old), values_read)
        return values_read
    size = origin.grid.rows * origin.grid.columns
    for matrix in range(start // size, -(-stop // size)):
        part = slice(max(start, matrix * size) - start, min(stop, (matrix + 1) * size) - start)
        with reader.arena.scratch():
            factor, divisor = origin.number(reader, origin.factor, matrix), origin.number(reader, origin.divisor, 0)
            quantize.survive(
                origin.scale_format,
                values[part],
                old[part],
                origin.grid.block_columns,
                origin.grid.columns,
                values_read[part],
                factor=factor,
                divisor=divisor,
            )
    return values_read


def decode_parts(origin: Scaling, start: int, codes: Bytes, scales: Bytes, out: NDArray[np.float32]) -> None:
    """Decode bytes of codes and scales, beginning with element `start`, into `out` (float32, 1-D)."""
    dequantize.dequantize(origin.format, codes, origin.scale_format, scales, origin.grid, start, out)
