"""Stochastic rounding against a reference with exact fractions, and what it promises: mean, signs, ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramerge.core.kernels.stochastic import draw_bits, round_stochastically
from tests.checkpoints import bit_patterns
from tests.reference import BITS, NUMBERS, rounding_coins, toss
from tests.tiers import at_most

PAIRS = [("F32", "BF16"), ("F32", "F16"), ("F64", "BF16"), ("F64", "F16"), ("F64", "F32")]


def tossed(
    values: np.ndarray, target: str, *, seed: int = 0, start: int = 0, base: np.ndarray | None = None
) -> np.ndarray:
    """Bits of the rounded values."""
    source = {4: "F32", 8: "F64"}[values.itemsize]
    out = np.zeros(values.size, BITS[target])
    own = (source, base.view(BITS[source])) if base is not None else None
    words = values.view(BITS[source])
    round_stochastically(source, words, target, out, values.size, seed=seed, tensor="w", start=start, base=own)
    return out


@pytest.mark.parametrize(("source", "target"), PAIRS)
@settings(max_examples=at_most(30))
@given(data=st.data())
def test_every_coin_falls_as_in_the_reference(source: str, target: str, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 5, 64, 301]))
    start = 2 * data.draw(st.sampled_from([0, 1, 3, 10**6, 2**33 + 1]))
    seed = data.draw(st.integers(-5, 5))
    values = data.draw(bit_patterns(source, size)).view(NUMBERS[source])
    # also what is subnormal in the target, and numbers close next to those of the target
    scales = np.random.default_rng(size).choice([1.0, 2.0**-20, 2.0**-120], size)
    values = (values * scales).astype(NUMBERS[source])
    base = np.where(np.arange(size) % 3 == 0, values, NUMBERS[source](1)) if data.draw(st.booleans()) else None
    bits = draw_bits(source, target)
    words = rounding_coins(seed, "w", size, bits, start)
    wide = None if base is None else base.astype(np.float64)
    wanted = toss(values.astype(np.float64), wide, words, bits, target)
    assert np.array_equal(tossed(values, target, seed=seed, start=start, base=base), wanted.bits)


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("share", [0.5, 0.125, 2.0**-10, 0.9])
@pytest.mark.parametrize("scale", [0.02, 2.0**-22, -3.0])
def test_the_mean_is_the_number(source: str, target: str, share: float, scale: float) -> None:
    """A number between two neighbors becomes the upper one as often as it lies near it: six standard deviations."""
    size = 1 << 16
    lower = np.array([abs(scale)]).astype(NUMBERS[target])
    upper = (lower.view(BITS[target]) + BITS[target](1)).view(NUMBERS[target])
    low, high = float(lower[0]), float(upper[0])
    value = NUMBERS[source](low + share * (high - low))
    exact = (float(value) - low) / (high - low)
    found = tossed(np.full(size, value * np.sign(scale), NUMBERS[source]), target).view(NUMBERS[target])
    ups = np.abs(found.astype(np.float64)) == high
    assert set(np.abs(found.astype(np.float64))) <= {low, high}
    assert abs(ups.mean() - exact) <= 6 * np.sqrt(exact * (1 - exact) / size) + 1e-12


@settings(max_examples=at_most(30))
@given(seed=st.integers(0, 10**6))
def test_sums_are_kept(seed: int) -> None:
    """Updates of a tenth of a step, which rounding to nearest erases."""
    b = np.full(1 << 14, 1.0, np.float32)
    found = tossed(b + np.float32(2.0**-7 / 10), "BF16", seed=seed, base=b).view(NUMBERS["BF16"]).astype(np.float64)
    # the standard deviation of the mean is 0.3 * 2^-7 / 128
    assert abs(found.mean() - 1 - 2.0**-7 / 10) <= 7 * 0.3 * 2.0**-7 / 128


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_signs_do_not_matter(source: str, target: str) -> None:
    values = np.random.default_rng(0).normal(0, 1e-6, 4096).astype(NUMBERS[source])
    top = BITS[target](1 << (8 * np.dtype(BITS[target]).itemsize - 1))
    assert np.array_equal(tossed(-values, target), tossed(values, target) ^ top)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_only_what_overflows_to_nearest_overflows(source: str, target: str) -> None:
    kind = NUMBERS[source]
    bits = {"BF16": 0x7F7F, "F16": 0x7BFF, "F32": 0x7F7FFFFF}[target]
    largest = float(np.array([bits], BITS[target]).view(NUMBERS[target])[0])
    before = float(np.array([bits - 1], BITS[target]).view(NUMBERS[target])[0])
    below_half, half = largest + 0.49 * (largest - before), largest + 0.5 * (largest - before)
    for value, infinite in ((largest, False), (below_half, False), (half, True), (np.inf, True)):
        for sign in (1, -1):
            words = np.full(1000, sign * value, kind).view(BITS[source])
            out = np.zeros(1000, BITS[target])
            flagged = round_stochastically(source, words, target, out, 1000, seed=0, tensor="w", start=0, base=None)
            assert flagged == infinite
            assert (np.isinf(out.view(NUMBERS[target]).astype(np.float64)) == infinite).all()
    nan = tossed(np.full(8, np.nan, kind), target)
    assert np.isnan(nan.view(NUMBERS[target]).astype(np.float64)).all()


def test_numbers_of_the_target_stay() -> None:
    every = np.arange(65536, dtype=np.uint16)
    for target in ("BF16", "F16"):
        with np.errstate(invalid="ignore"):
            wide = every.view(NUMBERS[target]).astype(np.float32)
        ordinary = ~np.isnan(wide)
        assert np.array_equal(tossed(wide, target)[ordinary], every[ordinary])


def test_blocks_change_nothing() -> None:
    values = np.random.default_rng(0).normal(0, 1, 200_000).astype(np.float32)
    for target in ("BF16", "F16"):
        whole = tossed(values, target)
        for cut in (2, 4, 70_002, 131_072):
            parts = [tossed(values[:cut], target), tossed(values[cut:], target, start=cut)]
            assert np.array_equal(np.concatenate(parts), whole)
