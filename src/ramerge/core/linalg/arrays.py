"""Bridges the differences between NumPy and torch, with the names of the array API standard where it has any.

`linalg` is written once for both: operators, slices and methods such as `sum` are the same, and the rest is a function
here that checks the type of its argument. Eigenvalues, ranks and coefficients are always NumPy arrays: they are few,
and the same code makes decisions from them on every device. This module is used instead of `array_api_compat` because
`linalg` also needs decompositions in float32, which NumPy's public functions compute in float64, and because NumPy 1.26
lacks the standard's functions.

torch is only imported to create a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""A NumPy array, or a torch tensor on any device."""
Real = Literal["float32", "float64"]

SMALL = 256
"""Matrices with sides up to this are always computed in float64, because they take little time."""

_FULL = 1e-6  # vectors are refined only if the smallest eigenvalue over the largest is above this
_ENOUGH = 1e-5  # a refinement step this small is the last: its square is the remaining error
_MOST_STEPS = 3
_refines: ContextVar[bool] = ContextVar("refines", default=False)


class DoubleMissingError(RuntimeError):
    """A device does not support float64."""


def real_of(x: Array) -> Real:
    return "float32" if x.dtype.itemsize == 4 else "float64"


def astype(x: Array, real: Real) -> Array:
    """Convert an array to a dtype; without a copy if it already has the dtype."""
    if isinstance(x, np.ndarray):
        return x.astype(real, copy=False)
    return x if real_of(x) == real else x.to(_array_dtype(x, real))


def wide(x: Array) -> Array:
    return astype(x, "float64")


def zeros(shape: tuple[int, ...], real: Real, like: Array) -> Array:
    """Return zeros as the same kind of array and on the same device as `like`."""
    return (
        np.zeros(shape, real) if isinstance(like, np.ndarray) else like.new_zeros(shape, dtype=_array_dtype(like, real))
    )


def empty(shape: tuple[int, ...], real: Real, like: Array) -> Array:
    return (
        np.empty(shape, real) if isinstance(like, np.ndarray) else like.new_empty(shape, dtype=_array_dtype(like, real))
    )


def asarray(numbers: NDArray[Any], like: Array) -> Array:
    """Convert a NumPy array to the kind of array, dtype and device of `like`."""
    if isinstance(like, np.ndarray):
        return numbers.astype(like.dtype, copy=False)
    return _import_torch().from_numpy(np.require(numbers, real_of(like), ["C", "W"])).to(like.device)


def to_host(x: Array) -> NDArray[Any]:
    """Convert to a NumPy array."""
    return x if isinstance(x, np.ndarray) else np.asarray(x.cpu().numpy())


def concat(arrays: Sequence[Array], axis: int = 0) -> Array:
    return (
        np.concatenate(arrays, axis) if isinstance(arrays[0], np.ndarray) else _import_torch().cat(list(arrays), axis)
    )


def flip(x: Array) -> Array:
    """Reverse the order of the columns."""
    return x[:, ::-1] if isinstance(x, np.ndarray) else x.flip(1)


def contiguous(x: Array) -> Array:
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()


def gram(x: Array) -> Array:
    """Return x x^T, which NumPy computes in half the time of another product, but torch on the CPU does not."""
    if isinstance(x, np.ndarray):
        return x @ x.T
    return x @ x.T if x.device.type != "cpu" else _import_torch().from_numpy(to_host(x) @ to_host(x).T)


def sign(x: Array) -> Array:
    return np.sign(x) if isinstance(x, np.ndarray) else x.sign()


def all_finite(x: Array) -> bool:
    return bool((np.isfinite(x) if isinstance(x, np.ndarray) else x.isfinite()).all())


def kth_largest(x: Array, k: int) -> float:
    """Return the k-th largest of all elements; k = 1 is the largest."""
    if isinstance(x, np.ndarray):
        return float(np.partition(x, x.size - k, axis=None)[x.size - k])
    flat = x.reshape(-1)
    return float(flat.kthvalue(flat.numel() - k + 1).values)


# --- decompositions --------------------------------------------------------------------------------------------------


@contextmanager
def refine_in_float32(is_on: bool) -> Iterator[None]:
    """Within the block, compute this thread's large float64 eigendecompositions in float32 and refine in float64."""
    token = _refines.set(is_on)
    try:
        yield
    finally:
        _refines.reset(token)


def eigh(symmetric: Array) -> tuple[NDArray[np.float64], Array]:
    """Return ascending eigenvalues as a float64 NumPy array, and eigenvectors as columns in the dtype of the matrix."""
    if _refines.get() and real_of(symmetric) == "float64" and len(symmetric) > SMALL:
        refinement = _refined_eigh(symmetric)
        if refinement is not None:
            return refinement
    values, vectors = _decompose(symmetric, _eigh, "eigh")
    return to_host(values).astype(np.float64, copy=False), vectors


def _refined_eigh(symmetric: Array) -> tuple[NDArray[np.float64], Array] | None:
    """Compute eigenvectors in float32 and refine them by float64 products (Ogita and Aishima 2018); None if that fails.

    A step squares the errors of the vectors, which at first are 1e-7 times the largest eigenvalue over the distance of
    two eigenvalues. One step is enough if all distances are large, and two are nearly always. Matrices with nearly null
    directions return None, because methods amplify these directions and derive ranks from their number.
    """
    vectors = wide(eigh(astype(symmetric, "float32"))[1])
    for _ in range(_MOST_STEPS):
        missing = -gram(vectors.T)  # the deviation from orthogonality
        missing.reshape(-1)[:: len(missing) + 1] += 1
        diagonalized_matrix = vectors.T @ (symmetric @ vectors)
        values = diagonalized_matrix.diagonal() / (1 - missing.diagonal())
        ascending = to_host(values)
        if not ascending.min() > _FULL * ascending.max():
            return None
        distances = values[None, :] - values[:, None]
        diagonalized_matrix += missing * values[None, :]  # 0 off the diagonal for exact vectors
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
    """Return an orthonormal basis of the columns of a matrix that has at least as many rows as columns."""
    return _decompose(x, np.linalg.qr, "qr")[0]


def inv(x: Array) -> Array:
    return _decompose(x, lambda each: (np.linalg.inv(each),), "inv_ex")[0]


def _decompose(x: Array, of_numpy: Callable[[NDArray[Any]], Sequence[Any]], of_torch: str) -> Sequence[Array]:
    """Decompose with torch on CUDA, otherwise with NumPy's LAPACK, also for MPS, which lacks most decompositions."""
    if isinstance(x, np.ndarray):
        return of_numpy(x)
    if x.device.type == "cuda":
        return tuple(getattr(_import_torch().linalg, of_torch)(x))
    return [asarray(np.asarray(each), x) for each in of_numpy(to_host(x))]


# np.linalg.eigh widens float32 to float64; this is the same LAPACK routine in float32, which takes 0.6 of the time
_eigh_of_float32: Any = getattr(getattr(np.linalg, "_umath_linalg", None), "eigh_lo", None)


def _eigh(symmetric: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if symmetric.dtype == np.float32 and _eigh_of_float32 is not None:
        values, vectors = _eigh_of_float32(symmetric, signature="f->ff")
        if np.isfinite(values).all():
            return values, vectors
    return np.linalg.eigh(symmetric)  # raises LinAlgError if it does not converge


def _array_dtype(like: Array, real: Real) -> Any:
    if real == "float64" and like.device.type == "mps":
        raise DoubleMissingError("MPS has no float64")
    return getattr(_import_torch(), real)


def _import_torch() -> Any:
    import torch

    return torch
