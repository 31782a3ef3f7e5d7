"""Scorers and their scores: figures by name, if possible with the items behind them; objectives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ramerge import EvaluationError, Plan
from ramerge.scoring.intervals import Floats
from ramerge.sdk.text import quoted, shown, unknown

Split = Literal["validation", "test"]

MEAN, WORST = "mean", "worst"
_MOST_NAMES = 1000
_LONGEST_NAME = 200
LARGEST = 1e100  # sums over items, and the squares that errors are made of, are finite then


class ScoreFailedError(Exception):
    """Error of a scorer: a point got no score, with the reason. The search continues with the next point."""


@dataclass(frozen=True)
class Measure:
    """One figure of a score, with its items.

    Attributes:
        value: the figure's value.
        items: shape (items, 2): each item's numerator and denominator; the figure is the sum of numerators over the sum
            of denominators. None if only the figure is known.
    """

    value: float
    items: Floats | None = None

    def cut(self, count: int) -> Measure:
        return self if self.items is None else of_items(self.items[:count])

    def half(self, split: Split) -> Measure:
        """The figure on every second item: starting with the first for validation, with the second for the test."""
        if self.items is None:
            return self
        if len(self.items) < 2:
            raise ScoreFailedError("has 1 item; at least two are needed, one for validation and one for the test")
        return of_items(self.items[0 if split == "validation" else 1 :: 2])


Scores: TypeAlias = Mapping[str, Measure]


class Scorer(ABC):
    """Scorer of models in a search.

    Attributes:
        splits: whether it can score separate items for validation and for a test.
        in_parts: whether it yields its items part by part.
        has_test: whether items can be held out to test the best model.
    """

    splits: bool = False
    in_parts: bool = False
    has_test: bool = True

    @property
    def merge(self) -> Callable[[Plan], None] | None:
        """A function that merges a plan into the model to score next, without a file; None if `parts` reads a model's
        folder.
        """
        return None

    @abstractmethod
    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        """Yield the measurements of a model, part by part: further items of every figure, or everything in one part.

        The caller may stop between two parts.
        """

    def temper(self, candidates: Sequence[Scores]) -> float:
        """Return the divisor in the figures of all candidates, from the measurements of the complete candidates."""
        del candidates
        return 1.0

    def figures(self, scores: Scores, temper: float) -> Scores:
        """Return the figures of a candidate, from its measurements."""
        del temper
        return scores

    @abstractmethod
    def about(self) -> Mapping[str, object]:
        """Describe all that determines scores, as plain values. Results with different descriptions are never mixed."""

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """End the processes and servers of the scorer."""


class CustomScore(ABC):
    """A score that makes its own scorer, such as `ramerge_eval.TaskScore`, for `ramerge.search`."""

    @abstractmethod
    def scorer(self, folder: Path) -> Scorer:
        """Make the scorer of a search.

        Args:
            folder: the search's folder, where the scorer may keep files.
        """


@dataclass(frozen=True)
class Objective:
    """An objective of a search.

    Attributes:
        name: a figure's name; `mean`: the mean of all figures; or `worst`: their smallest, or the smallest retention.
        lower: whether a lower value is better.
        specialists: for `worst`, the score of each figure's specialist. The retention is the merge's score divided by
            it.
    """

    name: str = MEAN
    lower: bool = False
    specialists: Mapping[str, float] = field(default_factory=dict)

    @property
    def sign(self) -> int:
        """-1 if a lower value is better, otherwise 1."""
        return -1 if self.lower else 1

    def missing(self, scores: Scores) -> str | None:
        """Return the first figure that the objective needs but the scores lack."""
        names = list(self.specialists) or [name for name in [self.name] if name not in (MEAN, WORST)]
        return next((name for name in names if name not in scores), None)

    def measures(self, scores: Scores) -> list[Measure]:
        """Return the figures that the objective combines.

        Raises:
            ScoreFailedError: a figure is missing.
        """
        if (name := self.missing(scores)) is not None:
            raise ScoreFailedError(unknown("objective", name, [*scores, MEAN, WORST]))
        return [scores[name] for name in self.names(scores)]

    def names(self, figures: Collection[str]) -> list[str]:
        """Return the names of the figures that the objective combines."""
        return list(self.specialists) or ([self.name] if self.name in figures else list(figures))

    def combination(self, values: Sequence[Any]) -> Any:
        """Combine the values of the objective's measures: numbers, or arrays of replicates."""
        if self.name != WORST:
            return sum(values) / len(values)
        retentions = zip(values, self.specialists.values(), strict=True) if self.specialists else ()
        return np.minimum.reduce([value / specialist for value, specialist in retentions] or list(values))

    def value(self, scores: Scores) -> float:
        """Return the value of the objective, from the scores of a model."""
        return float(self.combination([measure.value for measure in self.measures(scores)]))


def objectives_of(words: Sequence[str], *, by_mass: bool = False) -> tuple[Objective, ...]:
    """Parse the objectives of `--objective`; by default, the mean.

    Raises:
        EvaluationError: an objective has a wrong form, is named twice, or asks for a low mass.
    """
    objectives = [objective_of(word) for word in words]
    if len({each.name for each in objectives}) < len(objectives):
        raise EvaluationError("--objective: each of them once")
    if by_mass and any(each.lower for each in objectives):
        raise EvaluationError("--objective: a higher mass is better; leave out =min")
    return tuple(objectives) or (Objective(),)


def objective_of(word: str) -> Objective:
    """Parse an objective of `--objective`: NAME or NAME=min."""
    if word.startswith(f"{WORST}:"):
        specialists = {}
        for pair in word.removeprefix(f"{WORST}:").split(","):
            name, _, number = pair.rpartition("=")
            try:
                specialists[name] = float(number)
            except ValueError:
                specialists[name] = math.nan
        if "" in specialists or not all(0 < score < math.inf for score in specialists.values()):
            raise EvaluationError(
                f"--objective {word}: must be {WORST}:NAME=SCORE,NAME=SCORE with the score of each figure's "
                "specialist, a number above 0"
            )
        return Objective(WORST, specialists=specialists)
    name, _, way = word.rpartition("=") if word.endswith(("=min", "=max")) else (word, "", "max")
    if not name.strip("="):
        raise EvaluationError(f"--objective {word}: must be NAME, or NAME=min")
    return Objective(name, way == "min")


class WrongObjectiveError(EvaluationError):
    """Error of a search: its objective is not a figure of the score, so no point can be scored."""


def check_objectives(objectives: Iterable[Objective], scores: Scores) -> None:
    """Refuse objectives that the first scores lack, because later scores would lack them, too."""
    for each in objectives:
        if (name := each.missing(scores)) is not None:
            raise WrongObjectiveError(unknown("--objective", name, [*scores, MEAN, WORST]))


def of_items(items: ArrayLike) -> Measure:
    """Compute a figure from items, each a numerator and a denominator; NaN if denominators sum to 0."""
    pairs = np.asarray(items, dtype=np.float64).reshape(-1, 2)
    numerator, denominator = pairs.sum(axis=0)
    return Measure(float(numerator / denominator) if denominator else math.nan, pairs)


def read_scores(result: object) -> dict[str, Measure]:
    """Read the result of a score function: by name, a number, or a list with a number for each item.

    A number or a list by itself is the figure `score`.
    """
    if isinstance(result, int | float | list | tuple):
        result = {"score": result}
    if not isinstance(result, Mapping) or not result:
        raise ScoreFailedError(
            f"the score function returned {quoted(result)}; return a number, {{name: number}} "
            "or {name: [numbers of items]}"
        )
    if len(result) > _MOST_NAMES:
        raise ScoreFailedError(f"returned {len(result):,} names; at most {_MOST_NAMES:,} are possible")
    figures = {}
    for key, value in result.items():
        name = str(key)
        if len(name) > _LONGEST_NAME or not name.isprintable():  # a file of JSON must hold it, and be read again
            raise ScoreFailedError(
                f"{quoted(shown(name, 60))}: a name must be at most {_LONGEST_NAME} characters that can be printed"
            )
        if isinstance(value, bool | int | float):
            figures[name] = Measure(_check_finite(name, value))
        elif not isinstance(value, Sequence) or isinstance(value, str):
            raise ScoreFailedError(
                f"{shown(name, 60)}: the score function returned {quoted(value)}; it must be a number or a list of "
                "numbers"
            )
        elif not value:
            raise ScoreFailedError(f"{shown(name, 60)}: has no items")
        else:
            figures[name] = of_items(
                [(_check_finite(f"{name}, item {at}", item), 1.0) for at, item in enumerate(value, 1)]
            )
    return figures


def _check_finite(name: str, value: object) -> float:
    if not isinstance(value, bool | int | float):
        raise ScoreFailedError(f"{shown(name, 60)}: must be a number, not {quoted(value)}")
    if not abs(value) <= LARGEST:  # also NaN, and integers that no float holds
        raise ScoreFailedError(f"{shown(name, 60)}: must be a number of at most {LARGEST:g}, not {quoted(value)}")
    return float(value)


def join(parts: Iterable[Scores]) -> dict[str, Measure]:
    """Join the parts of scores."""
    whole: dict[str, Measure] = {}
    for number, part in enumerate(parts):
        if number and part.keys() != whole.keys():
            raise ScoreFailedError(_other_names(part, whole))
        for name, measure in part.items():
            before = whole.get(name)
            if before is None:
                whole[name] = measure
            elif before.items is None or measure.items is None:
                raise ScoreFailedError(f"{shown(name, 60)}: came twice; only lists of items can come in parts")
            else:
                whole[name] = of_items(np.concatenate([before.items, measure.items]))
    if not whole:
        raise ScoreFailedError("gave no scores")
    return whole


def check_names(scores: Scores, before: Iterable[str]) -> None:
    """Refuse figures with names other than those of earlier points."""
    names = dict.fromkeys(before)
    if names and scores.keys() != names.keys():
        raise ScoreFailedError(_other_names(scores, names))


def _other_names(now: Iterable[str], before: Iterable[str]) -> str:
    return f"returned {shown(', '.join(now))}; before it was {shown(', '.join(before))}"
