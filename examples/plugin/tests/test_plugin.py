"""What the method computes, and all that every method holds to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import ramerge.testing


def by_the_book(base: NDArray, taus: list[NDArray], weights: float = 1.0, limit: float = 1.5) -> NDArray:
    total = sum((np.float32(weights) * tau for tau in taus), np.zeros_like(base))
    bound = np.float32(limit) * np.max(np.abs(taus), axis=0)
    return base + np.clip(total, -bound, bound)


def test_clipped_sum() -> None:
    ramerge.testing.check_method(
        "clipped_sum", reference=by_the_book, parameters=[{}, {"limit": 1.0}, {"weights": 0.5}]
    )
