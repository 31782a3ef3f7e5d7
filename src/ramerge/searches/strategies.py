"""Strategies of a search, which choose the next point; each is an entry point in the group `ramerge.strategies`."""

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
    """Return the identity of a point, as text."""
    return json.dumps(point, sort_keys=True)


@dataclass(frozen=True)
class Question:
    """The search for which a strategy is made.

    Attributes:
        space: the space, whose points are the candidates.
        objectives: the objectives to optimize.
        seed: the seed of all draws.
        journal: a file that the strategy may write for other programs.
    """

    space: Space
    objectives: Sequence[Objective]
    seed: int
    journal: Path


class StrategyKind(ABC):
    """A kind of strategy, chosen by `--sampler`.

    Attributes:
        libraries: modules of the extra `search` that it requires.
    """

    libraries: tuple[str, ...] = ()

    def problems(self, space: Space) -> list[str]:
        """Return the problems of the strategy on a space."""
        del space
        return []

    @abstractmethod
    def start(self, question: Question) -> Strategy:
        """Return a strategy for a search that begins or resumes."""


class ListedPoints:
    """Tries listed points one after another."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points

    def ask(self, trials: Sequence[Standing]) -> Point | None:
        past = {key_of(trial.point) for trial in trials}
        return next((point for point in self._points if key_of(point) not in past), None)

    def count(self, trials: Sequence[Standing]) -> int:
        del trials
        return len(self._points)


class GridStrategy(StrategyKind):
    """Tries all points of a space, in their order."""

    def problems(self, space: Space) -> list[str]:
        endless = [axis.where for axis in space.axes if axis.domain.enumeration() is None]
        return [f"{where}: a grid needs values, or a range with a step; or take --sampler tpe" for where in endless]

    def start(self, question: Question) -> Strategy:
        return ListedPoints(list(question.space.points()))


GRID = GridStrategy()

MARGIN = 0.015
"""How far the sum's mean share may lie below the agents' own: lab/experiments/043-score-the-sum-first.md."""


@dataclass(frozen=True)
class SumFirst:
    """Tries the plain sum of task vectors first; its score decides which points come next.

    Attributes:
        points: all points, the sum first.
        agents: the mean over figures of the best agent's score.
        good: the points to try after a sum that is at most `MARGIN` below `agents`.
        poor: the points to try after a worse sum.
    """

    points: Sequence[Point]
    agents: float
    good: Sequence[Point]
    poor: Sequence[Point]

    def ask(self, trials: Sequence[Standing]) -> Point | None:
        return ListedPoints(self._branch_points(trials)).ask(trials)

    def count(self, trials: Sequence[Standing]) -> int:
        return len(self._branch_points(trials))

    def _branch_points(self, trials: Sequence[Standing]) -> Sequence[Point]:
        first = self.points[0]
        values = next((trial.values for trial in trials if trial.point == first), None)
        if values is None:
            return self.points
        is_good = bool(values) and values[0] >= self.agents - MARGIN
        return [first, *(self.good if is_good else self.poor)]


STRATEGIES: Registry[StrategyKind] = Registry("ramerge.strategies", StrategyKind, versioned=False)
"""All strategies, by their name for `--sampler`."""
