"""A contest of merges: a strategy names candidates; each is planned, merged and scored once; the best is kept.

    strategy.ask(trials) -> point -> plan -> merge -> measurements -> journal

`ramerge search`, greedy soups and `ramerge.rank` differ only in their strategies, scorers and journals. Trials in the
journal are not repeated, so an interrupted contest resumes: its strategy is asked from the beginning, and receives the
stored results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ramerge import EvaluationError, OutputError, Plan, RamergeError, RecipeError, read_recipe
from ramerge.core.recipe.paths import portable
from ramerge.core.storage.own_files import RECORDS
from ramerge.scoring.scores import (
    Measure,
    Objective,
    ScoreFailedError,
    Scorer,
    Scores,
    Split,
    check_names,
    check_objectives,
    join,
)
from ramerge.sdk.records import read_record
from ramerge.sdk.text import quantity
from ramerge.searches import evidence
from ramerge.searches.folder import Folder
from ramerge.searches.space import Point
from ramerge.searches.trials import Trial, TrialFiles

_LONGEST_REASON = 1000


@dataclass(frozen=True)
class Standing:
    """A trial as strategies see it.

    Attributes:
        point: the merged point.
        state: `complete`, `pruned` or `failed`.
        values: the objectives' values; for a pruned trial, on a part of the items; empty if the trial failed.
        items: the least number of scored items of any figure; 0 if unknown.
    """

    point: Point
    state: str
    values: tuple[float, ...] = ()
    items: int = 0


class Strategy(Protocol):
    """Names the candidates of a contest, one after another."""

    def ask(self, trials: Sequence[Standing]) -> Point | None:
        """Return the next candidate, given all trials so far; None if there is none left.

        Trials of an earlier run are included from the first call on.
        """

    def count(self, trials: Sequence[Standing]) -> int | None:
        """Return the number of candidates, as far as trials tell; None if it is unbounded."""


class Candidates(Protocol):
    """Maps points of a contest to merges."""

    def plan(self, point: Point) -> Plan:
        """Plan a candidate's merge to `candidate` in the folder of the contest, or without an output."""


@dataclass
class Contest:
    """Merges and scores candidates one after another.

    Attributes:
        candidates: maps points to merges.
        scorer: measures merges.
        objectives: the objectives to optimize.
        journal: stores trials; None for contests that take seconds.
        root: the folder of the contest; relative paths of recipes start in `root/trials`.
        prune: whether to give up candidates that are worse than the best on their items so far.
        most_failures: the number of consecutive failures at which the contest stops; 0 for no limit.
        trials: all trials so far; at first those of earlier runs.
    """

    candidates: Candidates
    scorer: Scorer
    objectives: Sequence[Objective]
    journal: TrialFiles | None = None
    root: Path | None = None
    prune: bool = True
    most_failures: int = 5
    trials: list[Trial] = field(default_factory=list)
    _standings: list[Standing] = field(default_factory=list, init=False)
    _temper: tuple[int, float] = field(default=(-1, 1.0), init=False)

    def check(self) -> None:
        """Refuse trials of earlier runs that do not belong to this contest.

        Raises:
            EvaluationError: their figures differ, are not finite, or lack an objective.
        """
        names = next((list(trial.scores) for trial in self.trials if trial.scores), [])
        for trial in self.trials:
            if trial.state == "failed":
                continue
            try:
                check_names(trial.scores, names)
                figures = self.figures(trial)
                check_objectives(self.objectives, figures)
                for each in self.objectives:
                    finite(each, figures)
            except ScoreFailedError as error:
                raise EvaluationError(
                    f"{self.root}/trials/{trial.number}.json: {error}; remove the file, and the point is scored again"
                ) from error

    def run(self, strategy: Strategy, most: int | None = None, listen: Callable[[], None] = lambda: None) -> None:
        """Carry out the missing trials.

        Args:
            strategy: names candidates.
            most: the maximum number of trials, including earlier runs.
            listen: called before the first trial and after each.

        Raises:
            EvaluationError: too many candidates in a row failed, or an objective is not a figure of the score.
            OutputError: nothing can be written.
        """
        failures: list[str] = []
        self.check()
        listen()
        while most is None or len(self.trials) < most:
            point = strategy.ask(self.standings())
            if point is None:
                return
            trial = self._run_trial(point)
            if self.journal is not None:
                self.journal.keep(trial)
            if trial.state == "complete":
                check_objectives(self.objectives, self._split_figures(trial.scores))
            self.trials.append(trial)
            listen()
            failures = [*failures, trial.failure] if trial.failure is not None else []
            if self.most_failures and len(failures) >= self.most_failures:
                raise TooManyFailuresError(trial, len(failures))

    # --- scores -------------------------------------------------------------------------------------------------------

    def complete(self) -> list[Trial]:
        """Return the trials with all measurements."""
        return [trial for trial in self.trials if trial.state == "complete"]

    def figures(self, trial: Trial, split: Split = "validation") -> Scores:
        """Return the figures of a trial, on the items for one purpose."""
        return self._split_figures(trial.scores, split)

    def _split_figures(self, scores: Scores, split: Split = "validation") -> Scores:
        complete = self.complete()
        if self._temper[0] != len(complete):
            self._temper = len(complete), self.scorer.temper([each.scores for each in complete])
        return split_of(self.scorer, self.scorer.figures(scores, self._temper[1]), split)

    def standings(self) -> list[Standing]:
        """Return all trials as strategies see them.

        What a strategy knows of a trial does not depend on later trials, so that it asks for the same points when a
        contest resumes.
        """
        self._standings += [self._standing_of_trial(trial) for trial in self.trials[len(self._standings) :]]
        return self._standings

    def _standing_of_trial(self, trial: Trial) -> Standing:
        if trial.state == "failed":
            return Standing(trial.point, trial.state)
        temper = self.scorer.temper([each.scores for each in self.complete()[:1]])
        figures = split_of(self.scorer, self.scorer.figures(trial.scores, temper), "validation")
        values = tuple(each.value(figures) for each in self.objectives)
        return Standing(trial.point, trial.state, values, fewest_items(figures))

    def values(self, trial: Trial) -> tuple[float, ...]:
        """Return the values of the objectives of a trial with a score."""
        figures = self.figures(trial)
        return tuple(each.value(figures) for each in self.objectives)

    def gains(self, trial: Trial) -> list[float]:
        """Return the values of the objectives, the higher the better."""
        return [each.sign * value for each, value in zip(self.objectives, self.values(trial), strict=True)]

    def front(self) -> list[Trial]:
        """Return the complete trials that no other beats in every objective; with one objective, the best."""
        complete = self.complete()
        return [complete[place] for place in evidence.front([self.gains(trial) for trial in complete])]

    def best(self) -> Trial | None:
        """The best trial; of several objectives, the most balanced of the front. None if no trial is complete."""
        front = self.front() if self.complete() else []
        return front[evidence.compromise([self.gains(trial) for trial in front])] if front else None

    # --- one trial ----------------------------------------------------------------------------------------------------

    def _run_trial(self, point: Point) -> Trial:
        numbers = {trial.number for trial in self.trials}
        number = next(number for number in range(1, len(numbers) + 2) if number not in numbers)
        trial = Trial(number, point, "failed")
        start, merge_end = time.monotonic(), None
        try:
            self.merge(self.candidates.plan(point), number)
            merge_end = time.monotonic()
            scores, is_whole = self._score_all()
            trial = replace(trial, state="complete" if is_whole else "pruned", scores=scores)
        except (OutputError, ChangedInputsError):
            raise
        except (ScoreFailedError, RamergeError) as error:
            trial = replace(trial, failure=str(error)[:_LONGEST_REASON])
        now = time.monotonic()
        merging = (merge_end or now) - start
        return replace(trial, merge_seconds=round(merging, 3), score_seconds=round(now - start - merging, 3))

    def merge(self, plan: Plan, number: int) -> None:
        """Merge a candidate to where its scorer looks for it.

        Raises:
            RamergeError: as for `Plan.merge`.
        """
        if self.root is None or self.scorer.merge is not None:
            assert self.scorer.merge is not None
            self.scorer.merge(plan)
        else:
            plan.merge()
        if self.journal is not None:
            self.journal.begin(number, portable(plan.recipe, self.journal.root).to_yaml())

    def _score_all(self) -> tuple[Scores, bool]:
        """Return the candidate's measurements, and whether they are complete: scoring stops early for a hopeless
        candidate.
        """
        best = self.best() if len(self.objectives) == 1 and self.prune and self.scorer.in_parts else None
        names = next((list(trial.scores) for trial in self.complete()), [])
        parts: list[Scores] = []
        with closing(self.scorer.parts(self.candidate, "validation")) as coming:
            for part in coming:
                check_names(part, names)
                parts.append(part)
                if best is None:
                    continue
                so_far = join(parts)
                if fewest_items(so_far) < evidence.FEWEST_ITEMS:
                    continue
                if evidence.is_hopeless(self.objectives[0], self._split_figures(so_far), self.figures(best)):
                    return so_far, False
        scores = join(parts)
        figures = self._split_figures(scores)
        for each in self.objectives:
            if each.missing(figures) is None:
                finite(each, figures)
        return scores, True

    @property
    def candidate(self) -> Path:
        """The folder of the candidate's checkpoint, for scorers that read one."""
        return (self.root or Path()) / "candidate"


class ChangedInputsError(EvaluationError):
    """Error of a contest: an input changed while it ran, so that its candidates cannot be compared."""


class TooManyFailuresError(EvaluationError):
    """Error of a contest: too many candidates failed in a row, so something else must be wrong.

    Attributes:
        trial: the last failed trial.
        count: the number of failures.
    """

    def __init__(self, trial: Trial, count: int) -> None:
        super().__init__(f"{quantity(count, 'candidate')} in a row failed; the last: {trial.failure}")
        self.trial: Trial = trial
        self.count: int = count


def split_of(scorer: Scorer, scores: Scores, split: Split) -> dict[str, Measure]:
    """Return the part of the items for one purpose, unless the score itself separates them."""
    if scorer.splits or any(measure.items is None for measure in scores.values()):
        return dict(scores)
    return {name: measure.half(split) for name, measure in scores.items()}


def fewest_items(scores: Scores) -> int:
    """Return the least number of items of any figure; 0 if unknown."""
    return min((0 if measure.items is None else len(measure.items) for measure in scores.values()), default=0)


def finite(objective: Objective, scores: Scores) -> float:
    """Return the value of an objective.

    Raises:
        ScoreFailedError: the value is not finite.
    """
    value = objective.value(scores)
    if not math.isfinite(value):
        raise ScoreFailedError(f"{objective.name}: has no value, because there are no items to divide by")
    return value


def write_best(folder: Folder, plan: Plan, number: int) -> tuple[str, ...]:
    """Merge the best candidate to `best`, unless it is there already; return the warnings of its merge.

    Args:
        folder: the folder of the contest.
        plan: the plan of the candidate.
        number: the number of its trial.

    Raises:
        EvaluationError: the recipe of the trial cannot be read.
        RamergeError: as for `Plan.merge`.
    """
    path = folder.trials.recipe(number)
    try:
        recipe = read_recipe(path)
    except RecipeError as error:
        raise EvaluationError(
            [f"{path}: cannot be read; remove the folder, or name another", *error.messages]
        ) from error
    text = portable(recipe, folder.root).to_yaml()
    if folder.text("recipe.yaml") == text and folder.has_best():
        with suppress(RecipeError):  # a damaged record: merge it again
            return read_record(folder.best / RECORDS[0]).warnings
    (folder.root / "recipe.yaml").unlink(missing_ok=True)  # a kill must not leave it with another merge
    record = plan.merge(folder.best)
    folder.write("recipe.yaml", text)
    return record.warnings
