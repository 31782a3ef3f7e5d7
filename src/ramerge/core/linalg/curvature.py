"""Solves WUDI's quadratic objective by a filter of its spectrum; formulas are in `methods.swudi`.

Let A be the stack of all A_t = sqrt(g_t) tau_t, of shape (N m, n), and C = A^T A. The step from
theta_0 = sum_t c_t tau_t is, in two equivalent forms,

    sum_t tau_t (G_t - c_t C) phi(C)        G_t = A_t^T A_t
    X phi(A A^T) A        X = [(1 - c_t) A_t A_t^T / sqrt(g_t) - sum_{j != t} c_j A_j A_t^T / sqrt(g_j)]_t

with X of shape (m, N m), so the smaller of C and A A^T is used. phi(lambda) is f(lambda) / lambda, and 0 beyond the
leading directions.

Computing phi takes an eigendecomposition of a Gram matrix. If no direction is left out and time * lambda is small, phi
is so smooth that a polynomial with few terms suffices, and matrix products take a tenth of the time.

Smooth quantities are computed in the dtype of the task vectors: polynomials, and products of task vectors with
operators of a bounded time, which grow with the square root of the time. In float32, this loses about 1e-6 of an
update, less than is lost by storing weights, which are a hundred times as large, in float32. Gram matrices and
decompositions are float32, too, if the time is so short that nothing is amplified and the cut is clear
(`spectral.resolve_rank`); otherwise they are float64. An operator for the minimum may grow without bound, so it is
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from ramerge.core.linalg import arrays, spectral
from ramerge.core.linalg.arrays import Array, Real, real_of
from ramerge.core.linalg.spectral import Values, upper_bound

_LONGEST_IN_FLOAT32 = 1e4  # up to this time, an operator amplifies by at most 0.64 sqrt(time N)
_BRIEF = 10.0  # float32: the largest time * lambda, because errors of C grow with it
_TERMS = 64  # the number of terms of a polynomial fit of phi
_DECOMPOSITION = 11.0  # the time of an eigendecomposition, in operations of products over the cube of the side
_MOST_TERMS = {"float32": 32, "float64": _TERMS}  # the most terms of a polynomial, because each adds rounding errors
# by dtype: the largest change of an update by omitted terms of a polynomial, and the smallest term, as a share of the
# first, that is not a rounding error of the fit
_LEFT_OUT = {"float32": (4e-6, 1e-8), "float64": (0.0, 1e-14)}


@dataclass(frozen=True)
class Filter:
    """The filter of a gradient flow, as a function of the eigenvalues of WUDI's curvature.

    Attributes:
        time: the time of the flow, see `methods.swudi`; infinite for f = 1.
        choose: returns the number of leading directions to use, given the nonzero eigenvalues of C in descending order;
            None for all.
    """

    time: float
    choose: Callable[[Values], int] | None

    def phi(self, values: Values) -> Values:
        """Return f(lambda) / lambda for eigenvalues, which must be above 0 if the time is infinite."""
        if math.isinf(self.time):
            return 1 / values
        return np.where(values > 0, -np.expm1(-self.time * values) / np.where(values > 0, values, 1), self.time)


def solve(taus: Sequence[Array], start: Sequence[float], filter: Filter) -> Array:
    """Solve WUDI's objective by a filter: return theta_0 + (D - theta_0 C) phi(C), in the dtype of the task vectors.

    Args:
        taus: N arrays of shape (m, n), at least one of them not 0.
        start: the factor c_t of each task vector in theta_0.
        filter: the filter that defines phi.
    """
    nonzero_taus = [(tau, factor) for tau, factor in zip(taus, start, strict=True) if tau.any()]
    solver = _solve_by_columns if len(nonzero_taus) * len(taus[0]) < taus[0].shape[1] else _solve_by_rows
    return solver([tau for tau, _ in nonzero_taus], [factor for _, factor in nonzero_taus], filter)


def _solve_by_rows(taus: Sequence[Array], start: Sequence[float], filter: Filter) -> Array:
    """Solve with the curvature C formed as an (n, n) matrix."""
    real = _working_dtype(taus, filter)
    for precision in _candidate_precisions(real, taus[0].shape[1]):
        grams = [_unit_trace(spectral.gram(tau.T, precision)) for tau in taus]
        curvature = _sum([grams[0] + 0, *grams[1:]])
        narrow = arrays.astype(curvature, real)
        bound = upper_bound(narrow)
        if bound * filter.time <= _BRIEF or precision == "float64":
            terms = _chebyshev_series(bound, filter, min(taus[0].shape), len(curvature), real)
            spectrum = None if terms is not None else _leading_part(curvature, filter, spectral.noise(curvature.shape))
            if terms is not None or spectrum is not None:
                break
    excess = [arrays.astype(gram - factor * curvature, real) for gram, factor in zip(grams, start, strict=True)]
    del grams
    if terms is not None:
        m, n = taus[0].shape
        if (len(terms) - 1) * m > (len(terms) - 2 + len(taus)) * n:  # fewer operations for operators than for the step
            smooth = _evaluate_polynomial(None, narrow, bound, terms)
            operators = [one @ smooth for one in excess]
            for operator, factor in zip(operators, start, strict=True):
                _add_to_diagonal(operator, factor)
            return _apply_operators(taus, operators)
        step = _evaluate_polynomial(_apply_operators(taus, excess, real=real), narrow, bound, terms)
        for tau, factor in zip(taus, start, strict=True):
            step += arrays.astype(tau, real) * factor
        return arrays.astype(step, real_of(taus[0]))
    assert spectrum is not None
    values, vectors = spectrum
    weighted_vectors = arrays.astype(spectral.scale_columns(vectors, filter.phi(values)), real)
    back = arrays.astype(vectors, real).T
    return _apply_operators(taus, [one @ weighted_vectors for one in excess], start, back)


def _candidate_precisions(real: Real, side: int) -> tuple[Real, ...]:
    """Return the dtypes to try in turn for Gram matrices and decompositions."""
    return ("float32", "float64") if real == "float32" and side > arrays.SMALL else ("float64",)


def _apply_operators(
    taus: Sequence[Array],
    operators: Sequence[Array],
    start: Sequence[float] = (),
    back: Array | None = None,
    real: Real | None = None,
) -> Array:
    """Return sum_t taus[t] (operators[t] back + start[t]), computed in the dtype of the operators.

    The result is stored in `real`, by default the dtype of the task vectors.
    """
    result = arrays.empty(tuple(taus[0].shape), real or real_of(taus[0]), taus[0])
    real = real_of(operators[0])
    for rows in spectral.blocks(result.T):
        ones = [arrays.astype(tau[rows], real) for tau in taus]
        total = _sum(one @ operator for one, operator in zip(ones, operators, strict=True))
        if back is not None:
            total = total @ back
        for one, factor in zip(ones, start, strict=False):  # empty if the operators include them
            if factor:
                total += factor * one
        result[rows] = total
    return result


def _unit_trace(gram: Array) -> Array:
    gram /= float(gram.diagonal().sum()) or 1.0
    return gram


def _add_to_diagonal(square: Array, number: float) -> None:
    square.reshape(-1)[:: len(square) + 1] += number


def _solve_by_columns(taus: Sequence[Array], start: Sequence[float], filter: Filter) -> Array:
    """Solve with A A^T formed as an (N m, N m) matrix."""
    real = _working_dtype(taus, filter)
    products, norms = _stacked_gram(taus, real)
    bound = upper_bound(products)
    if (terms := _chebyshev_series(bound, filter, len(taus[0]), len(products), real)) is not None:
        step = _evaluate_polynomial(_excess_over_start(products, norms, start), products, bound, terms)
    else:
        noise, spectrum = spectral.noise(tuple(taus[0].shape)), None
        if real == "float64" or (bound * filter.time <= _BRIEF and len(products) > arrays.SMALL):
            spectrum = _leading_part(products, filter, noise)
        if spectrum is None:
            del products  # to free it before the next is allocated
            products, norms = _stacked_gram(taus, "float64")
            spectrum = _leading_part(products, filter, noise)
        assert spectrum is not None
        values, vectors = spectrum
        weighted_products = spectral.scale_columns(
            _excess_over_start(products, norms, start) @ vectors, filter.phi(values)
        )
        step = weighted_products @ vectors.T
        del vectors, weighted_products
    del products
    parts = _agent_slices(len(taus[0]), len(taus))
    operators = []
    for columns, norm, factor in zip(parts, norms, start, strict=True):
        operator = arrays.contiguous(step[:, columns]) / norm
        _add_to_diagonal(operator, factor)
        operators.append(arrays.astype(operator, real))
    result = arrays.empty(tuple(taus[0].shape), real_of(taus[0]), taus[0])
    for columns in spectral.blocks(result):
        result[:, columns] = _sum(
            operator @ arrays.astype(tau[:, columns], real) for operator, tau in zip(operators, taus, strict=True)
        )
    return result


def _agent_slices(rows: int, agents: int) -> list[slice]:
    return [slice(begin, begin + rows) for begin in range(0, rows * agents, rows)]


def _stacked_gram(taus: Sequence[Array], real: Real) -> tuple[Array, list[float]]:
    """Return A A^T, computed by blocks of two agents and mirrored at the diagonal, and the task vectors' norms."""
    parts = _agent_slices(len(taus[0]), len(taus))
    products = arrays.zeros((parts[-1].stop,) * 2, real, taus[0])
    for columns in [slice(None)] if real == real_of(taus[0]) else spectral.blocks(taus[0]):
        ones = [arrays.astype(tau[:, columns], real) for tau in taus]
        for t, rows in enumerate(parts):
            for j in range(t + 1):
                products[rows, parts[j]] += arrays.gram(ones[t]) if j == t else ones[t] @ ones[j].T
    for t, rows in enumerate(parts):
        for j in range(t):
            products[parts[j], rows] = products[rows, parts[j]].T
    norms = [math.sqrt(float(arrays.wide(products[rows, rows].diagonal()).sum())) or 1.0 for rows in parts]
    scales = arrays.asarray(np.repeat([1 / norm for norm in norms], len(taus[0])), products)
    products *= scales
    products *= scales[:, None]
    return products, norms


def _excess_over_start(products: Array, norms: Sequence[float], start: Sequence[float]) -> Array:
    """Return X. Parts that no two agents share contribute exactly nothing, because they are not added at all."""
    m = len(products) // len(norms)
    parts = _agent_slices(m, len(norms))
    result = arrays.empty((m, len(products)), real_of(products), products)
    for t, columns in enumerate(parts):
        result[:, columns] = (1 - start[t]) * norms[t] * products[columns, columns]
        for j, rows in enumerate(parts):
            if j != t:
                result[:, columns] -= start[j] * norms[j] * products[rows, columns]
    return result


def _working_dtype(taus: Sequence[Array], filter: Filter) -> Real:
    return "float32" if real_of(taus[0]) == "float32" and filter.time <= _LONGEST_IN_FLOAT32 else "float64"


def _sum(terms: Iterable[Array]) -> Array:
    first, *others = terms
    for other in others:
        first += other
    return first


def _leading_part(symmetric: Array, filter: Filter, noise: float) -> tuple[Values, Array] | None:
    """Return the leading eigenvalues and eigenvectors; None if float32 does not resolve them."""
    values, vectors = spectral.spectrum(symmetric)
    if real_of(symmetric) == "float32":
        k = spectral.resolve_rank(values, filter.choose or len)
        return None if k is None else (values[:k], vectors[:, :k])
    values_above_noise = values[: spectral.rank(values, noise)]
    k = spectral.cut(values, filter.choose(values_above_noise) if filter.choose else len(values_above_noise), noise)
    return values[:k], vectors[:, :k]


# --- phi as a polynomial ---------------------------------------------------------------------------------------------


def _chebyshev_series(bound: float, filter: Filter, rows: int, side: int, real: Real) -> NDArray[np.float64] | None:
    """Return Chebyshev coefficients of phi on [0, bound]; None if a polynomial is not applicable or not faster."""
    if filter.choose is not None or math.isinf(filter.time):
        return None
    terms = _chebyshev_terms(filter, bound, real)
    return terms if _is_polynomial_faster(len(terms), rows, side, real) else None


def _chebyshev_terms(filter: Filter, bound: float, real: Real) -> NDArray[np.float64]:
    """Return Chebyshev coefficients of phi on [0, bound], without small ones at the end.

    The error of the step is at most `bound` times the error of phi, in units of the task vectors.
    """
    nodes = chebyshev.chebpts1(_TERMS + 1)
    terms: NDArray[Any] = chebyshev.chebfit(nodes, filter.phi(bound / 2 * (nodes + 1)), _TERMS)
    of_update, least = _LEFT_OUT[real]
    small = max(of_update / max(bound, 1e-300), least * abs(terms[0]))
    return terms[: np.flatnonzero(np.abs(terms) > small).max(initial=0) + 1]


def _is_polynomial_faster(terms: int, rows: int, side: int, real: Real) -> bool:
    """Whether products of a matrix with `rows` rows are faster than an eigendecomposition, counting half in float32."""
    half = 0.5 if real == "float32" else 1.0
    return terms <= _MOST_TERMS[real] and half * 2 * (terms - 1) * rows < _DECOMPOSITION * side


def _evaluate_polynomial(x: Array | None, symmetric: Array, bound: float, terms: NDArray[np.float64]) -> Array:
    """Return x sum_k terms[k] T_k(2 symmetric / bound - 1), by Chebyshev recurrence; overwrites `x` and `symmetric`.

    Without x, return the polynomial itself.
    """
    if x is not None and len(terms) == 1:
        return float(terms[0]) * x
    symmetric *= 4 / bound
    if x is None:
        x, present = arrays.zeros(tuple(symmetric.shape), real_of(symmetric), symmetric), 0.5 * symmetric
        _add_to_diagonal(x, 1.0)
    else:
        present = x @ symmetric
        present *= 0.5
    before = x
    present -= x
    result = float(terms[0]) * x
    for k in range(1, len(terms)):
        result += float(terms[k]) * present
        if k + 1 < len(terms):
            following = present @ symmetric
            before += present
            before += present
            following -= before
            before, present = present, following
    return result


# --- memory ----------------------------------------------------------------------------------------------------------


def workspace(shape: tuple[int, ...], agents: int) -> int:
    """Return how many float64 numbers `solve` holds besides the task vectors and the result."""
    m, n = shape
    rows = agents * m
    return (2 * agents + 6) * n * n if n <= rows else 6 * rows * rows + 4 * m * rows
