"""WUDI-Merging of one linear weight.

Cheng et al. 2025, "Whoever Started the Interference Should End It", arXiv 2503.08099. The merged task vector tau of N
agents with task vectors tau_t, arrays of shape (out, in), minimizes the authors' loss

    L(tau) = sum_t w_t ||(tau - tau_t) tau_t^T||_F^2,    w_t = 1 / ||tau_t||_F^2, or 0 where tau_t is 0.

With A_t = sqrt(w_t) tau_t and their stack A of shape (N out, in) this is a linear least-squares problem,

    L(tau) = sum_t ||(tau - tau_t) A_t^T||_F^2,    gradient = 2 (tau S - R),
    G_t = A_t^T A_t,    S = A^T A = sum_t G_t,    R = sum_t tau_t G_t.

Both solvers start where the authors do, at the sum tau_0 = sum_t tau_t, and look for the step X = tau - tau_0 that
takes away the gradient 2 (X S - E),

    E = R - tau_0 S = sum_t (tau_t - tau_0) G_t = D A,    D = [(tau_t - tau_0) A_t^T]_t of shape (out, N out).

The rows of tau_0 lie in the row space of A, so tau_0 + E S^+ is R S^+. But tau_t - tau_0 is computed as a sum over the
*other* agents, without cancellation: what nothing interferes with has E = 0 exactly, and is the sum exactly.

`adam` follows the authors' iteration, `closed_form` goes to its end. The same machine and number of BLAS
threads give the same result; others may round differently. Values that are not finite lead to results that are not
finite, never to an exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ramerge.linalg import arrays
from ramerge.linalg.arrays import Array, Real, real_of, wide
from ramerge.linalg.work import worked

Solver = Literal["adam", "closed_form"]

PROXIMITY = 1e-10
"""mu of `closed_form` over the trace of S, for the minimum itself.

A direction v is solved where ||A v||^2 is well above mu, and keeps the value of the sum where it is well below. Two
errors, relative to the task vectors, meet here. E is rounded to float64, and in directions that L does not see the
solution is that divided by mu: a few times 2.2e-16 / 1e-10 = 2e-6, nothing in the 16-bit formats of checkpoints. And a
point at distance d from the sum can have a smaller L, but by mu d^2 / 2 at most. A solved direction grows by some
1 / sqrt(mu) = 1e5 at most, which float32 with its 6e-8 can still carry.
"""

_BLOCK = 1 << 20  # elements of a block of rows: enough for fast products, few enough for the state of Adam to be cached
_LONG = 1024  # the longer side of what is widened to float64 at a time

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


def closed_form(taus: Sequence[Array], proximity: float = PROXIMITY) -> Array:
    """The minimizer R S^+ of L with the smallest norm, as far as `proximity` lets it go from the sum.

    Takes N arrays of shape (out, in), all float32 or all float64; returns a new one of that shape and dtype, computed
    in float64. The pseudo-inverse is reached by two proximal steps, X <- argmin L(tau_0 + X) + mu ||X - previous X||^2,
    from X = 0, with mu = `proximity` times the trace of S:

        X_1 = E (S + mu)^-1                       X_2 = (E + mu X_1) (S + mu)^-1                   if in < N out
        X_1 = Y_1 A,  Y_1 = D (A A^T + mu)^-1     X_2 = Y_2 A,  Y_2 = (D + mu Y_1) (A A^T + mu)^-1     else

    So an eigenvalue s of S is inverted as (1 - (mu / (s + mu))^2) / s, which is 1/s to float32 accuracy from s = 5000
    mu on. Proximal steps never raise L, and L(result) <= L(y) + mu/2 ||y - tau_0||^2 for any y, that of Adam included
    (Güler 1991, SIAM J. Control Optim. 29, theorem 2.1). To drop the eigenvalues below mu instead has a bound with
    sqrt(mu) for mu, a result that jumps when an eigenvalue crosses mu, and the price of an eigendecomposition.
    """
    out, width = taus[0].shape
    solver = _tall if width < len(taus) * out else _flat
    return _solve(taus, lambda norms: solver(taus, norms, proximity))


def adam(taus: Sequence[Array], steps: int = 300, rate: float = 1e-5) -> Array:
    """The authors' solver: `steps` steps of Adam on L, from the sum of the task vectors.

    Takes N arrays of shape (out, in), all float32 or all float64; returns a new one of that shape and dtype, in which
    it is computed. Adam is torch's, with betas 0.9 and 0.999, eps 1e-8 and no weight decay. A step moves an element by
    about `rate`, in units of the weights, however small the task vectors are.
    """
    return _solve(taus, lambda norms: _adam(taus, norms, steps, rate))


def scratch_bytes(shape: tuple[int, int], agents: int, solver: Solver, real: str = "float32") -> int:
    """What a solver takes at most, in bytes.

    That is beyond `agents` task vectors of `shape` and the dtype `real`, and beyond the result. The two matrices that
    NumPy's `inv` takes besides the inverse count. The buffers of BLAS do not: they belong to its threads.
    """
    out, width = shape
    rows, high, long = min(out, _rows(width)), min(out, _LONG), min(width, _LONG)
    size, stacked = np.dtype(real).itemsize, agents * out
    norms = 2 * 8 * rows * width
    if solver == "adam" and _dense(out, width, agents):
        numbers = 3 * width * width + max(2 * high, 8 * rows) * width
    elif solver == "adam":
        numbers = (stacked + 2 * out + 9 * rows) * width + 2 * out * out
    elif width < stacked:
        size, numbers = 8, out * width + 4 * width * width + max(2 * high, 5 * rows) * width
    else:
        gathering = 2 * stacked * stacked + 2 * stacked * long
        inverting = 4 * stacked * stacked + out * stacked
        spreading = out * stacked + 2 * stacked * long + out * long
        size, numbers = 8, max(gathering, inverting, spreading)
    return max(norms, size * numbers) + (1 << 16)  # and small things


def _solve(taus: Sequence[Array], solver: Callable[[Sequence[float]], Array]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # whether it is finite, the caller sees in the result
        norms = _norms(taus)
        alone = sum(norm != 0 for norm in norms) < 2  # then E is 0
        return _sum(taus) if alone else solver(norms)


def _blocks(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _rows(width: int) -> int:
    return max(1, _BLOCK // width)


def _row_blocks(tau: Array) -> Iterator[slice]:
    return _blocks(len(tau), _rows(tau.shape[1]))


def _norms(taus: Sequence[Array]) -> list[float]:
    """||tau_t||_F, of squares in float64: those of float32 overflow at 1e19 and vanish at 1e-23."""
    return [math.sqrt(sum(float((wide(tau[rows]) ** 2).sum()) for rows in _row_blocks(tau))) for tau in taus]


def _sum(taus: Sequence[Array]) -> Array:
    total = taus[0] + 0  # a copy
    for tau in taus[1:]:
        total += tau
    return total


def _others(taus: Sequence[Array], t: int, rows: slice) -> Array:
    return _sum([tau[rows] for s, tau in enumerate(taus) if s != t])


def _unit(tau: Array, norm: float) -> Array:
    """A_t of tau_t, or rows of it. A division, because the inverse of a norm can overflow float32."""
    return tau / (norm or 1.0)


def _gram(tau: Array, norm: float, real: Real) -> Any:
    gram: Any = 0
    for rows in _blocks(len(tau), _LONG):
        block = _unit(arrays.astype(tau[rows], real), norm)
        gram += block.T @ block  # BLAS does this in half the time, knowing the product to be symmetric
    return gram


def _quadratic(taus: Sequence[Array], norms: Sequence[float], real: Real, *, is_most: bool) -> tuple[Array, Array]:
    """S of shape (in, in) and E, computed in `real`; progress is reported if that is most of the work."""
    excess = arrays.zeros(tuple(taus[0].shape), real, taus[0])
    curvature: Any = 0
    for t, (tau, norm) in enumerate(zip(taus, norms, strict=True)):
        gram = _gram(tau, norm, real)
        curvature += gram  # a new array the first time, in place from then on
        for rows in _row_blocks(tau):
            excess[rows] -= arrays.astype(_others(taus, t, rows), real) @ gram
            if is_most:
                worked(3 * len(gram) * math.prod(tau[rows].shape))
        del gram  # before the next one is there
    return curvature, excess


def _tall(taus: Sequence[Array], norms: Sequence[float], proximity: float) -> Array:
    """`closed_form` by S of shape (in, in)."""
    curvature, excess = _quadratic(taus, norms, "float64", is_most=True)
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
        worked(len(stack) ** 2 * stack.shape[1])
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
    worked(2 * 8 / 3 * len(matrix) ** 3)
    return inverse, mu


def _proximal(excess: Array, inverse: Array, mu: float) -> Array:
    first = excess @ inverse
    first *= mu
    first += excess
    return first @ inverse


def _adam(taus: Sequence[Array], norms: Sequence[float], steps: int, rate: float) -> Array:
    out, width = taus[0].shape
    product, result = (_curvature if _dense(out, width, len(taus)) else _factors)(taus, norms)
    side = min(width, len(taus) * out)

    def counted(x: Array) -> Array:
        worked((side + 10) * math.prod(x.shape))
        return product(x)

    # the gradient of a row depends on that row of X alone: a block takes all its steps before the next one
    for rows in _row_blocks(result):
        excess = result[rows]
        moving = (excess != 0).any(1)  # the other rows have no gradient, and never will
        excess[moving] = _descend(excess[moving], counted, steps, rate)
        for tau in taus:
            excess += tau[rows]
    return result


def _dense(out: int, width: int, agents: int) -> bool:
    """Whether to have S at hand: X S takes fewer operations than (X A^T) A up to 2 N out, but near that more memory."""
    return 2 * width <= 3 * agents * out


def _curvature(taus: Sequence[Array], norms: Sequence[float]) -> tuple[Callable[[Array], Array], Array]:
    """X -> 2 X S by S itself, and 2 E."""
    curvature, excess = _quadratic(taus, norms, real_of(taus[0]), is_most=False)
    curvature *= 2
    excess *= 2
    return lambda x: x @ curvature, excess


def _factors(taus: Sequence[Array], norms: Sequence[float]) -> tuple[Callable[[Array], Array], Array]:
    """X -> 2 X S as (2 X A^T) A, and 2 E."""
    excess = taus[0] * 0
    units = [_unit(tau, norm) for tau, norm in zip(taus, norms, strict=True)]

    def product(x: Array) -> Array:
        return _sum([(x @ unit.T * 2) @ unit for unit in units])

    for t, unit in enumerate(units):
        excess -= (_others(taus, t, slice(None)) @ unit.T * 2) @ unit
    return product, excess


def _descend(excess: Array, product: Callable[[Array], Array], steps: int, rate: float) -> Array:
    """X after `steps` steps of Adam (arXiv 1412.6980) from 0 along the gradient `product`(X) - `excess`."""
    x, mean, square = (0 * excess for _ in range(3))
    for step in range(1, steps + 1):
        gradient = product(x)
        gradient -= excess
        change = gradient - mean
        change *= 1 - _BETA1
        mean += change
        gradient *= gradient
        gradient *= 1 - _BETA2
        square *= _BETA2
        square += gradient
        arrays.sqrt(square, out=gradient)
        gradient *= 1 / math.sqrt(1 - _BETA2**step)
        gradient += _EPSILON
        arrays.divide(mean, gradient, out=change)
        change *= rate / (1 - _BETA1**step)
        x -= change
    return x
