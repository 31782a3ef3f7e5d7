"""WUDI's quadratic objective, solved by a filter of its spectrum; formulas are in `methods.swudi`.

With A the stack of all A_t = sqrt(g_t) tau_t, of shape (N m, n), C = A^T A. The step from theta_0 = sum_t c_t tau_t is

    sum_t tau_t (G_t - c_t C) phi(C)        G_t = A_t^T A_t
    X phi(A A^T) A        X = [(1 - c_t) A_t A_t^T / sqrt(g_t) - sum_{j != t} c_j A_j A_t^T / sqrt(g_j)]_t

with X of shape (m, N m), so whichever of C and A A^T is smaller will do. phi(lambda) is f(lambda) / lambda, and 0
beyond the leading directions.

phi takes an eigendecomposition of a Gram matrix in float64. Where no direction is left out and time * lambda is small,
phi is so smooth that a polynomial of few terms does, and products of matrices take a tenth of the time.

What is smooth is computed in the type of the task vectors: polynomials, and the products of task vectors with operators
of a bounded time, which grow with its square root. In float32 that loses about 1e-6 of an update, which is less than
what is lost when weights, a hundred times as large, are stored in float32. An operator for the minimum may grow without
bound, and is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from ramerge.linalg import spectral
from ramerge.linalg.spectral import Array
from ramerge.linalg.work import DECOMPOSITION, worked

_BOUNDED = 1e4  # up to this time, an operator amplifies by at most 0.64 sqrt(time N)
_TERMS = 64  # of a polynomial that phi is fitted with
_MOST_TERMS = {np.float32: 32, np.float64: _TERMS}  # of one that is used; each adds its rounding
# terms of a polynomial that are left out, relative to the first one: above what fitting leaves in them by rounding
_LEFT_OUT = {np.float32: 1e-8, np.float64: 1e-14}


@dataclass(frozen=True)
class Filter:
    """What is solved.

    Attributes:
        time: see `methods.swudi`; infinite for f = 1.
        choose: how many leading directions, given the eigenvalues of C that are not null, descending; None for all.
    """

    time: float
    choose: Callable[[Array], int] | None

    def phi(self, values: Array) -> Array:
        """f / lambda of eigenvalues, above 0 if the time is infinite."""
        if math.isinf(self.time):
            return 1 / values
        return np.where(values > 0, -np.expm1(-self.time * values) / np.where(values > 0, values, 1), self.time)


def solve(taus: Sequence[Array], start: Sequence[float], filter: Filter) -> Array:
    """theta_0 + (D - theta_0 C) phi(C), in the dtype of the task vectors.

    Args:
        taus: N arrays of shape (m, n), at least one of them not 0.
        start: c_t of each task vector.
        filter: see there.
    """
    moved = [(tau, factor) for tau, factor in zip(taus, start, strict=True) if tau.any()]
    solver = _by_columns if len(moved) * len(taus[0]) < taus[0].shape[1] else _by_rows
    return solver([tau for tau, _ in moved], [factor for _, factor in moved], filter)


def _by_rows(taus: Sequence[Array], start: Sequence[float], filter: Filter) -> Array:
    """By C of shape (n, n)."""
    grams = [_unit(spectral.gram(tau.T)) for tau in taus]
    curvature = spectral.total(grams)
    real = _real(taus, filter)
    excess = [gram - factor * curvature for gram, factor in zip(grams, start, strict=True)]
    smooth = curvature.astype(real)
    if found := _series(smooth, filter, len(taus[0])):
        step = _combined(taus, [one.astype(real) for one in excess], [0.0] * len(taus), real)
        step = _polynomial(step, smooth, *found)
        for tau, factor in zip(taus, start, strict=True):
            step += real(factor) * tau
        return step.astype(taus[0].dtype, copy=False)
    values, vectors = _led(curvature, filter, spectral.noise(curvature.shape))
    weighted, back = (vectors * filter.phi(values)).astype(real), vectors.T.astype(real)
    return _combined(taus, [one.astype(real) @ weighted for one in excess], start, taus[0].dtype, back)


def _combined(
    taus: Sequence[Array], operators: Sequence[Array], start: Sequence[float], dtype: Any, back: Array | None = None
) -> Array:
    """sum_t taus[t] (start[t] + operators[t] back), in the type of the operators, stored in `dtype`."""
    real = operators[0].dtype.type
    result = np.empty_like(taus[0], dtype)
    for rows in spectral.blocks(result.T):
        ones = [tau[rows].astype(real, copy=False) for tau in taus]
        total = _sum(one @ operator for one, operator in zip(ones, operators, strict=True))
        if back is not None:
            total = total @ back
        for one, factor in zip(ones, start, strict=True):
            if factor:
                total += real(factor) * one
        result[rows] = total
    return result


def _unit(gram: Array) -> Array:
    gram /= float(np.trace(gram)) or 1.0
    return gram


def _by_columns(taus: Sequence[Array], start: Sequence[float], filter: Filter) -> Array:
    """By A A^T of shape (N m, N m)."""
    real = _real(taus, filter)
    products, norms = _stacked_gram(taus, real)
    if found := _series(products, filter, len(taus[0])):
        step = _polynomial(_excess(products, norms, start), products, *found)
    else:
        if real is not np.float64:
            del products  # before the next one is there
            products, norms = _stacked_gram(taus, np.float64)
        values, vectors = _led(products, filter, spectral.noise(taus[0].shape))
        weighted = (_excess(products, norms, start) @ vectors) * filter.phi(values)
        step = weighted @ vectors.T
        del vectors, weighted
    del products
    parts = _parts(len(taus[0]), len(taus))
    operators = []
    for columns, norm, factor in zip(parts, norms, start, strict=True):
        operator = step[:, columns] / norm
        operator[np.diag_indices(len(operator))] += factor
        operators.append(operator.astype(real, copy=False))
    result = np.empty_like(taus[0])
    for columns in spectral.blocks(result):
        result[:, columns] = _sum(
            operator @ tau[:, columns].astype(real, copy=False) for operator, tau in zip(operators, taus, strict=True)
        )
    return result


def _parts(rows: int, agents: int) -> list[slice]:
    return [slice(begin, begin + rows) for begin in range(0, rows * agents, rows)]


def _stacked_gram(taus: Sequence[Array], real: Any) -> tuple[Array, list[float]]:
    parts = _parts(len(taus[0]), len(taus))
    products = np.zeros((parts[-1].stop,) * 2, real)
    for columns in spectral.blocks(taus[0]):
        stack = np.concatenate([tau[:, columns].astype(real, copy=False) for tau in taus])
        products += stack @ stack.T
        worked(stack.itemsize / 8 * len(stack) * stack.size)
    norms = [math.sqrt(np.trace(products[rows, rows], dtype=np.float64)) or 1.0 for rows in parts]
    scales = np.repeat([1 / norm for norm in norms], len(taus[0])).astype(real)
    products *= scales
    products *= scales[:, None]
    return products, norms


def _excess(products: Array, norms: Sequence[float], start: Sequence[float]) -> Array:
    """X; what no two agents have in common cancels exactly, because it is not added in the first place."""
    m = len(products) // len(norms)
    parts = _parts(m, len(norms))
    result = np.empty_like(products[:m])
    for t, columns in enumerate(parts):
        result[:, columns] = (1 - start[t]) * norms[t] * products[columns, columns]
        for j, rows in enumerate(parts):
            if j != t:
                result[:, columns] -= start[j] * norms[j] * products[rows, columns]
    return result


def _real(taus: Sequence[Array], filter: Filter) -> Any:
    return np.float32 if taus[0].dtype == np.float32 and filter.time <= _BOUNDED else np.float64


def _sum(terms: Iterable[Array]) -> Array:
    first, *others = terms
    for other in others:
        first += other
    return first


def _led(symmetric: Array, filter: Filter, noise: float) -> tuple[Array, Array]:
    values, vectors = spectral.spectrum(symmetric)
    known = values[: spectral.rank(values, noise)]
    k = spectral.cut(values, filter.choose(known) if filter.choose else len(known), noise)
    return values[:k], vectors[:, :k]


# --- phi as a polynomial ---------------------------------------------------------------------------------------------


def _series(symmetric: Array, filter: Filter, rows: int) -> tuple[float, Array] | None:
    """The bound of a spectrum, and Chebyshev coefficients of phi from 0 to there; None if that is no faster."""
    if filter.choose is not None or math.isinf(filter.time):
        return None
    bound, real = upper_bound(symmetric), symmetric.dtype.type
    terms = _terms(filter, bound, _LEFT_OUT[real])
    return (bound, terms) if _faster(len(terms), rows, len(symmetric), real) else None


def _terms(filter: Filter, bound: float, error: float) -> Array:
    """Chebyshev coefficients of phi from 0 to `bound`, without those that are small at the end."""
    nodes = chebyshev.chebpts1(_TERMS + 1)
    terms: Array = chebyshev.chebfit(nodes, filter.phi(bound / 2 * (nodes + 1)), _TERMS)
    return terms[: np.flatnonzero(np.abs(terms) > error * abs(terms[0])).max(initial=0) + 1]


def _faster(terms: int, rows: int, side: int, real: Any) -> bool:
    """Whether products of a matrix of `rows` rows take less time than an eigendecomposition; in float32 half of it."""
    half = 0.5 if real == np.float32 else 1.0
    return terms <= _MOST_TERMS[real] and half * 2 * (terms - 1) * rows < DECOMPOSITION * side


def upper_bound(symmetric: Array) -> float:
    """Slightly more than the largest eigenvalue of a positive semidefinite matrix, by some steps of Lanczos."""
    basis = np.random.default_rng(0).standard_normal((1, len(symmetric)))
    basis /= np.linalg.norm(basis)
    diagonal, off_diagonal = [], []
    for _ in range(min(24, len(symmetric))):
        following = (symmetric @ basis[-1].astype(symmetric.dtype)).astype(np.float64)
        diagonal.append(float(following @ basis[-1]))
        for _twice in range(2):
            following -= basis.T @ (basis @ following)
        off_diagonal.append(float(np.linalg.norm(following)))
        if off_diagonal[-1] <= 1e-6 * max(diagonal):
            break
        basis = np.concatenate([basis, following[None] / off_diagonal[-1]])
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal[:-1], 1) + np.diag(off_diagonal[:-1], -1))
    return 1.05 * float(values[-1] + off_diagonal[-1] * abs(vectors[-1, -1]))


def _polynomial(x: Array, symmetric: Array, bound: float, terms: Array) -> Array:
    """x sum_k terms[k] T_k(2 symmetric / bound - 1), by the recurrence of Chebyshev polynomials; overwrites both."""
    symmetric *= 4 / bound
    before, present = x, x @ symmetric
    present *= 0.5
    present -= x
    result = float(terms[0]) * x
    for k in range(1, len(terms)):
        result += float(terms[k]) * present
        worked(symmetric.itemsize / 8 * 2 * len(x) * symmetric.size)
        if k + 1 < len(terms):
            following = present @ symmetric
            before += present
            before += present
            following -= before
            before, present = present, following
    return result


# --- what it takes ---------------------------------------------------------------------------------------------------


def cost(shape: tuple[int, ...], agents: int, filter: Filter, k: int) -> tuple[float, float, float]:
    """Operations of products, cubes of the sides of eigendecompositions, and float64 numbers held, for float32 inputs.

    Whether a polynomial will do depends on the largest eigenvalue, which is taken to be that of random task vectors.
    """
    m, n = shape
    stacked, half = agents * m, 0.5 if filter.time <= _BOUNDED else 1.0
    k = min(k, n, stacked)
    smooth = filter.choose is None and math.isfinite(filter.time)
    if n <= stacked:
        if smooth:
            terms = len(_terms(filter, agents / n * (1 + math.sqrt(n / stacked)) ** 2, _LEFT_OUT[np.float32]))
            if _faster(terms, m, n, np.float32):
                return agents * n * n * m + half * 2 * (agents + terms) * m * n * n, 0.0, (2 * agents + 4) * n * n
        products = agents * n * n * m + half * 2 * agents * n * n * k + half * 2 * (agents + 1) * m * n * k
        return products, n**3, (2 * agents + 6) * n * n
    largest = agents / stacked * (1 + math.sqrt(stacked / n)) ** 2
    applied, numbers = half * 2 * m * stacked * n, 6 * stacked * stacked + 4 * m * stacked
    if smooth:
        terms = len(_terms(filter, largest, _LEFT_OUT[np.float32]))
        if _faster(terms, m, stacked, np.float32):
            return half * (stacked * stacked * n + 2 * terms * m * stacked**2) + applied, 0.0, numbers
    return stacked * stacked * n + 2 * m * stacked * (stacked + k) + applied, stacked**3, numbers
