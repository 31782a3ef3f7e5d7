"""Minimizes the objective of WUDI-Merging for one linear weight.

Cheng et al. 2025, "Whoever Started the Interference Should End It", arXiv 2503.08099. The merged task vector tau of N
agents with task vectors tau_t, arrays of shape (out, in), minimizes the authors' loss

    L(tau) = sum_t w_t ||(tau - tau_t) tau_t^T||_F^2,    w_t = 1 / ||tau_t||_F^2, or 0 if tau_t is 0.

With A_t = sqrt(w_t) tau_t and their stack A of shape (N out, in) this is a linear least-squares problem,

    L(tau) = sum_t ||(tau - tau_t) A_t^T||_F^2,    gradient = 2 (tau S - R),
    G_t = A_t^T A_t,    S = A^T A = sum_t G_t,    R = sum_t tau_t G_t.

Like the authors, the solver starts at the sum tau_0 = sum_t tau_t. It computes the step X = tau - tau_0 that removes
the gradient 2 (X S - E),

    E = R - tau_0 S = sum_t (tau_t - tau_0) G_t = D A,    D = [(tau_t - tau_0) A_t^T]_t of shape (out, N out).

The rows of tau_0 lie in the row space of A, so tau_0 + E S^+ is R S^+. But tau_t - tau_0 is computed as a sum over the
*other* agents, without cancellation: without interference, E = 0 exactly, and the result is exactly the sum.

The authors take 300 Adam steps along this gradient; `closed_form` computes the minimum. The result is reproducible on
the same machine with the same number of BLAS threads; others may round differently. Values that are not finite lead to
results that are not finite, never to an exception.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ramerge.core.linalg import arrays
from ramerge.core.linalg.arrays import Array, real_of, wide

PROXIMITY = 1e-10
"""mu of `closed_form` divided by the trace of S, for the minimum itself.

A direction v is solved if ||A v||^2 is well above mu, and keeps its value in the sum if it is well below. This value
balances two errors, relative to the task vectors. First, E is rounded to float64, and in directions that do not affect
L, the solution is the rounding error divided by mu: a few times 2.2e-16 / 1e-10 = 2e-6, which 16-bit checkpoints cannot
represent. Second, a point at distance d from the sum can have a smaller L, but by mu d^2 / 2 at most. A solved
direction grows by about 1 / sqrt(mu) = 1e5 at most, which the precision of float32, 6e-8, still allows.
"""

_BLOCK = 1 << 20  # elements of a block of rows, large enough for fast products
_LONG = 1024  # rows or columns that are widened to float64 at a time


def closed_form(taus: Sequence[Array], proximity: float = PROXIMITY) -> Array:
    """Minimize WUDI's objective L; the result approximates R S^+, more closely for a smaller `proximity`.

    Takes N arrays of shape (out, in), all float32 or all float64; returns a new array of this shape and dtype, computed
    in float64. Two proximal steps, X <- argmin L(tau_0 + X) + mu ||X - previous X||^2, replace the pseudo-inverse. They
    start from X = 0, with mu = `proximity` times the trace of S:

        X_1 = E (S + mu)^-1                       X_2 = (E + mu X_1) (S + mu)^-1                   if in < N out
        X_1 = Y_1 A,  Y_1 = D (A A^T + mu)^-1     X_2 = Y_2 A,  Y_2 = (D + mu Y_1) (A A^T + mu)^-1     else

    So an eigenvalue s of S is inverted as (1 - (mu / (s + mu))^2) / s, which is 1/s to float32 accuracy for
    s >= 5000 mu. Proximal steps never raise L, and L(result) <= L(y) + mu/2 ||y - tau_0||^2 for any y, including the
    result of the authors' Adam (Güler 1991, SIAM J. Control Optim. 29, theorem 2.1). Dropping the eigenvalues below mu
    instead would have a bound with sqrt(mu) in place of mu and a result that jumps when an eigenvalue crosses mu, and
    would cost an eigendecomposition.
    """
    out, width = taus[0].shape
    solver = _solve_tall if width < len(taus) * out else _solve_flat
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks whether the result is finite
        norms = _norms(taus)
        alone = sum(norm != 0 for norm in norms) < 2  # then E is 0
        return _sum(taus) if alone else solver(taus, norms, proximity)


def scratch_bytes(shape: tuple[int, int], agents: int) -> int:
    """Return the most bytes that `closed_form` allocates, beyond `agents` task vectors of `shape` and the result.

    This includes the two temporary matrices of NumPy's `inv`, but not the buffers of BLAS threads.
    """
    out, width = shape
    rows, high, long = min(out, _rows_per_block(width)), min(out, _LONG), min(width, _LONG)
    stack_rows = agents * out
    norms = 2 * rows * width
    if width < stack_rows:
        numbers = out * width + 4 * width * width + max(2 * high, 5 * rows) * width
    else:
        gathering = 2 * stack_rows * stack_rows + 2 * stack_rows * long
        inverting = 4 * stack_rows * stack_rows + out * stack_rows
        spreading = out * stack_rows + 2 * stack_rows * long + out * long
        numbers = max(gathering, inverting, spreading)
    return 8 * max(norms, numbers) + (1 << 16)  # and small things


def _column_blocks(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _rows_per_block(width: int) -> int:
    return max(1, _BLOCK // width)


def _row_blocks(tau: Array) -> Iterator[slice]:
    return _column_blocks(len(tau), _rows_per_block(tau.shape[1]))


def _norms(taus: Sequence[Array]) -> list[float]:
    """Return ||tau_t||_F of each task vector; from float64, as float32 squares overflow at 1e19 and vanish at 1e-23."""
    return [math.sqrt(sum(float((wide(tau[rows]) ** 2).sum()) for rows in _row_blocks(tau))) for tau in taus]


def _sum(taus: Sequence[Array]) -> Array:
    total = taus[0] + 0  # a copy
    for tau in taus[1:]:
        total += tau
    return total


def _gram(tau: Array, norm: float) -> Any:
    gram: Any = 0
    for rows in _column_blocks(len(tau), _LONG):
        block = wide(tau[rows]) / (norm or 1.0)
        gram += block.T @ block  # takes half the time, because BLAS knows that the product is symmetric
    return gram


def _solve_tall(taus: Sequence[Array], norms: Sequence[float], proximity: float) -> Array:
    """Compute `closed_form` with S of shape (in, in)."""
    excess = arrays.zeros(tuple(taus[0].shape), "float64", taus[0])
    curvature: Any = 0
    for t, (tau, norm) in enumerate(zip(taus, norms, strict=True)):
        gram = _gram(tau, norm)
        curvature += gram  # a new array the first time, in place from then on
        for rows in _row_blocks(tau):
            excess[rows] -= wide(_sum([each[rows] for s, each in enumerate(taus) if s != t])) @ gram
        del gram  # to free it before the next is allocated
    inverse, mu = _inverse(curvature, proximity)
    del curvature
    result = arrays.zeros(tuple(taus[0].shape), real_of(taus[0]), taus[0])
    for rows in _row_blocks(result):
        step = _proximal_step(excess[rows], inverse, mu)
        for tau in taus:
            step += tau[rows]
        result[rows] = step
    return result


def _solve_flat(taus: Sequence[Array], norms: Sequence[float], proximity: float) -> Array:
    """Compute `closed_form` with A A^T of shape (N out, N out)."""
    result = arrays.zeros(tuple(taus[0].shape), real_of(taus[0]), taus[0])
    out, width = result.shape
    products: Any = 0  # A A^T
    for columns in _column_blocks(width, _LONG):
        stack = _stack_columns(taus, norms, columns)
        products += stack @ stack.T
        del stack
    excess = _interference(products, norms, out)
    inverse, mu = _inverse(products, proximity)
    del products
    excess = _proximal_step(excess, inverse, mu)
    del inverse
    for columns in _column_blocks(width, _LONG):
        step = excess @ _stack_columns(taus, norms, columns)
        for tau in taus:
            step += tau[:, columns]
        result[:, columns] = step
    return result


def _stack_columns(taus: Sequence[Array], norms: Sequence[float], columns: slice) -> Array:
    stack = arrays.concat([wide(tau[:, columns]) for tau in taus])
    for rows, norm in zip(_column_blocks(len(stack), len(taus[0])), norms, strict=True):
        stack[rows] /= norm or 1.0
    return stack


def _interference(products: Array, norms: Sequence[float], out: int) -> Array:
    """Return D of shape (out, N out) from A A^T: (tau_t - tau_0) A_t^T = - sum over s != t of ||tau_s|| A_s A_t^T."""
    excess = 0 * products[:out]
    for t, columns in enumerate(_column_blocks(len(products), out)):
        for s, rows in enumerate(_column_blocks(len(products), out)):
            if s != t:
                excess[:, columns] -= products[rows, columns] * norms[s]
    return excess


def _inverse(matrix: Array, proximity: float) -> tuple[Array, float]:
    """Return the inverse of `matrix` + mu for a positive semidefinite matrix, and mu; overwrites `matrix`.

    The condition number is at most about 1 / `proximity`.
    """
    mu = proximity * float(matrix.diagonal().sum())
    matrix.reshape(-1)[:: len(matrix) + 1] += mu
    # transposed, because LAPACK makes matrix @ inverse close to the identity, but here inverse @ matrix must be
    inverse = arrays.inv(matrix).T
    return inverse, mu


def _proximal_step(excess: Array, inverse: Array, mu: float) -> Array:
    first = excess @ inverse
    first *= mu
    first += excess
    return first @ inverse
