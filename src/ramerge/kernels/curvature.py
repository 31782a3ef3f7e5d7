"""WUDI's quadratic objective, solved by a filter of its spectrum; formulas are in `methods.swudi`.

With A the stack of all A_t = sqrt(g_t) tau_t, of shape (N m, n), C = A^T A, and the step is X phi(A A^T) A with

    X = [(1 - c) A_t A_t^T / sqrt(g_t) - c sum_{j != t} A_j A_t^T / sqrt(g_j)]_t        theta_0 = c sum_t tau_t

of shape (m, N m), which is (D - theta_0 C) without the last factor A. So whichever of C and A A^T is smaller will do,
and task vectors are only multiplied by small operators from the left or from the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ramerge.kernels import spectral
from ramerge.kernels.spectral import Array


def solve(taus: Sequence[Array], start: float, time: float, choose: Callable[[Array], int]) -> Array:
    """theta_0 + (D - theta_0 C) phi(C), in the dtype of the task vectors.

    Args:
        taus: N arrays of shape (m, n), at least one of them not 0.
        start: theta_0 over the sum of the task vectors.
        time: see `methods.swudi`; infinite for f = 1.
        choose: how many leading directions are solved, given the eigenvalues that are not null, descending.
    """
    squares = [spectral.squares(tau) for tau in taus]
    moved = [tau for tau, square in zip(taus, squares, strict=True) if square]
    norms = [math.sqrt(square) for square in squares if square]

    def phi(symmetric: Array) -> Array:
        return _filtered(symmetric, spectral.noise((len(taus) * len(taus[0]), taus[0].shape[1])), time, choose)

    solver = _by_columns if len(moved) * len(taus[0]) < taus[0].shape[1] else _by_rows
    return solver(moved, norms, start, phi)


def _by_rows(taus: Sequence[Array], norms: Sequence[float], start: float, phi: Callable[[Array], Array]) -> Array:
    """By C of shape (n, n): sum_t tau_t [c + (G_t - c C) phi(C)]."""
    grams = [spectral.gram(tau.T) / norm**2 for tau, norm in zip(taus, norms, strict=True)]
    curvature = spectral.total(grams)
    factor = phi(curvature)
    curvature *= start
    operators = []
    for gram in grams:
        operators.append(((gram - curvature) @ factor).T)
        operators[-1][np.diag_indices(len(factor))] += start
    return spectral.combined(operators, [tau.T for tau in taus]).T


def _by_columns(taus: Sequence[Array], norms: Sequence[float], start: float, phi: Callable[[Array], Array]) -> Array:
    """By A A^T of shape (N m, N m): sum_t [c + (X phi(A A^T))_t / ||tau_t||] tau_t."""
    m = len(taus[0])
    products = stacked_gram(taus, norms)
    parts = [slice(start, start + m) for start in range(0, len(products), m)]
    step = np.empty((m, len(products)))
    for t, columns in enumerate(parts):
        step[:, columns] = (1 - start) * norms[t] * products[columns, columns]
        for j, rows in enumerate(parts):
            if j != t:
                step[:, columns] -= start * norms[j] * products[rows, columns]
    step = step @ phi(products)
    operators = [step[:, columns] / norm for columns, norm in zip(parts, norms, strict=True)]
    for operator in operators:
        operator[np.diag_indices(m)] += start
    return spectral.combined(operators, taus)


def stacked_gram(taus: Sequence[Array], norms: Sequence[float]) -> Array:
    """A A^T."""
    m = len(taus[0])
    products = np.zeros((m * len(taus), m * len(taus)))
    for columns in spectral.blocks(np.broadcast_to(taus[0][:1], (len(products), taus[0].shape[1]))):
        stack = np.concatenate([spectral.wide(tau[:, columns]) / norm for tau, norm in zip(taus, norms, strict=True)])
        products += stack @ stack.T
    return products


def _filtered(symmetric: Array, noise: float, time: float, choose: Callable[[Array], int]) -> Array:
    """phi(C) = V diag(f(lambda) / lambda) V^T, over the leading directions."""
    values, vectors = spectral.spectrum(symmetric)
    known = values[: spectral.rank(values, noise)]
    k = spectral.cut(values, choose(known), noise)
    values, vectors = values[:k], vectors[:, :k]
    half = vectors * np.sqrt(-np.expm1(-time * values) / values)
    result: Array = half @ half.T
    return result


def cost(shape: tuple[int, ...], agents: int) -> tuple[float, float, int]:
    """Operations of products, cubes of the sides of eigendecompositions, and float64 numbers held."""
    m, n = shape
    stacked = agents * m
    if n <= stacked:
        return agents * n * n * m + n**3 + 2 * agents * n**3 + 2 * agents * n * n * m, n**3, (2 * agents + 5) * n * n
    products = stacked * stacked * n + stacked**3 + 2 * m * stacked**2 + 2 * m * stacked * n
    return products, stacked**3, 5 * stacked * stacked + 4 * m * stacked
