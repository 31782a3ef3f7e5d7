"""What differs between two arrays of words, against NumPy, bit for bit."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramerge.deltas import word_patches
from tests.reference import gaps_of, values_of
from tests.tiers import at_most


def drawn(seed: int, size: int, width: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Words, and others of which about that share differ."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, size * width, np.uint8).view(f"u{width}")
    other = rng.integers(0, 256, size * width, np.uint8).view(f"u{width}")
    return base, np.where(rng.random(size) < density, other, base)


def sparse(seed: int, size: int, width: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """As `drawn`, with differences of all sizes, small ones first of all."""
    base, other = drawn(seed, size, width, density)
    shifts = np.random.default_rng(seed).integers(0, 8 * width, size, np.uint8).astype(base.dtype)
    return base, base ^ ((base ^ other) >> shifts)


def patched(
    form: word_patches.Positions,
    base: np.ndarray,
    positions: np.ndarray,
    values: np.ndarray,
    moved: int,
    planes: int,
    out: np.ndarray,
) -> bool:
    """Patch one block, whose positions and values lie one after another; whether they fit."""
    positions = positions.view(np.uint8)
    data = np.concatenate([positions, values])
    span = np.array([[0, positions.size, data.size, moved]], np.uint64)
    return word_patches.patch(form, base, span, base.size or 1, data, planes, out) == 1


@pytest.mark.full
@given(
    st.integers(0, 1000),
    st.sampled_from([0, 1, 63, 64, 65, 700, 5000]),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 3), (8, 1)]),
    st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0]),
)
@settings(max_examples=at_most(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_positions_and_values_are_those_of_numpy(seed: int, size: int, form: tuple[int, int], density: float) -> None:
    width, planes = form
    base, other = sparse(seed, size, width, density)
    moved = np.flatnonzero(base != other)
    bitmap, xors = np.full(word_patches.bitmap_words(size), 7, np.uint64), np.empty(size, base.dtype)
    assert word_patches.compare(base, other, bitmap, xors) == len(moved)
    xors = xors[: len(moved)].copy()
    assert np.array_equal(xors, base[moved] ^ other[moved])
    assert np.array_equal(np.flatnonzero(np.unpackbits(bitmap.view(np.uint8), bitorder="little")), moved)
    gaps = np.empty(word_patches.most_gaps(size, len(moved)), np.uint8)
    gaps = gaps[: word_patches.to_gaps(bitmap, gaps)].copy()
    assert gaps.tolist() == gaps_of(moved)
    escaped = word_patches.count_overflowing(xors, planes)
    values = np.empty(word_patches.values_size(xors.size, escaped, planes, width), np.uint8)
    word_patches.split(xors, planes, values)
    assert values.tolist() == values_of(xors, planes)
    forms: dict[word_patches.Positions, np.ndarray] = {"bitmaps": bitmap, "gaps": gaps}
    for name, positions in forms.items():
        out = np.empty_like(base)
        assert patched(name, base, positions, values, xors.size, planes, out)
        assert np.array_equal(out, other)
        in_place = base.copy()
        assert patched(name, in_place, positions, values, xors.size, planes, in_place)
        assert np.array_equal(in_place, other)
        if escaped:
            assert not patched(name, base, positions, values[:-1], xors.size, planes, out)
        if xors.size:
            assert not patched(name, base, positions, values, xors.size - 1, planes, out)
        assert not patched(name, base, positions, np.append(values, np.uint8(0)), xors.size, planes, out)


@pytest.mark.parametrize(
    ("positions", "count"),
    [([], 1), ([0], 0), ([3], 2), ([100], 1), ([99, 0], 2), ([255], 0), ([5, 255], 1), ([255, 0], 1), ([0] * 101, 101)],
)
def test_gaps_that_do_not_fit_are_refused(positions: list[int], count: int) -> None:
    words = np.zeros(100, np.uint16)
    assert not patched("gaps", words, np.array(positions, np.uint8), np.ones(2 * count, np.uint8), count, 2, words)


@pytest.mark.parametrize("bits", [[], [0], [3], [100], [0, 127], [63, 64, 5], [*range(65)]])
def test_bitmaps_that_do_not_fit_are_refused(bits: list[int]) -> None:
    flags = np.zeros(128, np.uint8)
    flags[bits] = 1
    bitmap = np.packbits(flags, bitorder="little").view(np.uint64)
    words = np.zeros(100, np.uint16)
    count = {1: 1 if bits == [100] else 0 if bits == [0] else 2, 0: 1, 65: 64}.get(len(bits), 2)
    assert not patched("bitmaps", words, bitmap, np.ones(count, np.uint8), count, 1, words)


def test_patches_write_nowhere_else() -> None:
    memory = np.full(300, 9, np.uint8)
    words = memory[100:200]
    for positions in ([255, 255], [99, 1], [250]):
        patched("gaps", words, np.array(positions, np.uint8), np.ones(2, np.uint8), 2, 1, words)
    patched("bitmaps", words, np.full(2, 2**64 - 1, np.uint64), np.ones(128, np.uint8), 128, 1, words)
    assert (memory[:100] == 9).all()
    assert (memory[200:] == 9).all()
