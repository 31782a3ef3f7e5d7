"""Differences between NumPy's arrays and torch's, under the names of the array API standard where it has them.

All of `linalg` is written once: operators, slices and methods such as `sum` are the same for both, and the rest is a
function here, chosen by the kind of its argument. Eigenvalues, ranks and coefficients are NumPy's, wherever the
matrices lie: they are few, and what is chosen by them is chosen by the same code. A layer of a page is taken instead of
`array_api_compat`, because it needs decompositions in float32 as well, which NumPy's public functions compute in
float64, and because NumPy 1.26 has no functions of the standard.

torch is imported where a tensor is made, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""An array of NumPy, or a tensor of torch, on any device."""
Real = Literal["float32", "float64"]

SMALL = 256
"""A side up to which everything is float64: it takes no time."""

_FULL = 1e-6  # the least eigenvalue over the largest one of a matrix whose vectors are refined
_ENOUGH = 1e-5  # of a step, whose square is the error that is left
_MOST_STEPS = 3
_refines: ContextVar[bool] = ContextVar("refines", default=False)


class DoubleMissingError(RuntimeError):
    """A device has no float64."""


def real_of(x: Array) -> Real:
    return "float32" if x.dtype.itemsize == 4 else "float64"


def astype(x: Array, real: Real) -> Array:
    """In that dtype; without a copy if it is already."""
    if isinstance(x, np.ndarray):
        return x.astype(real, copy=False)
    return x if real_of(x) == real else x.to(_dtype(x, real))


def wide(x: Array) -> Array:
    return astype(x, "float64")


def zeros(shape: tuple[int, ...], real: Real, like: Array) -> Array:
    """Zeros of the kind and on the device of `like`."""
    return np.zeros(shape, real) if isinstance(like, np.ndarray) else like.new_zeros(shape, dtype=_dtype(like, real))


def empty(shape: tuple[int, ...], real: Real, like: Array) -> Array:
    return np.empty(shape, real) if isinstance(like, np.ndarray) else like.new_empty(shape, dtype=_dtype(like, real))


def asarray(numbers: NDArray[Any], like: Array) -> Array:
    """Numbers of NumPy in the kind, the dtype and on the device of `like`."""
    if isinstance(like, np.ndarray):
        return numbers.astype(like.dtype, copy=False)
    return _torch().from_numpy(np.require(numbers, real_of(like), ["C", "W"])).to(like.device)


def to_host(x: Array) -> NDArray[Any]:
    """As an array of NumPy."""
    return x if isinstance(x, np.ndarray) else np.asarray(x.cpu().numpy())


def concat(arrays: Sequence[Array], axis: int = 0) -> Array:
    return np.concatenate(arrays, axis) if isinstance(arrays[0], np.ndarray) else _torch().cat(list(arrays), axis)


def flip(x: Array) -> Array:
    """With the columns in reverse order."""
    return x[:, ::-1] if isinstance(x, np.ndarray) else x.flip(1)


def contiguous(x: Array) -> Array:
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()


def gram(x: Array) -> Array:
    """x x^T, which NumPy computes in half the time of another product; torch on the CPU does not."""
    if isinstance(x, np.ndarray):
        return x @ x.T
    return x @ x.T if x.device.type != "cpu" else _torch().from_numpy(to_host(x) @ to_host(x).T)


def sign(x: Array) -> Array:
    return np.sign(x) if isinstance(x, np.ndarray) else x.sign()


def all_finite(x: Array) -> bool:
    return bool((np.isfinite(x) if isinstance(x, np.ndarray) else x.isfinite()).all())


def kth_largest(x: Array, k: int) -> float:
    """The value of a rank among all elements, from 1 for the largest."""
    if isinstance(x, np.ndarray):
        return float(np.partition(x, x.size - k, axis=None)[x.size - k])
    flat = x.reshape(-1)
    return float(flat.kthvalue(flat.numel() - k + 1).values)


# --- decompositions --------------------------------------------------------------------------------------------------


@contextmanager
def refining(is_on: bool) -> Iterator[None]:
    """In the block, this thread's large float64 eigendecompositions are float32, refined by float64 products."""
    token = _refines.set(is_on)
    try:
        yield
    finally:
        _refines.reset(token)


def eigh(symmetric: Array) -> tuple[NDArray[np.float64], Array]:
    """Ascending eigenvalues as float64 of NumPy, and their vectors as columns, computed in the dtype of the matrix."""
    if _refines.get() and real_of(symmetric) == "float64" and len(symmetric) > SMALL:
        refinement = _refine(symmetric)
        if refinement is not None:
            return refinement
    values, vectors = _decomposed(symmetric, _eigh, "eigh")
    return to_host(values).astype(np.float64, copy=False), vectors


def _refine(symmetric: Array) -> tuple[NDArray[np.float64], Array] | None:
    """Eigenvectors in float32, refined by products in float64 (Ogita and Aishima 2018); None where that fails.

    A step squares the errors of the vectors: at first 1e-7 of the largest eigenvalue over the distance of two. One is
    enough where all distances are large, and two nearly always. Directions that are nearly null are left to float64:
    methods amplify them, and read ranks from their number.
    """
    vectors = wide(eigh(astype(symmetric, "float32"))[1])
    for _ in range(_MOST_STEPS):
        missing = -gram(vectors.T)  # of orthogonality
        missing.reshape(-1)[:: len(missing) + 1] += 1
        diagonalized_matrix = vectors.T @ (symmetric @ vectors)
        values = diagonalized_matrix.diagonal() / (1 - missing.diagonal())
        ascending = to_host(values)
        if not ascending.min() > _FULL * ascending.max():
            return None
        distances = values[None, :] - values[:, None]
        diagonalized_matrix += missing * values[None, :]  # 0 for exact vectors, except on the diagonal
        diagonalized_matrix.reshape(-1)[:: len(diagonalized_matrix) + 1] = 0
        close = abs(distances) <= 2 * float(abs(diagonalized_matrix).max())  # too close to be separated yet
        distances += close
        diagonalized_matrix /= distances
        diagonalized_matrix[close] = missing[close] / 2
        vectors = vectors + vectors @ diagonalized_matrix
        if float(abs(diagonalized_matrix).max()) <= _ENOUGH:
            order = np.argsort(ascending, kind="stable")
            return ascending[order], vectors[:, order]
    return None


def qr(x: Array) -> Array:
    """An orthonormal basis of the columns of a matrix with at least as many rows."""
    return _decomposed(x, np.linalg.qr, "qr")[0]


def inv(x: Array) -> Array:
    return _decomposed(x, lambda each: (np.linalg.inv(each),), "inv_ex")[0]


def _decomposed(x: Array, of_numpy: Callable[[NDArray[Any]], Sequence[Any]], of_torch: str) -> Sequence[Array]:
    """By NumPy's LAPACK on a CPU, whoever holds the numbers, and for MPS, which lacks most; else by torch."""
    if isinstance(x, np.ndarray):
        return of_numpy(x)
    if x.device.type == "cuda":
        return tuple(getattr(_torch().linalg, of_torch)(x))
    return [asarray(np.asarray(each), x) for each in of_numpy(to_host(x))]


# np.linalg.eigh widens float32 to float64; this is the same routine of LAPACK in float32, in 0.6 of the time
_eigh_of_float32: Any = getattr(getattr(np.linalg, "_umath_linalg", None), "eigh_lo", None)


def _eigh(symmetric: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if symmetric.dtype == np.float32 and _eigh_of_float32 is not None:
        values, vectors = _eigh_of_float32(symmetric, signature="f->ff")
        if np.isfinite(values).all():
            return values, vectors
    return np.linalg.eigh(symmetric)  # which raises LinAlgError where it does not converge


def _dtype(like: Array, real: Real) -> Any:
    if real == "float64" and like.device.type == "mps":
        raise DoubleMissingError("MPS has no float64")
    return getattr(_torch(), real)


def _torch() -> Any:
    import torch

    return torch
