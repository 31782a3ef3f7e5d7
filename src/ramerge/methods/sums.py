"""Statistics that are sums of float64 over segments of tensors. Neither blocks nor threads nor processors matter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels.fixed import CHUNK, WIDE_LIMBS, decode, encode
from ramerge.methods.base import Counts, Statistic

Floats = NDArray[np.float64]

_LARGEST = 2.0**300


@dataclass(frozen=True)
class Sums(Statistic):
    """Sums over a part of the model: of `kernels.sums` over chunks, which are added as fixed-point integers.

    Their last row counts chunks whose sums are out of range.
    """

    chunk = CHUNK

    @abstractmethod
    def terms(self, agents: int) -> Sequence[tuple[int, int]]:
        """What is summed, as `kernels.sums` takes it."""

    def blank(self, agents: int) -> Counts:
        """int64, shape (terms + 1, limbs)."""
        return np.zeros((len(self.terms(agents)) + 1, WIDE_LIMBS), np.int64)

    def enter(self, found: Floats, counts: Counts) -> None:
        """Add sums of shape (chunks, terms)."""
        usable = np.abs(found) < _LARGEST  # false for NaN, too
        counts[-1, 0] += np.count_nonzero(~usable)
        for row in np.where(usable, found, 0):
            encode(row, counts[:-1])

    def read(self, total: NDArray[np.int64]) -> Floats:
        """The sums, in the order of terms; NaN if one was out of range."""
        found = decode(total[:-1])
        return np.full_like(found, np.nan) if total[-1, 0] else found
