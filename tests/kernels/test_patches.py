"""What differs between two arrays of words, against NumPy, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.kernels import patches
from tests.reference import gaps_of


def drawn(seed: int, size: int, width: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Words, and others of which about that share differ."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, size * width, np.uint8).view(f"u{width}")
    other = rng.integers(0, 256, size * width, np.uint8).view(f"u{width}")
    return base, np.where(rng.random(size) < density, other, base)


@given(
    st.integers(0, 1000),
    st.sampled_from([0, 1, 63, 64, 65, 700, 5000]),
    st.sampled_from(patches.WIDTHS),
    st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0]),
)
def test_positions_and_values_are_those_of_numpy(seed: int, size: int, width: int, density: float) -> None:
    base, other = drawn(seed, size, width, density)
    moved = np.flatnonzero(base != other)
    bitmap, values = np.full(patches.bitmap_words(size), 7, np.uint64), np.empty(size, base.dtype)
    assert patches.compare(base, other, bitmap, values) == len(moved)
    values = values[: len(moved)].copy()
    assert np.array_equal(values, base[moved] ^ other[moved])
    assert np.array_equal(np.flatnonzero(np.unpackbits(bitmap.view(np.uint8), bitorder="little")), moved)
    gaps = np.empty(patches.most_gaps(size, len(moved)), np.uint8)
    gaps = gaps[: patches.to_gaps(bitmap, gaps)].copy()
    assert gaps.tolist() == gaps_of(moved)
    for patch, positions in ((patches.patch_bitmap, bitmap), (patches.patch_gaps, gaps)):
        words = base.copy()
        assert patch(words, positions, values)
        assert np.array_equal(words, other)
    planes, back = np.empty(values.nbytes, np.uint8), np.empty_like(values)
    patches.split_planes(values, planes)
    assert np.array_equal(planes, values.view(np.uint8).reshape(-1, width).T.reshape(-1))
    patches.join_planes(planes, back)
    assert np.array_equal(back, values)


@pytest.mark.parametrize(
    ("positions", "count"),
    [([], 1), ([0], 0), ([3], 2), ([100], 1), ([99, 0], 2), ([255], 0), ([5, 255], 1), ([255, 0], 1), ([0] * 101, 101)],
)
def test_gaps_that_do_not_fit_are_refused(positions: list[int], count: int) -> None:
    words = np.zeros(100, np.uint16)
    assert not patches.patch_gaps(words, np.array(positions, np.uint8), np.ones(count, np.uint16))


@pytest.mark.parametrize(("bits", "count"), [([], 1), ([0], 0), ([3], 2), ([100], 1), ([0, 127], 2), ([63, 64, 5], 2)])
def test_bitmaps_that_do_not_fit_are_refused(bits: list[int], count: int) -> None:
    flags = np.zeros(128, np.uint8)
    flags[bits] = 1
    bitmap = np.packbits(flags, bitorder="little").view(np.uint64)
    assert not patches.patch_bitmap(np.zeros(100, np.uint32), bitmap, np.ones(count, np.uint32))


def test_patches_write_nowhere_else() -> None:
    memory = np.full(300, 9, np.uint8)
    words = memory[100:200]
    for positions in ([255, 255], [99, 1], [250]):
        patches.patch_gaps(words, np.array(positions, np.uint8), np.ones(2, np.uint8))
    patches.patch_bitmap(words, np.full(2, 2**64 - 1, np.uint64), np.ones(128, np.uint8))
    assert (memory[:100] == 9).all()
    assert (memory[200:] == 9).all()
