"""Strategies of a search: which point comes next. One row of the entry-point group `ramerge.strategies` each."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramerge.sdk.registry import Registry

if TYPE_CHECKING:  # the names of strategies are options, and all else takes long to import
    from pathlib import Path

    from ramerge.scoring.scores import Objective
    from ramerge.searches.contest import Standing, Strategy
    from ramerge.searches.space import Point, Space


def key_of(point: Mapping[str, object]) -> str:
    """The identity of a point, as text."""
    return json.dumps(point, sort_keys=True)


@dataclass(frozen=True)
class Question:
    """The search that a strategy is made for.

    Attributes:
        space: its points are the candidates.
        objectives: what is to be as good as possible.
        seed: of all that is drawn.
        journal: a file in which the strategy may keep what it shows to other programs.
    """

    space: Space
    objectives: Sequence[Objective]
    seed: int
    journal: Path


class StrategyKind(ABC):
    """A strategy of `--sampler`, by name.

    Attributes:
        libraries: modules of the extra `search` that it needs.
    """

    libraries: tuple[str, ...] = ()

    def problems(self, space: Space) -> list[str]:
        """Problems of the strategy on a space."""
        del space
        return []

    @abstractmethod
    def start(self, question: Question) -> Strategy:
        """A strategy for a search that begins or resumes."""


class ListedPoints:
    """Points in an order of their own, one after another."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points

    def ask(self, trials: Sequence[Standing]) -> Point | None:
        past = {key_of(trial.point) for trial in trials}
        return next((point for point in self._points if key_of(point) not in past), None)

    def count(self, trials: Sequence[Standing]) -> int:
        del trials
        return len(self._points)


class GridStrategy(StrategyKind):
    """All points of a space, in their order."""

    def problems(self, space: Space) -> list[str]:
        endless = [axis.where for axis in space.axes if axis.domain.enumeration() is None]
        return [f"{where}: a grid needs values, or a range with a step; or take --sampler tpe" for where in endless]

    def start(self, question: Question) -> Strategy:
        return ListedPoints(list(question.space.points()))


GRID = GridStrategy()

MARGIN = 0.015
"""How far the sum's mean of shares may lie below the agents' own: lab/experiments/043-score-the-sum-first.md."""


@dataclass(frozen=True)
class SumFirst:
    """The plain sum of task vectors first; what it scores decides which points come next.

    Attributes:
        points: all points, the sum first.
        agents: the mean of the agents' own scores, each figure by the best of them.
        good: the points after a sum that is at most `MARGIN` below it.
        poor: the points after a sum that is not.
    """

    points: Sequence[Point]
    agents: float
    good: Sequence[Point]
    poor: Sequence[Point]

    def ask(self, trials: Sequence[Standing]) -> Point | None:
        return ListedPoints(self._branch(trials)).ask(trials)

    def count(self, trials: Sequence[Standing]) -> int:
        return len(self._branch(trials))

    def _branch(self, trials: Sequence[Standing]) -> Sequence[Point]:
        first = self.points[0]
        values = next((trial.values for trial in trials if trial.point == first), None)
        if values is None:
            return self.points
        is_good = bool(values) and values[0] >= self.agents - MARGIN
        return [first, *(self.good if is_good else self.poor)]


STRATEGIES: Registry[StrategyKind] = Registry("ramerge.strategies", StrategyKind, versioned=False)
"""All strategies, by the word of `--sampler`."""
