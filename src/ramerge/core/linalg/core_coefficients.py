"""Coefficients that preserve each task vector's effect in its core, its leading singular directions.

For N task vectors d_j of shape (m, n), let U_i diag(s_i) V_i^T be the core of d_i. The effect of d_j in it, and the
core's metric, are

    M_ij = U_i^T d_j V_i        g_i[a, b] = (s_ia s_ib)^(2 power) / sum_ab (s_ia s_ib)^(2 power) M_ii[a, b]^2

The coefficients w, between 0 and 1, minimize the deviation of sum_j w_j d_j from d_i in the core of d_i, summed over i:

    sum_i sum_ab g_i[a, b] (sum_j w_j M_ij - M_ii)[a, b]^2 = w^T A w - 2 b^T w + constant

For large matrices, a randomized range finder with subspace iteration computes the singular directions (Halko,
Martinsson and Tropp 2011, arXiv 0909.4061, algorithm 4.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ramerge.core.kernels.threefry import words
from ramerge.core.linalg import arrays, spectral
from ramerge.core.linalg.arrays import Array, real_of, wide
from ramerge.core.linalg.spectral import Triples

_OVERSAMPLED = 16  # extra directions of the range finder
_EXACT = 64  # up to this side, a full eigendecomposition takes no longer
_TOLERANCE = 1e-6  # the change of a coefficient at which descent stops
_MOST_SWEEPS = 10_000
_NOISE = 1e-12  # a task vector below this share of the largest squared norm has not moved the tensor


def core(tau: Array, rank: int, iterations: int, key: tuple[int, int]) -> Triples:
    """Compute the core of a task vector: its leading singular triples, by a randomized range finder.

    Args:
        tau: the task vector.
        rank: the number of triples; fewer if the matrix has a lower rank, more if the last singular values are equal.
        iterations: the number of subspace iterations.
        key: the key of the random draws (`kernels.threefry`).
    """
    if min(tau.shape) <= max(_EXACT, rank + _OVERSAMPLED):
        return spectral.leading(tau, lambda _values: rank)
    basis = arrays.qr(tau @ _random_signs(tau, rank + _OVERSAMPLED, key))
    for _ in range(iterations):
        basis = arrays.qr(tau @ arrays.qr(tau.T @ basis))
    triples = spectral.leading(basis.T @ tau, lambda _values: rank)
    return Triples(basis @ arrays.astype(triples.u, real_of(tau)), triples.s, triples.v)


def _random_signs(tau: Array, columns: int, key: tuple[int, int]) -> Array:
    count = tau.shape[1] * columns
    bits = np.unpackbits(words(key, 0, -(-count // 32)).view(np.uint8), count=count)
    return arrays.asarray((2 * bits.astype(real_of(tau)) - 1).reshape(tau.shape[1], columns), tau)


def coefficients(taus: Sequence[Array], cores: Sequence[Triples], power: float) -> Array:
    """Return the coefficients that preserve the cores of task vectors: float64, shape (N,), from 0 to 1."""
    if len(taus) == 1:
        return np.ones(1)
    overlap, target = _quadratic_terms(taus, cores, power)
    return _bounded_minimum(overlap, target)


def acts(taus: Sequence[Array], cores: Sequence[Triples], power: float) -> Iterator[tuple[Array, list[Array]]]:
    """Compute the metric g_i of each core i, and the effects M_ij of all task vectors j in it.

    Yields:
        g_i and a list of N matrices M_ij, NumPy arrays of shape (k, k).
    """
    right = arrays.concat([arrays.astype(one.v, real_of(taus[0])) for one in cores], 1)
    ends = np.cumsum([one.s.size for one in cores])
    projections = [tau @ right for tau in taus]
    for i, one in enumerate(cores):
        columns = slice(ends[i] - one.s.size, ends[i])
        overlaps = [arrays.to_host(wide(one.u).T @ wide(each[:, columns])) for each in projections]
        relative = one.s / one.s[0]
        metric = np.multiply.outer(relative, relative) ** (2 * power)
        metric /= (metric * overlaps[i] ** 2).sum()
        yield metric, overlaps


def _quadratic_terms(taus: Sequence[Array], cores: Sequence[Triples], power: float) -> tuple[Array, Array]:
    """Return A of shape (N, N), and b of shape (N,)."""
    agents = range(len(taus))
    overlap, target = np.zeros((len(taus), len(taus))), np.zeros(len(taus))
    for i, (metric, overlaps) in enumerate(acts(taus, cores, power)):
        for j in agents:
            target[j] += (metric * overlaps[j] * overlaps[i]).sum()
            for k in agents:
                overlap[j, k] += (metric * overlaps[j] * overlaps[k]).sum()
    return overlap, target


def _bounded_minimum(overlap: Array, target: Array) -> Array:
    """Find coefficients from 0 to 1 by coordinate descent from the best common value, so that copies stay equal."""
    whole = overlap.sum()  # 0 where task vectors cancel out
    coefficients = np.full(len(target), min(max(target.sum() / whole, 0.0), 1.0) if whole > 0 else 0.0)
    for _ in range(_MOST_SWEEPS):
        before = coefficients.copy()
        for j, row in enumerate(overlap):
            others = sum(row[k] * coefficients[k] for k in range(len(coefficients)) if k != j)
            coefficients[j] = min(max((target[j] - others) / row[j], 0.0), 1.0)
        if np.abs(coefficients - before).max() <= _TOLERANCE:
            break
    return coefficients


def movers(taus: Sequence[Array]) -> list[int]:
    """Return the indices of task vectors that are more than noise, compared with the largest; their shape is (m, n)."""
    norms = [spectral.squares(tau) for tau in taus]
    return [index for index, norm in enumerate(norms) if norm > _NOISE * max(norms)]


def workspace(shape: tuple[int, int], agents: int, rank: int) -> int:
    """Return how many float64 numbers cores and coefficients hold besides the task vectors and the result."""
    m, n = shape
    return 4 * agents * (m + n) * min(rank + _OVERSAMPLED, m, n)
