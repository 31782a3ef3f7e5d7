"""How sure a mean over seeds is: a bootstrap over seeds and prompts, Holm's correction, and ranks.

Seeds are drawn with replacement, and for each drawn seed its prompts with replacement, task by task; every draw is
shared by all models, so that differences are paired. With ten seeds such intervals are a little too narrow.

Sources: Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8 (hierarchical data); Holm, A
Simple Sequentially Rejective Multiple Test Procedure, 1979; Demsar, Statistical Comparisons of Classifiers over
Multiple Data Sets, JMLR 2006 (mean ranks and Nemenyi's critical difference).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ramerge.scoring import intervals

Floats = NDArray[np.float64]
RESAMPLES = 2000
_STRIDE = 997  # coprime to the number of resamples, so that a seed drawn twice has other prompts the second time


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, in per cent, with its 95 % interval and a two-sided p-value against 0."""

    value: float
    low: float
    high: float
    p: float


def replicates(right: Sequence[NDArray[np.bool_] | Floats]) -> Floats:
    """Bootstrap replicates of the mean over seeds, tasks and prompts; every task counts the same.

    Args:
        right: of each task, right answers, or rewards from 0 to 1, of shape (seeds, prompts, models). Tasks may have
            different numbers of prompts.

    Returns:
        Of shape (resamples, models), in per cent.
    """
    seeds, _, models = right[0].shape
    within = np.zeros((seeds, RESAMPLES, models))
    for seed, by_task in enumerate(_often(seeds, tuple(task.shape[1] for task in right))):
        for often, task in zip(by_task, right, strict=True):
            within[seed] += often.astype(np.float32) @ task[seed].astype(np.float32) / task.shape[1] / len(right)
    choices = np.random.default_rng(1).integers(0, seeds, (RESAMPLES, seeds))
    places = (np.arange(RESAMPLES)[:, None] + _STRIDE * np.arange(seeds)) % RESAMPLES
    draws: Floats = 100 * within[choices, places].mean(1)
    return draws


@lru_cache(maxsize=8)
def _often(seeds: int, prompts: tuple[int, ...]) -> list[list[NDArray[np.uint8]]]:
    """How often each prompt is drawn: of each seed and task, of shape (resamples, prompts)."""
    generator = np.random.default_rng(0)
    return [[_counts(generator, count) for count in prompts] for _ in range(seeds)]


def _counts(generator: np.random.Generator, prompts: int) -> NDArray[np.uint8]:
    """How often each of some prompts is drawn, of shape (resamples, prompts)."""
    draws = generator.integers(0, prompts, (RESAMPLES, prompts)) + prompts * np.arange(RESAMPLES)[:, None]
    return np.bincount(draws.ravel(), minlength=RESAMPLES * prompts).reshape(RESAMPLES, prompts).astype(np.uint8)


def estimate(value: float, draws: Floats) -> Estimate:
    """A value with what its replicates say about it."""
    difference = intervals.difference(value, draws)
    return Estimate(difference.value, difference.low, difference.high, difference.p)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values that keep the chance of any false rejection at the level."""
    holm_values: dict[str, float] = {}
    least = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        holm_values[name] = least
    return holm_values


def mean_ranks(scores: Floats) -> Floats:
    """Mean ranks of models, 1 the best, ties shared; of shape (models,) from scores of shape (seeds, models)."""
    better = (scores[:, None, :] > scores[:, :, None]).sum(2)
    equal = (scores[:, None, :] == scores[:, :, None]).sum(2) - 1
    ranks: Floats = (1 + better + equal / 2).mean(0)
    return ranks


def nemenyi(models: int, seeds: int) -> float | None:
    """The least difference of mean ranks that Nemenyi's test finds at 5 %; None where none can be that large."""
    from scipy.stats import studentized_range  # slow to import, and for this one figure

    quantile = float(studentized_range.ppf(0.95, models, math.inf))
    difference = quantile / math.sqrt(2) * math.sqrt(models * (models + 1) / (6 * seeds))
    return difference if difference < models - 1 else None


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one figure for each seed, with the bootstrap's interval over seeds."""
    array = np.asarray(values, dtype=np.float64)
    draws = array[np.random.default_rng(0).integers(0, len(array), (RESAMPLES, len(array)))].mean(1)
    return estimate(float(array.mean()), draws)
