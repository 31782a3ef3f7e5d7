"""Sums of floats as integers, independent of the order of addition.

Elements are added in float64 over chunks of `CHUNK` elements, counted from a tensor's first element, in an order that
is the same on every processor. The sums of chunks are added exactly.

A float64 becomes a fixed-point number with 32-bit limbs, whose lowest bit stands for 2^-320. Limbs are stored as int64
and added separately; carries are only propagated when a sum is read.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# The number of elements that are added before their sum becomes a fixed-point number.
CHUNK = 1 << 16

LIMBS = 14
"""The number of limbs for sums below 2^128."""

WIDE_LIMBS = 20
"""The number of limbs for sums of products of float32, which are below 2^320."""

_LOWEST = 320  # squares of the smallest float32 differences are some 2^-298
_MASK = (1 << 32) - 1


def encode(values: NDArray[np.float64], limbs: NDArray[np.int64]) -> None:
    """Add float64 values of shape (n,) as fixed-point numbers to int64 limbs of shape (n, limbs), in place.

    Bits below 2^-320 are cut off; values that are not finite are skipped.
    """
    for value, row in zip(values.tolist(), limbs, strict=True):
        if value == 0 or not math.isfinite(value):
            continue
        mantissa, exponent = math.frexp(value)
        shift = exponent - 53 + _LOWEST
        whole = int(math.ldexp(abs(mantissa), 53))
        whole = whole << shift if shift >= 0 else whole >> -shift
        sign = 1 if value > 0 else -1
        first = max(shift, 0) // 32
        for index in range(first, min(first + 4, len(row))):
            row[index] += sign * ((whole >> (32 * index)) & _MASK)


def decode(limbs: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the fixed-point sums as float64 of shape (n,), each rounded once."""
    digits = np.zeros((len(limbs), limbs.shape[1] + 2), np.int64)  # a sum of limbs has at most 64 bits more
    digits[:, :-2] = limbs
    for index in range(limbs.shape[1]):
        digits[:, index + 1] += digits[:, index] >> 32
        digits[:, index] &= _MASK
    digits[:, -1] = digits[:, -2] >> 63
    rows = digits.astype("<u4")
    return np.array([int.from_bytes(row.tobytes(), "little", signed=True) / (1 << _LOWEST) for row in rows], np.float64)
