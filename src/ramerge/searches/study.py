"""Samplers of Optuna as strategies of a search.

Each draw makes a new sampler, with a seed derived from the search's seed and the number of draws. So draws depend only
on the seed and the trials, and an interrupted search resumes as if uninterrupted: it draws all points again, and gets
the results of earlier runs at once.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from ramerge.searches.contest import Standing, Strategy
from ramerge.searches.space import Axis, Choices, Point, Space
from ramerge.searches.strategies import ListedPoints, Question, StrategyKind, key_of

if TYPE_CHECKING:
    import optuna

NAME = "ramerge"
_POPULATION = 20
_MOST_REPEATS = 20


@dataclass(frozen=True)
class OptunaKind(StrategyKind):
    """A sampler of Optuna.

    Attributes:
        sampler: its class in `optuna.samplers`.
        settings: arguments of that class.
        libraries: as for every strategy.
        of_ranges: whether it needs at least two ranges of numbers, and nothing else may vary.
    """

    sampler: str
    settings: tuple[tuple[str, object], ...]
    libraries: tuple[str, ...] = ("optuna",)
    of_ranges: bool = False

    @override
    def problems(self, space: Space) -> list[str]:
        others = len(space.methods) > 1 or len(space.ranges) < len(space.axes) or len(space.axes) < 2
        needs = "needs two ranges of numbers or more, and nothing else that varies; take tpe"
        return [f"--sampler cmaes: {needs}"] if self.of_ranges and others else []

    @override
    def start(self, question: Question) -> Strategy:
        return Study(self, question)


_QUIET = ("warn_independent_sampling", False)
TPE = OptunaKind("TPESampler", (("multivariate", True), ("group", True), _QUIET))
CMAES = OptunaKind("CmaEsSampler", (_QUIET,), libraries=("optuna", "cmaes"), of_ranges=True)
NSGA2 = OptunaKind("NSGAIISampler", (("population_size", _POPULATION),))


class Study:
    """A strategy that runs a study in Optuna, with a journal that Optuna's dashboard can show."""

    def __init__(self, kind: OptunaKind, question: Question) -> None:
        self._kind, self._question = kind, question
        self._standings: dict[str, Standing] = {}
        self._pending: tuple[Point, optuna.Trial] | None = None
        for left in (question.journal, question.journal.with_name(f"{question.journal.name}.lock")):
            left.unlink(missing_ok=True)
        with _silence_warnings():
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            optuna.logging.set_verbosity(optuna.logging.ERROR)
            self._optuna = optuna
            self._study: optuna.Study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(question.journal))),
                study_name=NAME,
                directions=["minimize" if each.lower else "maximize" for each in question.objectives],
            )
        self._draws = 0

    def ask(self, trials: Sequence[Standing]) -> Point | None:
        """Return the next untried point; None if all points of the space have been tried.

        If the sampler draws a point again, it receives the known result. If it does so many times in a row, the first
        remaining point comes next.
        """
        past = {key_of(trial.point): trial for trial in trials}
        repeats = 0
        with _silence_warnings():
            while True:
                point, trial = self._pending or self._draw_point()
                standing = past.get(key_of(point))
                if standing is None:
                    self._pending = (point, trial)
                    return point
                self._pending = None
                repeats = repeats + 1 if key_of(point) in self._standings else 0
                self._report_value(trial, standing)
                if repeats < _MOST_REPEATS:
                    continue
                points = list(self._question.space.points()) if self._question.space.is_listed else []
                left = ListedPoints(points).ask(trials)
                if left is None:
                    return None
                self._enqueue_point(left)

    def count(self, trials: Sequence[Standing]) -> int | None:
        """Return the number of points in the space; None if infinite."""
        del trials
        return self._question.space.size

    def _draw_point(self) -> tuple[Point, optuna.Trial]:
        seed = int(np.random.SeedSequence((self._question.seed, self._draws)).generate_state(1)[0])
        self._draws += 1
        make: Any = getattr(self._optuna.samplers, self._kind.sampler)
        self._study.sampler = make(seed=seed, **dict(self._kind.settings))
        trial = self._study.ask()
        return self._question.space.draw(lambda axis: _suggest_value(trial, axis)), trial

    def _report_value(self, trial: optuna.Trial, standing: Standing) -> None:
        self._standings[key_of(standing.point)] = standing
        states = self._optuna.trial.TrialState
        if standing.state == "complete":
            self._study.tell(trial, list(standing.values))
        elif standing.state == "pruned":
            trial.report(standing.values[0], standing.items)
            self._study.tell(trial, state=states.PRUNED)
        else:
            self._study.tell(trial, state=states.FAIL)

    def _enqueue_point(self, point: Point) -> None:
        """Make the next draw return this point, whatever the sampler would draw."""
        space = self._question.space
        axes = [space.method_axis, *space.axes_of(point["method"])]
        self._study.enqueue_trial(
            {
                axis.name: _value_label(point[axis.key]) if isinstance(axis.domain, Choices) else point[axis.key]
                for axis in axes
                if axis.key in point
            }
        )


def _suggest_value(trial: optuna.Trial, axis: Axis) -> object:
    domain = axis.domain
    if isinstance(domain, Choices):
        labels = {_value_label(value): value for value in domain.values}
        return labels[trial.suggest_categorical(axis.name, list(labels))]
    if domain.is_whole:
        step = int(domain.step or 1)
        value: float = trial.suggest_int(axis.name, int(domain.low), int(domain.high), step=step, log=domain.log)
    else:
        value = trial.suggest_float(axis.name, float(domain.low), float(domain.high), step=domain.step, log=domain.log)
    return domain.tidy(value)


def _value_label(value: object) -> str | int | float | None:
    return value if isinstance(value, str | int | float) or value is None else json.dumps(value)


@contextmanager
def _silence_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
