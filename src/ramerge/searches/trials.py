"""Trials of a contest, and their files: `trials/N.json` with the scores, `trials/N.yaml` with the recipe."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from typing_extensions import NotRequired, TypedDict  # of typing before Python 3.12, pydantic cannot check it

from ramerge import EvaluationError
from ramerge.scoring.scores import LARGEST, Measure, Scores, of_items
from ramerge.sdk.files import write_file
from ramerge.sdk.records import to_model
from ramerge.sdk.text import JsonLimits, dumped, quantity, read_object, reason
from ramerge.searches.space import Point

State = Literal["complete", "pruned", "failed"]
_FILE = JsonLimits(size=1 << 28, signs=1 << 26)
_NAME = re.compile(r"[1-9][0-9]{0,8}")
T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """A tried candidate.

    Attributes:
        number: the number of the trial and its files, from 1.
        point: the candidate's point.
        state: `complete`, `pruned` (given up early) or `failed`.
        scores: the scorer's measurements, with items; partial for a pruned trial; empty if it failed.
        failure: why the trial has no score.
        merge_seconds, score_seconds: the time that merging and scoring took.
    """

    number: int
    point: Point
    state: State
    scores: Scores = field(default_factory=dict)
    failure: str | None = None
    merge_seconds: float = 0.0
    score_seconds: float = 0.0


class _ItemValues(TypedDict):
    """The values of a figure, item by item."""

    items: list[tuple[float, float]]


Figures = dict[str, float | _ItemValues]
"""Scores as plain values."""


class _TrialFile(TypedDict):
    """The content of `trials/N.json`."""

    point: dict[str, Any]
    state: State
    failure: str | None
    seconds: dict[str, float]
    scores: Figures
    test: NotRequired[Figures]


@dataclass(frozen=True)
class TrialFiles:
    """The trials of a contest in a folder."""

    root: Path

    def recipe(self, number: int) -> Path:
        """Return the file with the recipe of a trial."""
        return self.root / f"{number}.yaml"

    def begin(self, number: int, recipe: str) -> None:
        """Write the recipe of a trial that is about to be scored, as YAML."""
        write_file(self.recipe(number), recipe)

    def keep(self, trial: Trial) -> None:
        """Write a finished trial, item by item."""
        content = {
            "point": trial.point,
            "state": trial.state,
            "failure": trial.failure,
            "seconds": {"merging": trial.merge_seconds, "scoring": trial.score_seconds},
            "scores": scores_to_json(trial.scores),
        }
        write_file(self._trial_path(trial.number), dumped(content, indent=None))

    def read(self) -> list[Trial]:
        """Read all trials, ordered by number.

        Raises:
            EvaluationError: a file is not what a search writes.
        """
        numbers = sorted(int(path.stem) for path in self.root.glob("*.json") if _NAME.fullmatch(path.stem))
        return [self._read_trial(number) for number in numbers]

    def _read_trial(self, number: int) -> Trial:
        content = validate(self._trial_path(number), read(self._trial_path(number)), _TrialFile)
        if (content["state"] == "failed") == bool(content["scores"]):
            count = quantity(len(content["scores"]), "score")
            raise EvaluationError(
                f"{self._trial_path(number)}: has {content['state']} as its state and {count}; "
                "remove the file, and the point is scored again"
            )
        seconds = content["seconds"]
        return Trial(
            number,
            content["point"],
            content["state"],
            scores_from_json(self._trial_path(number), content["scores"]),
            content["failure"],
            seconds.get("merging", 0.0),
            seconds.get("scoring", 0.0),
        )

    def clear(self) -> None:
        """Remove all trials."""
        shutil.rmtree(self.root, ignore_errors=True)

    def drop_pruned(self) -> None:
        """Remove the pruned trials."""
        for trial in self.read():
            if trial.state == "pruned":
                self._trial_path(trial.number).unlink()

    def keep_test(self, number: int, scores: Scores) -> None:
        """Write the scores of a trial on held-out items."""
        write_file(
            self._trial_path(number),
            dumped(read(self._trial_path(number)) | {"test": scores_to_json(scores)}, indent=None),
        )

    def test(self, number: int) -> Scores | None:
        """Return the scores of a trial on held-out items, if any."""
        content = validate(self._trial_path(number), read(self._trial_path(number)), _TrialFile).get("test")
        return scores_from_json(self._trial_path(number), content) if content else None

    def _trial_path(self, number: int) -> Path:
        return self.root / f"{number}.json"


def _is_finite(content: float | _ItemValues) -> bool:
    values = np.asarray(content if isinstance(content, float) else content["items"], np.float64)
    return values.size > 0 and bool((np.abs(values) <= LARGEST).all())


def scores_to_json(scores: Scores) -> dict[str, object]:
    """Convert scores to plain values, with their items."""
    return {
        name: measure.value if measure.items is None else {"items": measure.items.tolist()}
        for name, measure in scores.items()
    }


def scores_from_json(path: Path, content: Figures) -> Scores:
    """Convert plain values in a file to scores.

    Raises:
        EvaluationError: a score has no items, or is not finite.
    """
    if not all(map(_is_finite, content.values())):
        problem = "a score has no items, or is not finite; remove the file, and it is scored again"
        raise EvaluationError(f"{path}: {problem}")
    return {
        name: Measure(value) if isinstance(value, float) else of_items(np.array(value["items"]))
        for name, value in content.items()
    }


def read(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a search.

    Raises:
        EvaluationError: the file cannot be read.
    """
    try:
        return read_object(path, _FILE)
    except OSError as error:
        raise EvaluationError(f"{path}: {reason(error)}") from error
    except ValueError as error:
        raise EvaluationError(f"{path}: {error}") from error


def validate(path: Path, values: dict[str, Any], kind: type[T]) -> T:
    """Check the values of a file against the type that a search writes.

    Raises:
        EvaluationError: the values have another form.
    """
    try:
        return to_model(values, kind)
    except ValueError as error:
        raise EvaluationError(
            f"{path}: is not what a search writes: {error}; remove the folder, or name another"
        ) from error
