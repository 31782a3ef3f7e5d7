"""Computes two thin factors of a matrix's update, exact or as close as their rank allows; called by `adapter_output`.

A sum of low-rank products is the product of their concatenated factors. It is truncated by the singular values of a
core matrix as small as its rank. Any other update is read in blocks of rows, and only matrices as thin as the rank are
in memory: a randomized range finder with power iterations (Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1)
finds the important columns. If a side is short, or a large rank is needed, the eigenvectors of that side's Gram matrix
are used, which are exact. All is computed in float64, and the loss is measured with the float32 factors as written. The
result depends only on update, settings and the matrix's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from ramerge.deltas.adapter_plan import BLOCK_ELEMENTS, ENERGY, OVERSAMPLING, SMALL
from ramerge.deltas.kinds import AsAdapter

Matrix: TypeAlias = NDArray[np.float64]
Thin: TypeAlias = NDArray[np.float32]

_POWER_ITERATIONS = 2
_FIRST_COLUMNS = 128
# The share of the largest singular value below which a direction is rounding.
_NOISE = 1e-9
# A sum of products that is as small, compared with their factors, is the rounding of terms that cancel out.
_CANCELLATION = 1e-14


class Update:
    """The update of a matrix, shape (m, n), whose rows are read again for every product.

    Args:
        rows: returns rows `start:stop`.
    """

    def __init__(self, shape: tuple[int, int], rows: Callable[[int, int], Matrix]) -> None:
        self.shape = shape
        self._rows = rows

    def blocks(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield all rows of the update in order, in blocks."""
        m, n = self.shape
        step = max(1, BLOCK_ELEMENTS // max(n, 1))
        for start in range(0, m, step):
            stop = min(start + step, m)
            yield slice(start, stop), self._rows(start, stop)

    @property
    def energy(self) -> float:
        """The squared norm of the update."""
        return math.fsum(float(np.vdot(block, block)) for _, block in self.blocks())

    def times(self, right: Matrix) -> Matrix:
        """Return the product of the update with a matrix of n rows."""
        product = np.empty((self.shape[0], right.shape[1]))
        for rows, block in self.blocks():
            product[rows] = block @ right
        return product

    def multiply_transposed(self, right: Matrix) -> Matrix:
        """Return the product of the transposed update with a matrix of m rows."""
        product = np.zeros((self.shape[1], right.shape[1]))
        for rows, block in self.blocks():
            product += block.T @ right[rows]
        return product

    def gram(self) -> Matrix:
        """Return the Gram matrix of the update's columns, or of its rows if there are fewer."""
        m, n = self.shape
        if n <= m:
            gram = np.zeros((n, n))
            for _, block in self.blocks():
                gram += block.T @ block
            return gram
        gram = np.empty((m, m))
        for rows, block in self.blocks():
            for others, other in self.blocks():
                if others.start > rows.start:
                    break
                gram[rows, others] = block @ other.T
                gram[others, rows] = gram[rows, others].T
        return gram


class Factors(NamedTuple):
    """Two factors in float32, and the loss of their product.

    Attributes:
        left: of shape (m, r).
        right: of shape (r, n).
        loss: squared norm of the difference between update and product.
        energy: squared norm of the update; not finite if an element is NaN or Inf, in which case there are no factors.
        is_exact: whether the only loss is the factors' rounding.
    """

    left: Thin
    right: Thin
    loss: float
    energy: float
    is_exact: bool = False

    @property
    def rank(self) -> int:
        return len(self.right)

    @property
    def is_finite(self) -> bool:
        """Whether the update is finite: a single NaN or Inf would spread to all elements of both factors."""
        return math.isfinite(self.energy)

    @property
    def error(self) -> float:
        """The norm of the loss, as a share of the norm of the update."""
        return math.sqrt(self.loss / self.energy) if self.energy else 0.0


_NOT_FINITE = Factors(np.empty((0, 0), np.float32), np.empty((0, 0), np.float32), math.nan, math.nan)


def concatenated(parts: Iterable[tuple[float, Matrix, Matrix]], settings: AsAdapter) -> Factors | None:
    """Return the factors of a sum of products, truncated according to the settings; None if the sum is 0.

    Args:
        parts: each product's scalar factor, its left matrix, shape (m, r), and its right matrix, shape (r, n).
        settings: rank or energy to keep; without either, nothing is truncated.
    """
    terms = [(factor * left, right) for factor, left, right in parts]
    left, right = np.concatenate([each for each, _ in terms], 1), np.concatenate([each for _, each in terms])
    if not left.any() or not right.any():
        return None
    if settings.energy is None and (settings.rank is None or len(right) <= settings.rank):
        return Factors(left.astype(np.float32), right.astype(np.float32), 0.0, 1.0, is_exact=True)
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return _NOT_FINITE
    outer, inner = np.linalg.qr(left), np.linalg.qr(right.T)
    u, sizes, v = np.linalg.svd(outer[1] @ inner[1].T)
    if sizes[0] <= _CANCELLATION * np.linalg.norm(left) * np.linalg.norm(right):
        return None
    count = len(sizes)
    energy = float(np.square(sizes).sum())
    factors = _cut_factors(outer[0] @ u[:, :count], sizes, v[:count] @ inner[0].T, energy, settings)
    if factors is None:
        return None
    # in factored form, because the product itself has as many elements as the matrix
    core = (
        np.concatenate([left, -factors[0].astype(np.float64)], 1),
        np.concatenate([right, factors[1].astype(np.float64)]),
    )
    outer_rest, inner_rest = (np.asarray(np.linalg.qr(each, mode="r")) for each in (core[0], core[1].T))
    rest = outer_rest @ inner_rest.T
    return Factors(*factors, float(np.square(rest).sum()), energy)


def decomposed(update: Update, name: str, settings: AsAdapter) -> Factors | None:
    """Return the factors of an update, truncated according to the settings; None if the update is 0.

    Args:
        name: the matrix's name, which seeds the draws.
        settings: rank or energy to keep; without either, `ENERGY`.
    """
    energy = update.energy
    if not energy:
        return None
    if not math.isfinite(energy):
        return _NOT_FINITE
    if settings.rank is None and settings.energy is None:
        settings = AsAdapter(energy=ENERGY)
    factors = _cut_factors(*_leading_directions(update, name, energy, settings), energy, settings)
    if factors is None:
        return None
    left, right = (each.astype(np.float64) for each in factors)
    loss = math.fsum(float(np.square(block - left[rows] @ right).sum()) for rows, block in update.blocks())
    return Factors(*factors, loss, energy)


def _leading_directions(update: Update, name: str, energy: float, settings: AsAdapter) -> tuple[Matrix, Matrix, Matrix]:
    """Return left singular vectors, singular values and right singular vectors: all, or as many as needed."""
    side = min(update.shape)
    columns = settings.rank + OVERSAMPLING if settings.rank is not None else _FIRST_COLUMNS
    while side > SMALL and 4 * columns <= side:
        sketch = _sketch_svd(update, name, columns)
        if settings.energy is None or np.square(sketch[1]).sum() >= settings.energy * energy:
            return sketch
        columns *= 2
    return _exact_svd(update, settings.rank)


def _sketch_svd(update: Update, name: str, columns: int) -> tuple[Matrix, Matrix, Matrix]:
    draws = np.random.default_rng(xxhash.xxh3_64_intdigest(name.encode()))
    basis = np.linalg.qr(update.times(draws.standard_normal((update.shape[1], columns))))[0]
    for _ in range(_POWER_ITERATIONS):
        basis = np.linalg.qr(update.times(np.linalg.qr(update.multiply_transposed(basis))[0]))[0]
    v, sizes, u = np.linalg.svd(update.multiply_transposed(basis), full_matrices=False)
    return basis @ u.T, sizes, v.T


def _exact_svd(update: Update, rank: int | None) -> tuple[Matrix, Matrix, Matrix]:
    values, vectors = np.linalg.eigh(update.gram())
    sizes = np.sqrt(np.maximum(values[::-1], 0))
    count = int(np.count_nonzero(sizes > _NOISE * sizes[0]))
    count = max(1, count if rank is None else min(rank, count))
    sizes, vectors = sizes[:count], np.ascontiguousarray(vectors[:, ::-1][:, :count])
    if update.shape[1] <= update.shape[0]:
        return update.times(vectors) / sizes, sizes, vectors.T
    return vectors, sizes, update.multiply_transposed(vectors).T / sizes[:, None]


def _cut_factors(u: Matrix, sizes: Matrix, v: Matrix, energy: float, settings: AsAdapter) -> tuple[Thin, Thin] | None:
    """Return the leading directions of an update as two factors; each factor has the root of the singular values."""
    count = int(np.count_nonzero(sizes > _NOISE * sizes[0]))
    if settings.rank is not None:
        count = min(count, settings.rank)
    elif settings.energy is not None:
        energies = np.cumsum(np.square(sizes[:count]))
        count = min(count, int(np.searchsorted(energies, settings.energy * energy * (1 - 1e-12))) + 1)
    roots = np.sqrt(sizes[:count])
    left, right = (u[:, :count] * roots).astype(np.float32), (roots[:, None] * v[:count]).astype(np.float32)
    return (left, right) if left.any() and right.any() else None


def overall(factors: Sequence[Factors]) -> float:
    """Return the norm of all losses, as a share of the norm of all truncated updates."""
    energy = math.fsum(each.energy for each in factors if not each.is_exact)
    return math.sqrt(math.fsum(each.loss for each in factors if not each.is_exact) / energy) if energy else 0.0
