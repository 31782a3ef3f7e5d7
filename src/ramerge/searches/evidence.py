"""Measures how sure a search is: intervals of a score, paired differences, hopeless points, the front, and optimism.

All estimates use the bootstrap of `scoring.intervals`. If an objective combines several figures, items are drawn
separately for each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramerge.scoring import intervals
from ramerge.scoring.intervals import Floats
from ramerge.scoring.scores import Objective, Scores

HOPELESS = 0.998
"""A point is given up if this interval of its paired difference to the best lies below 0."""
FEWEST_ITEMS = 20
_VALIDATION, _TEST = 0, 1


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; `low` and `high` are None without items to resample."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def holds_0(self) -> bool:
        """Whether the interval contains 0."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    def with_interval(self, *, sign: bool = True, digits: int = 3) -> str:
        """Format the figure, with its interval if it has one."""
        form = f"{'+' if sign else ''}.{digits}f"
        if self.low is None or self.high is None:
            return f"{self.value:{form}}"
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"


def estimate(objective: Objective, scores: Scores) -> Estimate:
    """Estimate an objective of a point: its value and interval."""
    return _interval_estimate(objective.value(scores), _objective_replicates(objective, scores, _VALIDATION))


def difference(objective: Objective, first: Scores, second: Scores, level: float = intervals.LEVEL) -> Estimate:
    """Estimate how much better one point is than another, on the same items."""
    value = objective.value(first) - objective.value(second)
    replicates = []
    for number, (left, right) in enumerate(zip(objective.measures(first), objective.measures(second), strict=True)):
        if left.items is None or right.items is None or len(left.items) != len(right.items) or len(left.items) < 2:
            return Estimate(value)
        replicates.append(intervals.replicates(np.stack([left.items, right.items], axis=1), seed=[number, _VALIDATION]))
    ours, theirs = (objective.combination([both[:, side] for both in replicates]) for side in (0, 1))
    return _interval_estimate(value, ours - theirs, level)


def is_hopeless(objective: Objective, scores: Scores, best: Scores) -> bool:
    """Whether a point is worse than the best on the items so far and more items are left, so it can be given up."""
    counts = [len(measure.items) for measure in scores.values() if measure.items is not None]
    most = [len(measure.items) for measure in best.values() if measure.items is not None]
    if not counts or min(counts) < FEWEST_ITEMS or sum(counts) >= sum(most):
        return False
    so_far = {name: best[name].cut(len(measure.items)) for name, measure in scores.items() if measure.items is not None}
    if so_far.keys() != scores.keys():
        return False
    apart = difference(objective, scores, so_far, HOPELESS)
    end = apart.low if objective.lower else apart.high
    return end is not None and objective.sign * end < 0


def optimism(objective: Objective, validation: Scores, test: Scores) -> Estimate:
    """Estimate how much better the chosen point scores on the items that it was chosen by than on other items."""
    sign = objective.sign
    value = sign * (objective.value(validation) - objective.value(test))
    first, second = (
        _objective_replicates(objective, validation, _VALIDATION),
        _objective_replicates(objective, test, _TEST),
    )
    return _interval_estimate(value, None if first is None or second is None else sign * (first - second))


def front(values: Sequence[Sequence[float]]) -> list[int]:
    """Return the places of the points on the front: no other point is as good in every objective and better in one."""
    points = np.asarray(values, dtype=np.float64)
    return [
        place
        for place, point in enumerate(points)
        if not ((points >= point).all(axis=1) & (points > point).any(axis=1)).any()
    ]


def compromise(values: Sequence[Sequence[float]]) -> int:
    """The place of the front's point with the greatest sum of objectives, each scaled to 0 to 1 over the front."""
    points = np.asarray(values, dtype=np.float64)
    low, high = points.min(axis=0), points.max(axis=0)
    shares = (points - low) / np.where(high > low, high - low, 1.0)
    return int(shares.sum(axis=1).argmax())


def _objective_replicates(objective: Objective, scores: Scores, split: int) -> Floats | None:
    """Return replicates of an objective of a point; None without items to resample."""
    replicates = []
    for number, measure in enumerate(objective.measures(scores)):
        if measure.items is None or len(measure.items) < 2:
            return None
        replicates.append(intervals.replicates(measure.items[:, None], seed=[number, split])[:, 0])
    draws: Floats = objective.combination(replicates)
    return draws


def _interval_estimate(value: float, replicates: Floats | None, level: float = intervals.LEVEL) -> Estimate:
    if replicates is None or np.isnan(replicates).all():
        return Estimate(value)
    return Estimate(value, *intervals.percentiles(replicates, level))
