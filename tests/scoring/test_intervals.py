"""Intervals and paired tests, against plain resampling, exact results and what must hold."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramerge.scoring import intervals

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

RATIOS = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.sampled_from([0.0, 1.0, 2.0, 4.0]))


Pair = tuple[float, float]


def accuracy(right: int, wrong: int) -> list[Pair]:
    return [(1.0, 1.0)] * right + [(0.0, 1.0)] * wrong


def drawn_one_by_one(samples: np.ndarray, resamples: int) -> np.ndarray:
    """The bootstrap as it is defined."""
    generator = np.random.default_rng(7)
    rows = generator.integers(0, len(samples), size=(resamples, len(samples)))
    sums = samples[rows].sum(axis=1)
    return sums[:, 0] / sums[:, 1]


def test_ratio_of_sums() -> None:
    assert intervals.ratio([(2, 3), (0, 1)]) == 0.5
    assert intervals.ratio([(0, 0), (0, 0)]) is None
    assert intervals.ratio([]) is None


def test_interval_is_that_of_drawing_samples_one_by_one() -> None:
    generator = np.random.default_rng(3)
    samples = np.stack([generator.integers(0, 4, 90), np.full(90, 3)], axis=1).astype(float)
    expected = np.quantile(drawn_one_by_one(samples, 20_000), [0.025, 0.975])
    assert intervals.interval(samples) == pytest.approx(expected, abs=0.006)


def test_interval_of_an_accuracy_has_the_binomial_width() -> None:
    low, high = intervals.interval(accuracy(300, 700)) or (0, 0)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 1000)
    assert (low, high) == pytest.approx((0.3 - half, 0.3 + half), abs=0.002)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(11)
    covered = 0
    for seed in range(400):
        right = int(generator.binomial(100, 0.4))
        low, high = intervals.interval(accuracy(right, 100 - right), seed=seed, resamples=1000) or (0, 0)
        covered += low <= 0.4 <= high
    assert 0.91 <= covered / 400 <= 0.98


@pytest.mark.parametrize("samples", [[], [(1, 1)], [(0, 0), (0, 0)]])
def test_no_interval_where_there_is_nothing_to_draw_from(samples: list[tuple[float, float]]) -> None:
    assert intervals.interval(samples) is None


def test_equal_samples_have_an_interval_without_width() -> None:
    assert intervals.interval(accuracy(0, 50)) == (0.0, 0.0)
    assert intervals.interval(accuracy(50, 0)) == (1.0, 1.0)


def test_draws_without_a_denominator_are_left_out() -> None:
    """Of three samples one counts: a draw without it, 8 of 27, has no value."""
    samples = np.array([[[1.0, 1.0]], [[0.0, 0.0]], [[0.0, 0.0]]])
    drawn = intervals.replicates(samples)[:, 0]
    assert np.isnan(drawn).mean() == pytest.approx(8 / 27, abs=0.02)
    assert set(drawn[~np.isnan(drawn)]) == {1.0}
    assert intervals.interval(samples) == (1.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(RATIOS, min_size=2, max_size=30), st.randoms(use_true_random=False))
def test_interval_does_not_depend_on_the_order(samples: list[tuple[float, float]], random: Random) -> None:
    shuffled = sorted(samples, key=lambda _: random.random())
    first = intervals.interval(samples, resamples=200)
    assert first == intervals.interval(samples, resamples=200) == intervals.interval(shuffled, resamples=200)
    if first is not None:
        assert first[0] <= first[1]


def test_seeds_and_chunks() -> None:
    """Many distinct samples are drawn in several chunks."""
    samples = np.random.default_rng(0).random((1000, 1, 2))
    drawn = intervals.replicates(samples, resamples=1000)
    assert drawn.shape == (1000, 1)
    assert len(np.unique(drawn)) == 1000
    assert np.array_equal(drawn, intervals.replicates(samples, resamples=1000))
    assert not np.array_equal(drawn, intervals.replicates(samples, resamples=1000, seed=(0, 1)))


def test_metrics_of_one_sample_share_their_draws() -> None:
    right = np.array(accuracy(30, 70))
    wrong = np.array([(1 - numerator, 1.0) for numerator, _ in right])
    drawn = intervals.replicates(np.stack([right, wrong], axis=1))
    assert drawn.sum(axis=1) == pytest.approx(1.0)


def paired(first: list[Pair], second: list[Pair], *, seed: int = 0, resamples: int = 10_000) -> intervals.Difference:
    """The paired bootstrap test between two models on the same items, in the same order."""
    both = np.stack([np.array(first), np.array(second)], axis=1)
    left, right = (each[:, 0].sum() / each[:, 1].sum() for each in (both[:, 0], both[:, 1]))
    drawn = intervals.replicates(both, seed=seed, resamples=resamples)
    return intervals.difference(left - right, drawn[:, 0] - drawn[:, 1])


def test_paired_test_of_a_model_with_itself() -> None:
    found = paired(accuracy(30, 70), accuracy(30, 70))
    assert found == intervals.Difference(0.0, 0.0, 0.0, 1.0)


def test_paired_test_sees_what_unpaired_intervals_do_not() -> None:
    """The second model fails ten items more of 200, and does all others alike."""
    first, second = accuracy(110, 90), accuracy(100, 100)
    found = paired(first, second)
    one, other = intervals.interval(first), intervals.interval(second)
    assert one is not None and other is not None
    assert found.value == pytest.approx(0.05)
    assert 0 < found.low < found.value < found.high
    assert found.p < 0.01
    assert one[0] < other[1]


def test_p_is_the_smallest_possible_where_no_draw_disagrees() -> None:
    found = paired(accuracy(50, 0), accuracy(0, 50))
    assert found == intervals.Difference(1.0, 1.0, 1.0, 2 / 10_001)


def test_p_is_symmetric_and_agrees_with_the_interval() -> None:
    generator = np.random.default_rng(5)
    for _ in range(20):
        first, second = ([(float(right), 1.0) for right in generator.random(60) < share] for share in (0.6, 0.45))
        one, other = paired(first, second), paired(second, first)
        assert one.p == pytest.approx(other.p, abs=0.05)
        if abs(one.p - 0.05) > 0.005:
            assert (one.p < 0.05) == (one.low > 0 or one.high < 0)


def test_false_alarms_are_as_rare_as_p_says() -> None:
    generator = np.random.default_rng(13)
    alarms = 0
    for seed in range(300):
        first, second = ([(float(right), 1.0) for right in generator.random(80) < 0.5] for _ in range(2))
        found = paired(first, second, seed=seed, resamples=1000)
        alarms += found.p < 0.05
    assert alarms / 300 <= 0.09


def test_sums_that_differ_by_rounding_are_ties() -> None:
    """(0.1 + 0.2) - 0.3 is no difference."""
    assert intervals.p_value(np.full(99, 0.1 + 0.2 - 0.3)) == 1.0
