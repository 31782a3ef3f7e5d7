"""What methods that take matrices apart have in common: spectra, polar factors, and products of long matrices.

A singular value decomposition of x of shape (m, n) is the eigendecomposition of the Gram matrix of the smaller side, in
float64. Its vectors have no signs of their own, and where singular values are equal, any rotation of them is as good.
So only products are used in which signs and rotations cancel.

What is lost in the noise is dropped: an eigenvalue of a Gram matrix is accurate to about `noise` times the largest one.
A smaller one counts as 0 and its direction as null, and two that differ by less are equal: a cut between them moves on
past all that are equal. Both are relative, so that the result of small task vectors is the same, only smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.linalg.work import DECOMPOSITION, worked

Array = NDArray[Any]

NULL = 1e-12
"""Share of the largest eigenvalue of a Gram matrix of directions below which a direction counts as missing."""

_BLOCK = 1 << 21  # elements that are widened to float64 at a time


@dataclass(frozen=True)
class Triples:
    """Some singular triples of a matrix of shape (m, n): u of shape (m, k), s descending, and v of shape (n, k)."""

    u: Array
    s: Array
    v: Array


def noise(shape: tuple[int, ...]) -> float:
    """The share of the largest eigenvalue of a Gram matrix to which its eigenvalues are accurate."""
    return (64 + max(shape)) * 2.0**-52


def blocks(x: Array) -> Iterator[slice]:
    """Blocks of columns of a matrix, of about `_BLOCK` elements."""
    step = max(1, _BLOCK // max(len(x), 1))
    return (slice(start, min(start + step, x.shape[1])) for start in range(0, x.shape[1], step))


def wide(x: Array) -> Array:
    return np.asarray(x, np.float64)


def gram(x: Array) -> Array:
    """x x^T in float64, of shape (m, m) for x of shape (m, n)."""
    total = np.zeros((len(x), len(x)))
    for columns in blocks(x):
        block = wide(x[:, columns])
        total += block @ block.T  # BLAS does this in half the time, knowing the product to be symmetric
        worked(len(x) * block.size)
    return total


def transposed_product(x: Array, y: Array) -> Array:
    """x^T y in float64, of shape (n, k) for x of shape (m, n) and y of shape (m, k)."""
    result = np.empty((x.shape[1], y.shape[1]))
    for columns in blocks(x):
        result[columns] = wide(x[:, columns]).T @ y
    return result


def combined(operators: Sequence[Array], taus: Sequence[Array]) -> Array:
    """sum_t operators[t] taus[t], in the dtype of the task vectors, of shape (k, n) for operators of shape (k, m)."""
    result = np.empty((len(operators[0]), taus[0].shape[1]), taus[0].dtype)
    for columns in blocks(taus[0]):
        result[:, columns] = sum(
            operator @ wide(tau[:, columns]) for operator, tau in zip(operators, taus, strict=True)
        )
    return result


def spectrum(symmetric: Array) -> tuple[Array, Array]:
    """Eigenvalues in descending order, none below 0, and their vectors as columns."""
    values, vectors = np.linalg.eigh(symmetric)
    worked(DECOMPOSITION * len(symmetric) ** 3)
    return np.maximum(values[::-1], 0), vectors[:, ::-1]


def rank(values: Array, noise: float, least: float = 0.0) -> int:
    """How many of the descending eigenvalues of a Gram matrix are not null.

    `least` is the size of a matrix from which the present one was computed with cancellation, if that is larger.
    """
    return int(np.count_nonzero(values > noise * max(values.max(initial=0.0), least)))


def cut(values: Array, k: int, noise: float, least: float = 0.0) -> int:
    """`k`, or the rank if that is less, or more where the cut would part equal eigenvalues."""
    full = rank(values, noise, least)
    while 0 < k < full and values[k - 1] - values[k] <= noise * values[0]:
        k += 1
    return min(k, full)


def leading(x: Array, choose: Callable[[Array], int], least: float = 0.0) -> Triples:
    """The leading singular triples of a matrix of shape (m, n).

    `choose` says how many, given the squares of its singular values; `least` is in squares, as for `rank`.
    """
    if len(x) > x.shape[1]:
        found = leading(x.T, choose, least)
        return Triples(found.v, found.s, found.u)
    values, vectors = spectrum(gram(x))
    k = cut(values, choose(values), noise(x.shape), least)
    u, s = np.ascontiguousarray(vectors[:, :k]), np.sqrt(values[:k])
    return Triples(u, s, transposed_product(x, u) / s)


def polar(x: Array) -> Array:
    """The orthogonal polar factor x (x^T x)^(+1/2), in which directions that are missing in x are 0; shape of x."""
    result: Array = _inverse_root(x @ x.T) @ x if len(x) < x.shape[1] else x @ _inverse_root(x.T @ x)
    return result


def _inverse_root(gram: Array) -> Array:
    values, vectors = spectrum(gram)
    kept = values > NULL * values.max(initial=0.0)
    half = vectors[:, kept] / values[kept] ** 0.25
    root: Array = half @ half.T
    return root


def total(matrices: Iterable[Array]) -> Array:
    """The sum of at least one matrix, in float64."""
    first, *others = matrices
    result = np.array(first, np.float64)
    for other in others:
        result += other
    return result


def squares(x: Array) -> float:
    """||x||_F^2 in float64."""
    return sum(float(np.square(wide(x[:, columns])).sum()) for columns in blocks(x))


def inner(x: Array, y: Array) -> float:
    """The sum of the products of the elements of two matrices of one shape, in float64."""
    return sum(float(np.vdot(wide(x[:, columns]), wide(y[:, columns]))) for columns in blocks(x))


# --- methods of a matrix ---------------------------------------------------------------------------------------------


def aligned(triples: Sequence[Triples]) -> Array:
    """polar(U) diag(S) polar(V)^T of the triples of all agents side by side, float64."""
    u = np.concatenate([one.u for one in triples], axis=1)
    v = np.concatenate([one.v for one in triples], axis=1)
    result: Array = polar(u) * np.concatenate([one.s for one in triples])
    return _times_polar(result, v)


def _times_polar(x: Array, v: Array) -> Array:
    """x polar(v)^T, without polar(v), which may be as large as the result."""
    small = v.shape[1] <= len(v)
    result: Array = x @ _inverse_root(v.T @ v) @ v.T if small else x @ v.T @ _inverse_root(v @ v.T)
    return result
