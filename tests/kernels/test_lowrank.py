"""The kernels of LoRA and DoRA: values, and that no bound of a part changes a bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ramerge.core.kernels.lowrank import TILE, add_product, add_squares, scale_columns, scale_rows

Reals = NDArray[np.float32]


def in_order(base: Reals, left: Reals, right: Reals, scaling: float) -> Reals:
    """base + scaling * left @ right, each step in float64 and rounded to float32: as a fused operation rounds.

    Rounded twice, but no case here lies so near the middle between two numbers.
    """
    total = np.zeros(base.shape, np.float32)
    for k in range(left.shape[1]):
        exact = np.multiply.outer(left[:, k].astype(np.float64), right[k].astype(np.float64))
        total = (total.astype(np.float64) + exact).astype(np.float32)
    return base + np.float32(scaling) * total


def part(base: Reals, left: Reals, right: Reals, start: int, stop: int, columns: slice = slice(None)) -> Reals:
    """Elements `start:stop`, computed with no more rows of `left` than needed, and only some columns of `right`."""
    width = base.shape[1]
    values = base.reshape(-1)[start:stop].copy()
    top, bottom = start // width, -(-stop // width)
    begin, end, _ = columns.indices(width)
    add_product(
        values,
        start,
        width,
        left[top:bottom].reshape(-1).copy(),
        right[:, begin:end].reshape(-1).copy(),
        (top, bottom - top),
        (begin, end - begin),
        left.shape[1],
        0.7,
        np.empty(4 * TILE, np.float32),
    )
    return values


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "width", "rank"), [(37, 29, 7), (9, TILE + 3, 64), (5, 1, 3), (1, 2 * TILE, 5), (4, 16, 4), (3, 7, 1)]
)
def test_products_are_summed_in_order(rows: int, width: int, rank: int) -> None:
    rng = np.random.default_rng(rank)
    base, left, right = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((rows, width), (rows, rank), (rank, width))
    )
    whole = part(base, left, right, 0, base.size)
    assert whole.tobytes() == in_order(base, left, right, 0.7).tobytes()
    for _ in range(40):
        start, stop = np.sort(rng.integers(0, base.size + 1, 2)).tolist()
        if start < stop:
            assert part(base, left, right, start, stop).tobytes() == whole[start:stop].tobytes()
    middle = width // 2
    some = part(base, left, right, 0, base.size, slice(middle, width)).reshape(rows, width)
    assert some[:, middle:].tobytes() == whole.reshape(rows, width)[:, middle:].tobytes()
    assert some[:, :middle].tobytes() == base[:, :middle].tobytes()


@pytest.mark.parametrize("width", [1, 7, 8, 100])
def test_rows_and_columns_get_their_magnitudes(width: int) -> None:
    rng = np.random.default_rng(width)
    values = rng.standard_normal((11, width)).astype(np.float32)
    rows, columns = (rng.standard_normal(size).astype(np.float32) for size in (11, width))
    scaled = values.reshape(-1).copy()
    scale_rows(scaled, width, rows)
    factors = rows / np.sqrt(np.square(values.astype(np.float64)).sum(1)).astype(np.float32)
    np.testing.assert_allclose(scaled.reshape(11, width), factors[:, None] * values, rtol=3e-7)
    sums = np.zeros(width)
    add_squares(values[:4].reshape(-1).copy(), sums)
    add_squares(values[4:].reshape(-1).copy(), sums)
    again = np.zeros(width)
    add_squares(values.reshape(-1), again)
    assert sums.tobytes() == again.tobytes()
    np.testing.assert_allclose(sums, np.square(values.astype(np.float64)).sum(0), rtol=1e-14)
    cut = values.reshape(-1)[5:].copy()
    scale_columns(cut, 5, columns)
    assert cut.tobytes() == (columns * values).reshape(-1)[5:].tobytes()
