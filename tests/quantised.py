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
