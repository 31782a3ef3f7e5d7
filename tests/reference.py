"""The slow, obvious reference: Algorithm 1 of the paper in NumPy, one tensor at a time, everything in memory.

Tensors are arrays of bits; `decode` and `encode` go between bits and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BITS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F64": np.uint64}
NUMBERS = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}
# the largest magnitude's successor would be infinity
LARGEST = {"BF16": 3.3895313892515355e38, "F16": 65504.0, "F32": 3.4028234663852886e38, "F64": 1.7976931348623157e308}


@dataclass(frozen=True)
class Stored:
    """A tensor as stored: safetensors dtype, and the bits of its elements in its shape."""

    dtype: str
    bits: NDArray

    @property
    def is_float(self) -> bool:
        return self.dtype in BITS

    def numbers(self, real: type) -> NDArray:
        """The elements in `real`, which is exact."""
        with np.errstate(invalid="ignore"):
            return self.bits.view(NUMBERS[self.dtype]).astype(real)


def encode(values: NDArray, dtype: str) -> Stored:
    """Round float32 or float64 values once, to nearest even."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(NUMBERS[dtype])
    if dtype == "BF16" and values.dtype == np.float64:
        rounded = _nearest_bf16(values)
    return Stored(dtype, rounded.view(BITS[dtype]))


def _nearest_bf16(values: NDArray) -> NDArray:
    """float64 to bfloat16 without the detour over float32, by trying the neighbours of a guess."""
    with np.errstate(over="ignore"):
        guess = np.abs(values).astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.int32)
    largest = 0x7F7F
    best, distance = np.zeros_like(guess), np.full(values.shape, np.inf)
    for step in (-1, 0, 1):
        bits = np.clip(guess + step, 0, largest)
        candidate = bits.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
        away = np.abs(np.abs(values) - candidate)
        better = (away < distance) | ((away == distance) & (bits % 2 == 0))
        best, distance = np.where(better, bits, best), np.where(better, away, distance)
    half_beyond = 3.3961775292304957e38  # halfway between the largest number and the one that would follow
    best = np.where(np.abs(values) >= half_beyond, 0x7F80, best)
    sign = np.where(np.signbit(values), 0x8000, 0)
    return (best | sign).astype(np.uint16).view(ml_dtypes.bfloat16)


def real_of(tensors: Sequence[Stored]) -> type:
    return np.float64 if any(tensor.dtype == "F64" for tensor in tensors) else np.float32


def task_vectors(base: Stored, agents: Sequence[Stored]) -> list[NDArray]:
    real = real_of([base, *agents])
    with np.errstate(over="ignore", invalid="ignore"):
        return [agent.numbers(real) - base.numbers(real) for agent in agents]


def masks(taus: Sequence[NDArray], epsilon: float) -> list[NDArray]:
    return [np.abs(tau) > tau.dtype.type(epsilon) for tau in taus]


def count(base: Stored, agents: Sequence[Stored], epsilon: float) -> NDArray:
    """Active and unique elements of each agent: int64, shape (2, N)."""
    moved = masks(task_vectors(base, agents), epsilon)
    c = sum(m.astype(np.int64) for m in moved)
    return np.array([[m.sum() for m in moved], [(m & (c == 1)).sum() for m in moved]], np.int64)


def lambdas(counts: NDArray, method: str, r: float = 0.1, alpha: float = 2.0) -> list[float]:
    """Equations 2, 6 and 8."""
    result = []
    for active, unique in counts.T.tolist():
        shared = active - unique
        if method == "ram":
            result.append(1.0)
        elif method == "ram+":
            rho = shared / unique if unique else (float("inf") if shared else 0.0)
            result.append(1.0 + r * min(max(rho, 0.0), alpha))
        else:
            result.append(1.0 + r * (shared / (shared + unique) if active else 0.0))
    return result


def merge(base: Stored, agents: Sequence[Stored], scales: Sequence[float], epsilon: float, dtype: str) -> Stored:
    """Equation 7, element by element in a Python loop, so that there is nothing to get wrong."""
    taus = task_vectors(base, agents)
    moved = masks(taus, epsilon)
    real = taus[0].dtype.type
    b = base.numbers(real).reshape(-1)
    out = np.empty_like(b)
    with np.errstate(all="ignore"):
        for i in range(b.size):
            active = [t for t in range(len(agents)) if moved[t].reshape(-1)[i]]
            if not active:
                out[i] = b[i]
                continue
            if len(active) == 1:
                tau = real(scales[active[0]]) * taus[active[0]].reshape(-1)[i]
            else:
                tau = taus[active[0]].reshape(-1)[i]
                for t in active[1:]:
                    tau = tau + taus[t].reshape(-1)[i]
                tau = tau / real(len(active))
            out[i] = b[i] + tau
    result = encode(out, dtype)
    if dtype == base.dtype:
        unmoved = ~np.logical_or.reduce(moved).reshape(-1)
        result.bits[unmoved] = base.bits.reshape(-1)[unmoved]
    return Stored(dtype, result.bits.reshape(base.bits.shape))
