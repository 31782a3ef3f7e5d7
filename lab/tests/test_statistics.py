"""Intervals, corrections and ranks, against what is known of them."""

import math

import numpy as np
import pytest

from lab import statistics

pytestmark = pytest.mark.full  # torch


def scores(p: list[float], seeds: int = 8, between: float = 0.0) -> np.ndarray:
    """Two tasks of 300 prompts for models that are right with given chances, which vary between seeds; of shape
    (tasks, seeds, prompts, models)."""
    generator = np.random.default_rng(1)
    rows = []
    for _ in range(seeds):
        shift = between * generator.standard_normal()
        rows.append([generator.random((300, len(p))) < np.clip(np.array(p) + shift, 0, 1) for _ in range(2)])
    return np.array(rows).swapaxes(0, 1)


def test_replicates_have_the_spread_of_seeds_and_prompts() -> None:
    p, seeds = 0.7, 24
    prompts_only = statistics.replicates(scores([p], seeds))[:, 0].std()
    # drawing seeds as well counts the noise of prompts twice
    assert prompts_only == pytest.approx(100 * math.sqrt(2 * p * (1 - p) / 600 / seeds), rel=0.25)
    both = statistics.replicates(scores([p], seeds, between=0.1))[:, 0].std()
    assert both == pytest.approx(100 * math.sqrt((0.01 + 2 * p * (1 - p) / 600) / seeds), rel=0.25)


def test_tasks_of_few_prompts_count_as_much_as_others() -> None:
    often, rare = np.zeros((4, 200, 1)), np.ones((4, 20, 1))
    assert statistics.replicates([often, rare]) == pytest.approx(50)


def test_differences_are_paired() -> None:
    one = scores([0.6], between=0.15)
    draws = statistics.replicates(np.concatenate([one, one], axis=3))
    assert (draws[:, 0] == draws[:, 1]).all() and draws[:, 0].std() > 1


def test_replicates_are_the_same_every_time() -> None:
    assert (statistics.replicates(scores([0.5, 0.9])) == statistics.replicates(scores([0.5, 0.9]))).all()


def test_estimates_name_differences_and_nothing_else() -> None:
    draws = statistics.replicates(scores([0.9, 0.8]))
    estimate = statistics.estimate(10.0, draws[:, 0] - draws[:, 1])
    assert estimate.low > 5 and estimate.high < 15 and estimate.p < 0.01
    assert statistics.over_seeds([1.0, -1.0, 0.5, -0.5]).p > 0.5


def test_holm_is_between_no_correction_and_bonferroni() -> None:
    p = {"a": 0.01, "b": 0.04, "c": 0.03}
    assert statistics.holm(p) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_ties_share_a_rank() -> None:
    ranks = statistics.mean_ranks(np.array([[0.9, 0.8, 0.8], [0.7, 0.9, 0.1]]))
    assert ranks.tolist() == [1.5, 1.75, 2.75]


@pytest.mark.parametrize(("models", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_the_literature(models: int, q: float) -> None:
    value = q * math.sqrt(models * (models + 1) / (6 * 12))  # table 5 of Demsar (2006)
    assert statistics.nemenyi(models, 12) == pytest.approx(value, rel=1e-3)
