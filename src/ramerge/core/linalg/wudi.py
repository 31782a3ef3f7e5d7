"""WUDI-Merging of one linear weight.

Cheng et al. 2025, "Whoever Started the Interference Should End It", arXiv 2503.08099. The merged task vector tau of N
agents with task vectors tau_t, arrays of shape (out, in), minimizes the authors' loss

    L(tau) = sum_t w_t ||(tau - tau_t) tau_t^T||_F^2,    w_t = 1 / ||tau_t||_F^2, or 0 where tau_t is 0.

With A_t = sqrt(w_t) tau_t and their stack A of shape (N out, in) this is a linear least-squares problem,

    L(tau) = sum_t ||(tau - tau_t) A_t^T||_F^2,    gradient = 2 (tau S - R),
    G_t = A_t^T A_t,    S = A^T A = sum_t G_t,    R = sum_t tau_t G_t.

The solver starts where the authors do, at the sum tau_0 = sum_t tau_t, and looks for the step X = tau - tau_0 that
takes away the gradient 2 (X S - E),

    E = R - tau_0 S = sum_t (tau_t - tau_0) G_t = D A,    D = [(tau_t - tau_0) A_t^T]_t of shape (out, N out).

The rows of tau_0 lie in the row space of A, so tau_0 + E S^+ is R S^+. But tau_t - tau_0 is computed as a sum over the
*other* agents, without cancellation: what nothing interferes with has E = 0 exactly, and is the sum exactly.

The authors take 300 steps of Adam along this gradient; `closed_form` goes to the end. The same machine and number of
BLAS threads give the same result; others may round differently. Values that are not finite lead to results that are not
finite, never to an exception.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ramerge.core.linalg import arrays
from ramerge.core.linalg.arrays import Array, real_of, wide

PROXIMITY = 1e-10
"""mu of `closed_form` over the trace of S, for the minimum itself.

A direction v is solved where ||A v||^2 is well above mu, and keeps the value of the sum where it is well below. Two
errors, relative to the task vectors, meet here. E is rounded to float64, and in directions that L does not see the
solution is that divided by mu: a few times 2.2e-16 / 1e-10 = 2e-6, nothing in the 16-bit formats of checkpoints. And a
point at distance d from the sum can have a smaller L, but by mu d^2 / 2 at most. A solved direction grows by some
1 / sqrt(mu) = 1e5 at most, which float32 with its 6e-8 can still carry.
"""

_BLOCK = 1 << 20  # elements of a block of rows: enough for fast products
_LONG = 1024  # the longer side of what is widened to float64 at a time


def closed_form(taus: Sequence[Array], proximity: float = PROXIMITY) -> Array:
    """Minimize WUDI's objective L: R S^+, which has the smallest norm, as far as `proximity` lets it go from the sum.

    Takes N arrays of shape (out, in), all float32 or all float64; returns a new one of that shape and dtype, computed
    in float64. The pseudo-inverse is reached by two proximal steps, X <- argmin L(tau_0 + X) + mu ||X - previous X||^2,
    from X = 0, with mu = `proximity` times the trace of S:

        X_1 = E (S + mu)^-1                       X_2 = (E + mu X_1) (S + mu)^-1                   if in < N out
        X_1 = Y_1 A,  Y_1 = D (A A^T + mu)^-1     X_2 = Y_2 A,  Y_2 = (D + mu Y_1) (A A^T + mu)^-1     else

    So an eigenvalue s of S is inverted as (1 - (mu / (s + mu))^2) / s, which is 1/s to float32 accuracy from s = 5000
    mu on. Proximal steps never raise L, and L(result) <= L(y) + mu/2 ||y - tau_0||^2 for any y, that of the authors'
    Adam included (Güler 1991, SIAM J. Control Optim. 29, theorem 2.1). To drop the eigenvalues below mu instead has a
    bound with sqrt(mu) for mu, a result that jumps when an eigenvalue crosses mu, and the price of an
    eigendecomposition.
    """
    out, width = taus[0].shape
    solver = _tall if width < len(taus) * out else _flat
    with np.errstate(over="ignore", invalid="ignore"):  # whether it is finite, the caller sees in the result
        norms = _norms(taus)
        alone = sum(norm != 0 for norm in norms) < 2  # then E is 0
        return _sum(taus) if alone else solver(taus, norms, proximity)


def scratch_bytes(shape: tuple[int, int], agents: int) -> int:
    """Bytes that `closed_form` takes at most, beyond `agents` task vectors of `shape` and the result.

    The two matrices that NumPy's `inv` takes besides the inverse count. The buffers of BLAS do not: they belong to its
    threads.
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


def _blocks(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _rows_per_block(width: int) -> int:
    return max(1, _BLOCK // width)


def _row_blocks(tau: Array) -> Iterator[slice]:
    return _blocks(len(tau), _rows_per_block(tau.shape[1]))


def _norms(taus: Sequence[Array]) -> list[float]:
    """||tau_t||_F, of squares in float64: those of float32 overflow at 1e19 and vanish at 1e-23."""
    return [math.sqrt(sum(float((wide(tau[rows]) ** 2).sum()) for rows in _row_blocks(tau))) for tau in taus]


def _sum(taus: Sequence[Array]) -> Array:
    total = taus[0] + 0  # a copy
    for tau in taus[1:]:
        total += tau
    return total


def _gram(tau: Array, norm: float) -> Any:
    gram: Any = 0
    for rows in _blocks(len(tau), _LONG):
        block = wide(tau[rows]) / (norm or 1.0)
        gram += block.T @ block  # BLAS does this in half the time, knowing the product to be symmetric
    return gram


def _tall(taus: Sequence[Array], norms: Sequence[float], proximity: float) -> Array:
    """`closed_form` by S of shape (in, in)."""
    excess = arrays.zeros(tuple(taus[0].shape), "float64", taus[0])
    curvature: Any = 0
    for t, (tau, norm) in enumerate(zip(taus, norms, strict=True)):
        gram = _gram(tau, norm)
        curvature += gram  # a new array the first time, in place from then on
        for rows in _row_blocks(tau):
            excess[rows] -= wide(_sum([each[rows] for s, each in enumerate(taus) if s != t])) @ gram
        del gram  # before the next one is there
    inverse, mu = _inverse(curvature, proximity)
    del curvature
    result = arrays.zeros(tuple(taus[0].shape), real_of(taus[0]), taus[0])
    for rows in _row_blocks(result):
        step = _proximal(excess[rows], inverse, mu)
        for tau in taus:
            step += tau[rows]
        result[rows] = step
    return result


def _flat(taus: Sequence[Array], norms: Sequence[float], proximity: float) -> Array:
    """`closed_form` by A A^T of shape (N out, N out)."""
    result = arrays.zeros(tuple(taus[0].shape), real_of(taus[0]), taus[0])
    out, width = result.shape
    products: Any = 0  # A A^T
    for columns in _blocks(width, _LONG):
        stack = _stack(taus, norms, columns)
        products += stack @ stack.T
        del stack
    excess = _interference(products, norms, out)
    inverse, mu = _inverse(products, proximity)
    del products
    excess = _proximal(excess, inverse, mu)
    del inverse
    for columns in _blocks(width, _LONG):
        step = excess @ _stack(taus, norms, columns)
        for tau in taus:
            step += tau[:, columns]
        result[:, columns] = step
    return result


def _stack(taus: Sequence[Array], norms: Sequence[float], columns: slice) -> Array:
    stack = arrays.concat([wide(tau[:, columns]) for tau in taus])
    for rows, norm in zip(_blocks(len(stack), len(taus[0])), norms, strict=True):
        stack[rows] /= norm or 1.0
    return stack


def _interference(products: Array, norms: Sequence[float], out: int) -> Array:
    """D of shape (out, N out) from A A^T: (tau_t - tau_0) A_t^T = - sum over s != t of ||tau_s|| A_s A_t^T."""
    excess = 0 * products[:out]
    for t, columns in enumerate(_blocks(len(products), out)):
        for s, rows in enumerate(_blocks(len(products), out)):
            if s != t:
                excess[:, columns] -= products[rows, columns] * norms[s]
    return excess


def _inverse(matrix: Array, proximity: float) -> tuple[Array, float]:
    """The inverse of a positive semidefinite `matrix` + mu, and mu; overwrites `matrix`.

    The condition is at most 1 / `proximity`.
    """
    mu = proximity * float(matrix.diagonal().sum())
    matrix.reshape(-1)[:: len(matrix) + 1] += mu
    # transposed: LAPACK makes matrix @ inverse close to the identity, here inverse @ matrix has to be
    inverse = arrays.inv(matrix).T
    return inverse, mu


def _proximal(excess: Array, inverse: Array, mu: float) -> Array:
    first = excess @ inverse
    first *= mu
    first += excess
    return first @ inverse
