"""Building blocks of methods that decompose matrices: spectra, polar factors, and products of long matrices.

The singular value decomposition of x of shape (m, n) is computed from the eigendecomposition of the Gram matrix of the
smaller side. The signs of singular vectors are arbitrary, and so are rotations among equal singular values. So only
products are used in which signs and rotations cancel.

Noise is dropped: an eigenvalue of a Gram matrix is accurate to about `noise` times the largest. A smaller eigenvalue
counts as 0 and its direction as null. Two eigenvalues that differ by less count as equal: a cut between them moves past
all equal ones. Both thresholds are relative, so that scaled task vectors give a scaled result.

Decompositions are float64, except for large float32 matrices if that costs only about 1e-6 of the result: the spectrum
is spread evenly, as is usual for weights in bfloat16, no direction is amplified, and a cut lies between clearly
different eigenvalues (`resolve_rank`). Otherwise they are repeated in float64, so no spectrum gets a worse result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramerge.core.linalg import arrays
from ramerge.core.linalg.arrays import SMALL, Array, Real, real_of, wide

Values = NDArray[np.float64]

NULL = 1e-12
"""The share of a Gram matrix's largest eigenvalue below which a direction counts as missing."""

_BLOCK = 1 << 21  # elements that are widened to float64 at a time
# The limits for float32 are relative to the largest eigenvalue.
_STEEP = 0.05  # float32: the least mean eigenvalue, and so about the least eigenvalue that a method uses
_LEAST = 1e-2  # float32: the least eigenvalue whose direction is used
_APART = 3e-5  # float32: the least distance of two eigenvalues between which a spectrum may be cut
_ROUNDING = 1e-6  # float32: the largest error of an eigenvalue
_SOUND = 1e-3  # float32: the least eigenvalue of a Gram matrix of directions


@dataclass(frozen=True)
class Triples:
    """Singular triples of a matrix of shape (m, n): u of shape (m, k), s descending, and v of shape (n, k).

    s is a NumPy array; u and v are on the matrix's device, and may have different dtypes.
    """

    u: Array
    s: Values
    v: Array


def noise(shape: tuple[int, ...]) -> float:
    """Return the accuracy of a Gram matrix's eigenvalues, relative to the largest."""
    return (64 + max(shape)) * 2.0**-52


def blocks(x: Array) -> Iterator[slice]:
    """Split the columns of a matrix into blocks of about `_BLOCK` elements."""
    step = max(1, _BLOCK // max(len(x), 1))
    return (slice(start, min(start + step, x.shape[1])) for start in range(0, x.shape[1], step))


def gram(x: Array, real: Real = "float64") -> Array:
    """Return x x^T, of shape (m, m) for x of shape (m, n)."""
    if real_of(x) == real:
        return arrays.gram(x)
    total = arrays.zeros((len(x), len(x)), real, x)
    for columns in blocks(x):
        block = arrays.astype(x[:, columns], real)
        total += arrays.gram(block)
    return total


def _transposed_product(x: Array, y: Array) -> Array:
    """Return x^T y in the dtype of y, of shape (n, k) for x of shape (m, n) and y of shape (m, k)."""
    if real_of(x) == real_of(y):
        return x.T @ y
    result = arrays.empty((x.shape[1], y.shape[1]), real_of(y), x)
    for columns in blocks(x):
        result[columns] = arrays.astype(x[:, columns], real_of(y)).T @ y
    return result


def spectrum(symmetric: Array) -> tuple[Values, Array]:
    """Return eigenvalues in descending order, clipped at 0, and eigenvectors as columns."""
    values, vectors = arrays.eigh(symmetric)
    return np.maximum(values[::-1], 0), arrays.flip(vectors)


def scale_columns(x: Array, factors: NDArray[np.float64]) -> Array:
    """Return x diag(factors)."""
    return x * arrays.asarray(np.ascontiguousarray(factors), x)


def rank(values: Values, noise: float, least: float = 0.0) -> int:
    """Count the eigenvalues of a Gram matrix that are not null; they are in descending order.

    If the matrix was computed from a larger one with cancellation, `least` is the largest eigenvalue of that one.
    """
    return int(np.count_nonzero(values > noise * max(values.max(initial=0.0), least)))


def cut(values: Values, k: int, noise: float, least: float = 0.0) -> int:
    """Return `k`, but at most the rank, and more if the cut would separate equal eigenvalues."""
    full = rank(values, noise, least)
    while 0 < k < full and values[k - 1] - values[k] <= noise * values[0]:
        k += 1
    return min(k, full)


# --- float32 ---------------------------------------------------------------------------------------------------------


def even(symmetric: Array) -> bool:
    """Whether a large Gram matrix has a spectrum so even that float32 may suffice."""
    if len(symmetric) <= SMALL:
        return False
    return float(symmetric.diagonal().sum()) >= _STEEP * len(symmetric) * upper_bound(symmetric)


def resolve_rank(values: Values, choose: Callable[[Values], int]) -> int | None:
    """Return the number of float32 eigenvalues that `choose` takes; None if rounding may change it or the subspace."""
    off = _ROUNDING * values[0]
    k = choose(values)
    if not 0 < k <= len(values) or values[k - 1] < _LEAST * values[0]:
        return None
    if k < len(values) and values[k - 1] - values[k] < _APART * values[0]:
        return None
    return k if choose(values + off) == k == choose(np.maximum(values - off, 0)) else None


def upper_bound(symmetric: Array) -> float:
    """Bound the largest eigenvalue of a positive semidefinite matrix from above, by a few Lanczos steps."""
    basis = np.random.default_rng(0).standard_normal((1, len(symmetric)))
    basis /= np.linalg.norm(basis)
    diagonal, off_diagonal = [], []
    for _ in range(min(24, len(symmetric))):
        following = arrays.to_host(symmetric @ arrays.asarray(basis[-1], symmetric)).astype(np.float64)
        diagonal.append(float(following @ basis[-1]))
        for _twice in range(2):
            following -= basis.T @ (basis @ following)
        off_diagonal.append(float(np.linalg.norm(following)))
        if off_diagonal[-1] <= 1e-6 * max(diagonal):
            break
        basis = np.concatenate([basis, following[None] / off_diagonal[-1]])
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal[:-1], 1) + np.diag(off_diagonal[:-1], -1))
    return 1.05 * float(values[-1] + off_diagonal[-1] * abs(vectors[-1, -1]))


# --- singular triples and polar factors ------------------------------------------------------------------------------


def leading(x: Array, choose: Callable[[Values], int], least: float = 0.0, *, exact: bool = True) -> Triples:
    """Compute the leading singular triples of a matrix of shape (m, n).

    Args:
        x: the matrix.
        choose: returns the number of triples, given the squares of the singular values.
        least: as for `rank`.
        exact: compute in float64 even if float32 would resolve the triples; needed if near-null directions of several
            agents are amplified. Vectors of the longer side may still be float32 if x is, and it is twice as long.
    """
    if len(x) > x.shape[1]:
        triples = leading(x.T, choose, least, exact=exact)
        return Triples(triples.v, triples.s, triples.u)
    narrow = real_of(x) == "float32" and len(x) > SMALL
    if narrow and not exact:
        smaller = gram(x, "float32")
        if even(smaller):
            values, vectors = spectrum(smaller)
            if (found_k := resolve_rank(values, choose)) is not None:
                u, s = arrays.contiguous(vectors[:, :found_k]), np.sqrt(values[:found_k])
                return Triples(u, s, scale_columns(_transposed_product(x, u), 1 / s))
    values, vectors = spectrum(gram(x))
    k = cut(values, choose(values), noise(x.shape), least)
    u, s = arrays.contiguous(vectors[:, :k]), np.sqrt(values[:k])
    narrow = narrow and 2 * len(x) <= x.shape[1] and k > 0 and values[k - 1] >= _LEAST * values[0]
    right = arrays.astype(u, "float32") if narrow else u
    return Triples(u, s, scale_columns(_transposed_product(x, right), 1 / s))


@dataclass(frozen=True)
class InverseRoot:
    """The inverse square root of a positive semidefinite matrix of shape (p, p), with null directions set to 0.

    Attributes:
        root: the inverse root, shape (p, p).
        basis: an orthonormal basis of the directions that are not null, shape (p, rank); None if none is null.
    """

    root: Array
    basis: Array | None

    def projection(self, part: slice) -> Array | None:
        """Return some rows and columns of the projector on non-null directions; None for the identity."""
        return None if self.basis is None else arrays.gram(self.basis[part])


def inverse_root(x: Array) -> InverseRoot:
    """Return the inverse root of x x^T for wide x of shape (p, n); in float32 if x is, and its rows are independent."""
    if real_of(x) == "float32" and len(x) > SMALL:
        values, vectors = spectrum(gram(x, "float32"))
        if values[-1] >= _SOUND * values[0]:
            half = scale_columns(vectors, values**-0.25)
            return InverseRoot(arrays.gram(half), None)
    values, vectors = spectrum(gram(x))
    rank = int(np.count_nonzero(values > NULL * values.max(initial=0.0)))
    half = scale_columns(vectors[:, :rank], values[:rank] ** -0.25)
    return InverseRoot(arrays.gram(half), vectors[:, :rank] if rank < len(x) else None)


def polar(x: Array) -> Array:
    """Return the orthogonal polar factor x (x^T x)^(-1/2), in the shape of x; directions missing in x are 0."""
    return matmul(inverse_root(x).root, x) if len(x) < x.shape[1] else matmul(x, inverse_root(x.T).root)


def matmul(x: Array, y: Array) -> Array:
    """Return x y, computed in the narrower of the two dtypes."""
    real: Real = "float64" if real_of(x) == real_of(y) == "float64" else "float32"
    return arrays.astype(x, real) @ arrays.astype(y, real)


def total(matrices: Iterable[Array]) -> Array:
    """Return the sum of one or more matrices, in float64."""
    first, *others = matrices
    result = wide(first) + 0.0  # a copy
    for other in others:
        result += other
    return result


def squares(x: Array) -> float:
    """Return ||x||_F^2 in float64."""
    return inner(x, x)


def inner(x: Array, y: Array) -> float:
    """Return the sum of the elementwise products of two matrices, in float64."""
    return sum(float((wide(x[:, columns]) * wide(y[:, columns])).sum()) for columns in blocks(x))


def norm(x: Array) -> float:
    return math.sqrt(squares(x))


# --- methods of a matrix ---------------------------------------------------------------------------------------------


def side_by_side(triples: Sequence[Triples]) -> tuple[Array, Array]:
    """Concatenate the left singular vectors of all agents, and the right ones, each in the narrowest dtype."""
    return _concatenate_vectors([one.u for one in triples]), _concatenate_vectors([one.v for one in triples])


def _concatenate_vectors(vectors: Sequence[Array]) -> Array:
    real: Real = "float32" if any(real_of(one) == "float32" for one in vectors) else "float64"
    return arrays.concat([arrays.astype(one, real) for one in vectors], 1)


def align(triples: Sequence[Triples]) -> Array:
    """Return polar(U) diag(S) polar(V)^T for the concatenated triples of all agents."""
    u, v = side_by_side(triples)
    if len(u) > len(v):
        return align([Triples(one.v, one.s, one.u) for one in triples]).T
    return _multiply_by_polar(scale_columns(polar(u), np.concatenate([one.s for one in triples])), v)


def _multiply_by_polar(x: Array, v: Array) -> Array:
    """Return x polar(v)^T without forming polar(v), which may be as large as the result."""
    if v.shape[1] <= len(v):
        return matmul(matmul(x, inverse_root(v.T).root), v.T)
    return matmul(matmul(x, v.T), inverse_root(v).root)
