"""Sums of floats as integers, independent of the order of addition.

Elements are added in float64 over chunks of `CHUNK` elements, counted from a tensor's first one, in an order that is
the same on every processor. The sum of a chunk is added exactly to those of others.

A float64 becomes a fixed-point number of limbs of 32 bits, whose last bit stands for 2^-320. Limbs are int64 and are
added as they are; a carry is only made when a sum is read.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# A tensor's elements that are added before the sum becomes a fixed-point number.
CHUNK = 1 << 16

LIMBS = 14
"""For sums below 2^128."""

WIDE_LIMBS = 20
"""For sums of products of float32: below 2^320."""

_LOWEST = 320  # squares of the smallest float32 differences are some 2^-298
_MASK = (1 << 32) - 1


def encode(values: NDArray[np.float64], limbs: NDArray[np.int64]) -> None:
    """Add float64 values of shape (n,) as fixed-point numbers to limbs of shape (n, any number).

    What lies below 2^-320 is cut off; values that are not finite add nothing.
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
    """The fixed-point sums, rounded once: float64 of shape (n,)."""
    digits = np.zeros((len(limbs), limbs.shape[1] + 2), np.int64)  # a sum of limbs has at most 64 bits more
    digits[:, :-2] = limbs
    for index in range(limbs.shape[1]):
        digits[:, index + 1] += digits[:, index] >> 32
        digits[:, index] &= _MASK
    digits[:, -1] = digits[:, -2] >> 63
    rows = digits.astype("<u4")
    return np.array([int.from_bytes(row.tobytes(), "little", signed=True) / (1 << _LOWEST) for row in rows], np.float64)
