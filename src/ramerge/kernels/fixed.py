"""Sums of floats as integers, so that what is added first does not matter.

Elements are added in float64 over chunks of `CHUNK` elements, counted from a tensor's first one, in an order that is
the same on every processor. The sum of a chunk is added exactly to those of others.

A float64 becomes a fixed-point number of limbs of 32 bits, whose last bit stands for 2^-320. Limbs are int64 and are
added as they are; a carry is only made when a sum is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ramerge.kernels.intrinsics import f64_pack

# A tensor's elements that are added before the sum becomes a fixed-point number.
CHUNK = 1 << 16

LIMBS = 14
"""For sums below 2^128."""

WIDE_LIMBS = 20
"""For sums of products of float32: below 2^320."""

_LOWEST = 320  # squares of the smallest float32 differences are some 2^-298
_MASK = (1 << 32) - 1


def encode(values: NDArray[np.float64], limbs: NDArray[np.int64]) -> None:
    """Add float64 values of shape (n,) to limbs of shape (n, any number).

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


def enter(value: Any, limbs: Any, first: Any) -> None:
    """`encode` of one number, in compiled code: add it to the limbs from `first` on."""
    bits = f64_pack(value)
    exponent = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    mantissa = bits & np.uint64((1 << 52) - 1)
    shift = exponent - np.int64(1075 - _LOWEST)
    if exponent > 0 and exponent < 0x7FF and shift > -53:
        mantissa = mantissa | np.uint64(1 << 52)
        mantissa = mantissa >> np.uint64(max(-shift, np.int64(0)))
        shift = max(shift, np.int64(0))
        place, by = shift >> 5, np.uint64(shift & 31)
        mask, sign = np.uint64(_MASK), np.int64(1) - np.int64((bits >> np.uint64(63)) << np.uint64(1))
        parts = (
            (mantissa << by) & mask,
            (mantissa >> (np.uint64(32) - by)) & mask,
            (mantissa >> np.uint64(32)) >> (np.uint64(32) - by),
        )
        for index in range(3):
            if place + index < LIMBS:
                limbs[first + place + index] += sign * np.int64(parts[index])


def decode(limbs: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sums, rounded once: float64 of shape (n,)."""
    return np.array(
        [sum(limb << (32 * index) for index, limb in enumerate(row)) / (1 << _LOWEST) for row in limbs.tolist()],
        np.float64,
    )
