"""Bootstrap intervals of scores, and the paired bootstrap test between two models; for tables, agreement and searches.

Sources: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3 (percentile intervals) and section
15.4 (tests out of intervals); Koehn, Statistical Significance Tests for Machine Translation Evaluation, EMNLP 2004
(paired resampling of a test set).

A metric is a ratio of sums over samples, so a replicate is the same ratio over n samples, drawn with replacement from
the n. If samples have few distinct values, such as right and wrong answers, the count of each value is drawn instead (a
multinomial), which is the same distribution. Results depend on the seed, but not on the order of the samples. All
values are ratios, not percentages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
LEVEL = 0.95

_NUMBERS_AT_ONCE = 1 << 17
_TIMES_AS_FAST = 20
"""Drawing this many samples one by one takes as long as drawing the count of one distinct value."""

_ROUNDING = 12
"""Decimals to which replicates are compared: sums of shares in another order differ beyond them."""

Floats = NDArray[np.float64]


def ratio(samples: ArrayLike) -> float | None:
    """Return the value of a metric over samples, each a numerator and a denominator; None if denominators sum to 0."""
    numerator, denominator = np.asarray(samples, dtype=np.float64).reshape(-1, 2).sum(axis=0)
    return float(numerator / denominator) if denominator else None


def interval(samples: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of a metric: its low and its high end.

    Identical samples give an interval of zero width, because the bootstrap only resamples. Replicates whose
    denominators sum to 0 are left out.

    Args:
        samples: the numerator and denominator of each sample.

    Returns:
        The interval; None with fewer than two samples, or if the denominators sum to 0.
    """
    pairs = np.asarray(samples, dtype=np.float64).reshape(-1, 1, 2)
    if len(pairs) < 2 or ratio(pairs) is None:
        return None
    return percentiles(replicates(pairs, seed=seed, resamples=resamples)[:, 0])


def replicates(samples: Floats, *, seed: int | Sequence[int] = 0, resamples: int = RESAMPLES) -> Floats:
    """Return bootstrap replicates of several metrics over the same samples; all metrics share each draw.

    Args:
        samples: shape (samples, metrics, 2), numerators and denominators.
        seed: one number or several.

    Returns:
        Shape (resamples, metrics); NaN where a draw's denominators sum to 0.
    """
    n, metrics, _ = samples.shape
    distinct, counts = np.unique(samples.reshape(n, -1), axis=0, return_counts=True)
    few = len(distinct) * _TIMES_AS_FAST < n
    generator = np.random.default_rng(seed)
    sums = np.empty((resamples, 2 * metrics))
    columns = np.ascontiguousarray(np.repeat(distinct, counts, axis=0).T)
    step = max(1, _NUMBERS_AT_ONCE // (len(distinct) if few else n))
    for start in range(0, resamples, step):
        part = sums[start : start + step]
        if few:
            part[:] = generator.multinomial(n, counts / n, size=len(part)) @ distinct
        else:
            places = generator.integers(0, n, size=(len(part), n), dtype=np.min_scalar_type(n - 1))
            part.T[:] = [column[places].sum(axis=1) for column in columns]
    numerators, denominators = sums[:, ::2], sums[:, 1::2]
    return np.divide(numerators, denominators, out=np.full_like(numerators, np.nan), where=denominators != 0)


def percentiles(values: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Return the interval that holds the middle share `level` of the replicates."""
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Difference(NamedTuple):
    """The difference of two models: the first's value minus the second's, with interval and two-sided p-value."""

    value: float
    low: float
    high: float
    p: float


def difference(value: float, draws: Floats) -> Difference:
    """Estimate a difference between two models, from its value and bootstrap replicates."""
    return Difference(value, *percentiles(draws), p_value(draws))


def p_value(draws: Floats) -> float:
    """Return the two-sided p-value of a difference with the bootstrap replicates d*.

        p = min(1, 2 (min(#{d* <= 0}, #{d* >= 0}) + 1) / (B + 1))        B replicates that have a value

    The smaller count is that of draws in which the better model is not better (Koehn 2004); because it is doubled, p is
    below 0.05 if the 95 % percentile interval excludes 0 (Efron and Tibshirani, 15.4). The added 1 keeps p above
    0, which no finite number of draws can show (Davison and Hinkley, Bootstrap Methods and their Application, 1997,
    section 4.2).
    """
    numbers = np.round(draws[~np.isnan(draws)], _ROUNDING)
    rarer = min(np.count_nonzero(numbers <= 0), np.count_nonzero(numbers >= 0))
    return float(min(1.0, 2 * (rarer + 1) / (len(numbers) + 1)))
