"""Optuna's part of a search: which point comes next, and the journal that keeps every trial.

A new sampler is made for each trial, with a seed that follows from the search's and from how many trials are finished.
So what is drawn depends on the seed and the finished trials only, and an interrupted search resumes as if it had not
been.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramerge import EvaluationError
from ramerge.sdk.text import shown
from ramerge.searches.scores import Objective
from ramerge.searches.space import Axis, Choices, Point, Space

if TYPE_CHECKING:
    import optuna

NAME = "ramerge"
SAMPLERS = ("grid", "tpe", "cmaes", "nsga2")
_NUMBER, _POINT, _FAILURE, _SAME = "number", "point", "failure", "same point as"
_POPULATION = 20
_MOST_REPEATS = 20
_MOST_BYTES = 1 << 28  # of the journal: a thousand times what the largest search writes


@dataclass(frozen=True)
class Trial:
    """A point of a search that has been tried, from the journal.

    Attributes:
        number: by which it and its files are called, counted from 1.
        point: what it merges.
        state: `complete`, `pruned` or `failed`.
        values: of the objectives; None where it failed, or where the sampler heard no more than a part.
        failure: why it failed.
        fingerprint: figures that were kept with it, such as seconds.
    """

    number: int
    point: Point
    state: str
    values: tuple[float, ...] | None
    failure: str | None
    fingerprint: Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A point of a search that is to be tried."""

    number: int
    point: Point
    trial: optuna.Trial


class Study:
    """The study of a search in Optuna: all trials, in its journal."""

    def __init__(self, path: Path, space: Space, sampler: str, seed: int, objectives: Sequence[Objective]) -> None:
        self._space = space
        self._sampler = sampler
        self._seed = seed
        self._objectives = objectives
        with _quiet():
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            if path.exists() and path.stat().st_size > _MOST_BYTES:
                raise EvaluationError(f"{path}: has more than {_MOST_BYTES:,} bytes, so no search wrote it")
            _mend(path)
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            self._optuna = optuna
            try:
                self._study: optuna.Study = optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(str(path))),
                    study_name=NAME,
                    directions=["minimize" if each.lower else "maximize" for each in objectives],
                    load_if_exists=True,
                )
                # Trials of a process that was killed end. Their points come again, because finished trials decide them.
                for trial in self._study.get_trials(deepcopy=False):
                    if not trial.state.is_finished():
                        self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                for trial in self.trials():
                    self._check(trial)
            except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise EvaluationError(
                    f"{path}: is not the journal of this search ({shown(error)}); name another folder for the search"
                ) from error

    def _check(self, trial: Trial) -> None:
        """Refuse a trial that this search cannot have written: the journal may come from a stranger."""
        keys = {axis.key for axis in self._space.axes_of(trial.point["method"])}
        if type(trial.number) is not int or not trial.point.keys() <= {"method", *keys}:
            raise ValueError(f"trial {trial.number!r} is no point of its space")
        if not isinstance(trial.failure, str | None):
            raise TypeError("a failure is no text")

    def trials(self) -> list[Trial]:
        """All finished trials, in the order in which they were requested."""
        states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        return [
            Trial(
                number=trial.user_attrs[_NUMBER],
                point=trial.user_attrs[_POINT],
                state=states[trial.state.name],
                values=tuple(trial.values) if trial.state.name == "COMPLETE" else None,
                failure=trial.user_attrs.get(_FAILURE),
                fingerprint={
                    key: value for key, value in trial.user_attrs.items() if key not in (_NUMBER, _POINT, _FAILURE)
                },
            )
            for trial in self._finished()
            if _SAME not in trial.user_attrs
        ]

    def _finished(self) -> list[optuna.trial.FrozenTrial]:
        """Trials with a result, also those of points that came again; not those that a kill has ended."""
        return [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.is_finished() and (trial.state.name != "FAIL" or trial.user_attrs.keys() & {_FAILURE, _SAME})
        ]

    def ask(self) -> Asked | None:
        """Ask for the next point that has not been tried; None where all of the space's have.

        Where the sampler asks for a point again, it gets the cached result. Where it does so many times in a row, the
        first point that is left comes next.
        """
        with _quiet():
            tried = {_key(trial.point): trial for trial in self.trials()}
            if self._sampler == "grid":
                return self._first_left(tried)
            for _ in range(_MOST_REPEATS):
                asked = self._drawn()
                before = tried.get(_key(asked.point))
                if before is None:
                    return asked
                # the sampler gets the result that is there: it is no trial of its own
                asked.trial.set_user_attr(_SAME, before.number)
                if before.values is None:
                    self._study.tell(asked.trial, state=self._optuna.trial.TrialState.FAIL)
                else:
                    self._study.tell(asked.trial, list(before.values))
            return self._first_left(tried) if self._space.is_listed else self._drawn()

    def limit(self, points: Sequence[Point]) -> None:
        """Limit the study to these points, in this order; for a grid."""
        self._space = replace(self._space, order=tuple(points))

    def _drawn(self) -> Asked:
        samplers = self._optuna.samplers
        seed = int(np.random.SeedSequence((self._seed, len(self._finished()))).generate_state(1)[0])
        match self._sampler:
            case "cmaes":
                self._study.sampler = samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
            case "nsga2":
                self._study.sampler = samplers.NSGAIISampler(seed=seed, population_size=_POPULATION)
            case _:
                self._study.sampler = samplers.TPESampler(
                    seed=seed, multivariate=True, group=True, warn_independent_sampling=False
                )
        trial = self._study.ask()
        point = self._space.draw(lambda axis: _suggested(trial, axis))
        return self._asked(trial, point)

    def _asked(self, trial: optuna.Trial, point: Point) -> Asked:
        number = len(self.trials()) + 1
        trial.set_user_attr(_NUMBER, number)
        trial.set_user_attr(_POINT, point)
        return Asked(number, point, trial)

    def _first_left(self, tried: Mapping[str, Trial]) -> Asked | None:
        """A trial of the first point that has not been tried, whatever a sampler would draw."""
        point = next((point for point in self._space.listed() if _key(point) not in tried), None)
        if point is None:
            return None
        samplers = self._optuna.samplers
        axes = [self._space.by_method, *self._space.axes_of(point["method"])]
        stored = {
            axis.name: _label(point[axis.key]) if isinstance(axis.domain, Choices) else point[axis.key]
            for axis in axes
            if axis.key in point
        }
        self._study.sampler = samplers.PartialFixedSampler(stored, samplers.RandomSampler(seed=0))
        trial = self._study.ask()
        self._space.draw(lambda axis: _suggested(trial, axis))
        return self._asked(trial, point)

    def tell(self, asked: Asked, values: Sequence[float], fingerprint: Mapping[str, object]) -> None:
        """Tell the journal the objectives of a point."""
        self._note(asked, fingerprint)
        self._study.tell(asked.trial, list(values))

    def prune(self, asked: Asked, value: float, items: int, fingerprint: Mapping[str, object]) -> None:
        """Tell the journal that a point was given up, with its value so far."""
        self._note(asked, fingerprint)
        asked.trial.report(value, items)
        self._study.tell(asked.trial, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, asked: Asked, failure: str, fingerprint: Mapping[str, object]) -> None:
        """Tell the journal that a point got no score."""
        self._note(asked, {**fingerprint, _FAILURE: failure})
        self._study.tell(asked.trial, state=self._optuna.trial.TrialState.FAIL)

    def _note(self, asked: Asked, fingerprint: Mapping[str, object]) -> None:
        for key, value in fingerprint.items():
            asked.trial.set_user_attr(key, value)


def check_sampler(sampler: str, space: Space) -> list[str]:
    """Problems of a sampler on a space."""
    endless = [axis.where for axis in space.axes if axis.domain.listed() is None]
    if sampler == "grid" and endless:
        return [f"{where}: a grid needs values, or a range with a step; or take --sampler tpe" for where in endless]
    if sampler == "cmaes" and (len(space.methods) > 1 or len(space.ranges) < len(space.axes) or len(space.axes) < 2):
        return ["--sampler cmaes: needs two ranges of numbers or more, and nothing else that varies; take tpe"]
    return []


def _suggested(trial: optuna.Trial, axis: Axis) -> object:
    domain = axis.domain
    if isinstance(domain, Choices):
        labels = {_label(value): value for value in domain.values}
        return labels[trial.suggest_categorical(axis.name, list(labels))]
    if domain.is_whole:
        step = int(domain.step or 1)
        value: float = trial.suggest_int(axis.name, int(domain.low), int(domain.high), step=step, log=domain.log)
    else:
        value = trial.suggest_float(axis.name, float(domain.low), float(domain.high), step=domain.step, log=domain.log)
    return domain.tidy(value)


def _label(value: object) -> str | int | float | None:
    return value if isinstance(value, str | int | float) or value is None else json.dumps(value)


def _key(point: Mapping[str, object]) -> str:
    return json.dumps(point, sort_keys=True)


def _mend(path: Path) -> None:
    """Take a last line away that a killed process left unfinished, and its lock."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    with suppress(FileNotFoundError), path.open("r+b") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            file.truncate(end)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
