"""Quantised weights by their references' formulas, in NumPy, written to be obvious."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}


def expanded(scales: NDArray, shape: tuple[int, ...], block: tuple[int, int]) -> NDArray:
    """Every scale repeated over its block of a stack of matrices, and cut to the tensor."""
    rows, columns = shape[-2:]
    wide = np.repeat(np.repeat(scales, block[0], -2), block[1], -1)
    return wide[..., :rows, :columns].reshape(shape)


def dequantised(
    codes: str,
    code_bytes: NDArray[np.uint8],
    scales: NDArray,
    shape: tuple[int, ...],
    block: tuple[int, int],
    divisor: float = 1.0,
) -> NDArray[np.float32]:
    """Codes times scales in float32; two codes of 4 bits in a byte, the low one first."""
    if codes == "E2M1":
        nibbles = np.stack([code_bytes & 15, code_bytes >> 4], -1).reshape(-1)[: int(np.prod(shape))]
        values = FLOAT4[nibbles].reshape(shape)
    else:
        values = code_bytes.view(_FLOAT8[codes]).astype(np.float32).reshape(shape)
    allowed = scales.astype(np.float32)
    least = allowed >= 0 if scales.dtype == ml_dtypes.float8_e4m3fn else allowed > 0
    allowed = np.where(least & np.isfinite(allowed), allowed, np.float32(np.nan))
    return values * expanded(allowed / np.float32(divisor), shape, block)


def quantised(codes: str, scales: str, values: NDArray, block: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray]:
    """Codes (uint8, the tensor's shape) and scales (of a stack of grids) as tools/convert_hf_to_fp8.py of slime makes
    them, in float32: the largest magnitude of each block, filled up with zeros, over the largest code."""
    kind = _FLOAT8[codes]
    largest = np.float32(ml_dtypes.finfo(kind).max)
    rows, columns = values.shape[-2:]
    stack = values.astype(np.float32).reshape(-1, rows, columns)
    down, across = -(-rows // block[0]), -(-columns // block[1])
    padded = np.zeros((len(stack), down * block[0], across * block[1]), np.float32)
    padded[:, :rows, :columns] = stack
    peaks = np.abs(padded).reshape(len(stack), down, block[0], across, block[1]).max((2, 4))
    wanted = np.maximum(peaks, np.float32(1e-12)) / largest
    if scales == "BF16":
        stored = wanted.astype(ml_dtypes.bfloat16)
    elif scales == "F8_E8M0":
        stored = np.exp2(np.ceil(np.log2(wanted.astype(np.float64)))).astype(ml_dtypes.float8_e8m0fnu)
    else:
        stored = wanted
    over = stack / expanded(stored.astype(np.float32), stack.shape, block)
    made = np.clip(over, -largest, largest).astype(kind).view(np.uint8)
    lead = values.shape[:-2]
    return made.reshape(values.shape), stored.reshape(*lead, down, across)
