"""Intervals, paired differences and fronts, against what is known of the numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.calibration.agreement import mass_items, temper_of
from ramerge.scoring.scores import Measure, Objective, ScoreFailedError, join, of_items, read_scores
from ramerge.searches import evidence

MEAN = Objective()


def scores(**rights: np.ndarray) -> dict[str, Measure]:
    return {name: of_items(np.stack([right, np.ones(len(right))], axis=1)) for name, right in rights.items()}


def coin(seed: int, p: float, n: int = 200) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < p).astype(float)


def test_the_mean_of_figures_has_the_interval_of_independent_items() -> None:
    found = evidence.estimate(MEAN, scores(a=coin(1, 0.8, 400), b=coin(2, 0.4, 100)))
    a, b = coin(1, 0.8, 400).mean(), coin(2, 0.4, 100).mean()
    error = np.sqrt(a * (1 - a) / 400 + b * (1 - b) / 100) / 2
    assert found.value == pytest.approx((a + b) / 2)
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.006)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.006)


def test_the_worst_retention_is_the_smallest_score_over_its_specialists() -> None:
    worst = Objective("worst", specialists={"a": 0.8, "b": 0.3})
    ours, theirs = scores(a=coin(1, 0.4), b=coin(2, 0.4), c=coin(3, 0.1)), scores(a=coin(1, 0.6), b=coin(2, 0.3))
    found = evidence.estimate(worst, ours)
    assert found.value == pytest.approx(coin(1, 0.4).mean() / 0.8)
    assert found.low < found.value < found.high
    assert Objective("worst").value(ours) == pytest.approx(coin(3, 0.1).mean())
    apart = evidence.difference(worst, ours, theirs)
    assert apart.value == pytest.approx(found.value - worst.value(theirs))
    assert apart.low < apart.value < apart.high < 0
    with pytest.raises(ScoreFailedError, match="unknown objective 'b'"):
        worst.value(scores(a=coin(1, 0.4)))


def test_pairing_tells_apart_what_intervals_do_not() -> None:
    right = coin(3, 0.5)
    worse = right.copy()
    worse[np.flatnonzero(right)[:8]] = 0
    apart = evidence.difference(MEAN, scores(a=worse), scores(a=right))
    assert apart.value == pytest.approx(-0.04) and apart.high is not None and apart.high < 0
    first, second = evidence.estimate(MEAN, scores(a=worse)), evidence.estimate(MEAN, scores(a=right))
    assert first.high > second.low


def test_a_point_is_hopeless_only_on_evidence() -> None:
    best = scores(a=coin(4, 0.9, 400))
    few = {"a": of_items([(0.0, 1.0)] * 19)}
    many = {"a": of_items([(0.0, 1.0)] * 20)}
    assert not evidence.is_hopeless(MEAN, few, best)
    assert evidence.is_hopeless(MEAN, many, best)
    assert not evidence.is_hopeless(MEAN, {"a": best["a"].cut(100)}, best)
    assert not evidence.is_hopeless(MEAN, many, {"a": best["a"].cut(20)})  # there is nothing left to ask
    assert not evidence.is_hopeless(Objective("a", lower=True), many, best)


def test_hopeless_points_are_rarely_given_up_wrongly() -> None:
    given_up = sum(
        evidence.is_hopeless(MEAN, scores(a=coin(2 * seed, 0.8, 40)), scores(a=coin(2 * seed + 1, 0.8, 60)))
        for seed in range(40)
    )
    assert given_up <= 1


def test_optimism_is_what_the_choice_flatters() -> None:
    found = evidence.optimism(MEAN, scores(a=coin(5, 0.9)), scores(a=coin(6, 0.6)))
    assert found.value > 0.2 and found.low > 0
    assert evidence.optimism(Objective("a", lower=True), scores(a=coin(5, 0.1)), scores(a=coin(6, 0.4))).low > 0
    assert evidence.optimism(MEAN, {"a": Measure(0.9)}, {"a": Measure(0.8)}).low is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int]]) -> None:
    beaten = [
        any(all(o >= p for o, p in zip(other, point, strict=True)) and other != point for other in points)
        for point in points
    ]
    found = evidence.front(points)
    assert found == [place for place, is_beaten in enumerate(beaten) if not is_beaten]
    front = [points[place] for place in found]
    assert 0 <= evidence.compromise(front) < len(front)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "the score function returned None; return a number, {name: number} or {name: [numbers of items]}"),
        ({}, "the score function returned {}"),
        ("0.5", "the score function returned '0.5'"),
        ({"a": float("nan")}, "a: must be a number of at most 1e+100, not nan"),
        ({"a": [1.0, float("inf")]}, "a, item 2: must be a number of at most 1e+100, not inf"),
        ({"a": 10**400}, "a: must be a number of at most 1e+100, not 1000"),
        ({"a": [0, -(10**400)]}, "a, item 2: must be a number"),
        ({"a": [1e308, 1e308]}, "a, item 1: must be a number"),
        ({"a": []}, "a: has no items"),
        ({"a": "good"}, "must be a number or a list"),
        ({"a": [1, "x"]}, "a, item 2: must be a number"),
        ({"a": None}, "must be a number or a list"),
    ],
)
def test_what_is_no_score_is_refused(returned: object, said: str) -> None:
    with pytest.raises(ScoreFailedError) as error:
        read_scores(returned)
    assert said in str(error.value)


def test_parts_are_joined_item_by_item() -> None:
    whole = join([read_scores({"a": [1, 0], "b": [1]}), read_scores({"a": [1], "b": [0, 0]})])
    assert whole["a"].value == pytest.approx(2 / 3) and whole["b"].value == pytest.approx(1 / 3)
    assert whole["a"].half("validation").value == 1 and whole["a"].half("test").value == 0
    with pytest.raises(ScoreFailedError, match="before it was a, b"):
        join([read_scores({"a": [1], "b": [1]}), read_scores({"a": [1]})])
    with pytest.raises(ScoreFailedError, match="came twice"):
        join([read_scores({"a": 1.0}), read_scores({"a": 1.0})])
    with pytest.raises(ScoreFailedError, match="1 item"):
        read_scores({"a": [1]})["a"].half("test")


def test_mass_counts_each_reply_at_most_once() -> None:
    """As the formula says: exp(-NLL / s), wrong replies 0, s twice the least mean NLL of a reply, at least 1."""
    good = {"a": np.array([[1.0, 5.0], [3.0, 4.0], [0.0, 0.0]]), "b": np.array([[2.0, 2.0]])}
    poor = {"a": np.array([[90.0, 5.0], [0.0, 4.0], [0.0, 0.0]]), "b": np.array([[3.0, 2.0]])}
    assert temper_of([good, poor]) == 4.0 and temper_of([poor]) == 62.0
    assert temper_of([{"a": np.array([[0.2, 3.0]])}]) == temper_of([]) == 1.0
    assert mass_items(good["a"], 4.0).tolist() == [[np.exp(-1 / 4), 1], [np.exp(-3 / 4), 1], [0, 1]]
    # a reply that a merge would never give costs no more than itself
    assert of_items(mass_items(poor["a"], 1.0)).value == pytest.approx(1 / 3)
