"""The functions that NumPy and torch do not share."""

from __future__ import annotations

import numpy as np
import pytest

from ramerge.core.linalg import arrays


def test_float32_is_decomposed_in_float32():
    """By a routine that is no public name of NumPy; without it, the results are the same and take longer."""
    square = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    symmetric = square @ square.T
    values, vectors = arrays.eigh(symmetric)
    assert vectors.dtype == np.float32 and values.dtype == np.float64
    assert not np.array_equal(vectors, np.linalg.eigh(symmetric)[1])  # which is rounded from float64
    assert np.abs(vectors @ np.diag(values) @ vectors.T - symmetric).max() < 1e-3


def test_what_is_not_finite_raises_as_before():
    with pytest.raises(np.linalg.LinAlgError):
        arrays.eigh(np.full((3, 3), np.nan, np.float32))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("real", ["float32", "float64"])
def test_every_function_is_the_same_for_torch(real):
    import torch

    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 6)).astype(real)
    t = torch.from_numpy(x.copy())
    symmetric = x.T @ x
    pairs = [
        *[(function(x), function(t)) for function in (arrays.wide, arrays.flip, arrays.sign, arrays.contiguous)],
        (arrays.concat([x, x], 1), arrays.concat([t, t], 1)),
        (arrays.zeros((2, 3), "float32", x), arrays.zeros((2, 3), "float32", t)),
        (arrays.qr(x), arrays.qr(t)),
        (arrays.inv(symmetric), arrays.inv(arrays.asarray(symmetric, t))),
        *zip(arrays.eigh(symmetric), arrays.eigh(arrays.asarray(symmetric, t)), strict=True),
        (x, arrays.asarray(x.astype(np.float64), t)),
    ]
    for ours, theirs in pairs:
        found = arrays.to_host(theirs)
        assert found.dtype == ours.dtype
        np.testing.assert_allclose(found, ours, rtol=1e-6 if real == "float32" else 1e-12)
    assert [arrays.kth_largest(x, k) for k in (1, 5, 54)] == [arrays.kth_largest(t, k) for k in (1, 5, 54)]
    assert arrays.real_of(t) == real and arrays.empty((2,), "float64", t).dtype == torch.float64
    assert arrays.all_finite(t) and not arrays.all_finite(t / 0)
