"""The whole search: ask for a point, merge it, score it, report; then the best, on items that it was not chosen by."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from ramerge import (
    EvaluationError,
    Options,
    OutputError,
    PlanError,
    Progress,
    RamergeError,
    RecipeError,
    plan,
    read_recipe,
)
from ramerge.sdk.machine import missing
from ramerge.sdk.recipes import Document, portable
from ramerge.sdk.records import read_record
from ramerge.sdk.storage import RECORDS
from ramerge.sdk.tensors import state_of
from ramerge.sdk.text import dumped
from ramerge.searches import evidence
from ramerge.searches.folder import Folder, search_folder
from ramerge.searches.points import document_of, merge_point, recipe_of
from ramerge.searches.results import SearchResult, TriedPoint
from ramerge.searches.scores import (
    Measure,
    Objective,
    ScoreFailedError,
    Scorer,
    Scores,
    Split,
    WrongObjectiveError,
    check_names,
    check_objectives,
    joined,
)
from ramerge.searches.space import Point, Space
from ramerge.searches.study import Asked, Study, Trial, check_sampler

TRIALS = 30
MARGIN = 0.015
"""How far the sum's mean of shares may lie below the agents' own: lab/experiments/043-score-the-sum-first.md."""
_OPTIONS = Options()
_SHOWN = 1000
_RECIPE = "ramerge.yaml"
_MERGE, _SCORE = "merge seconds", "score seconds"


MakeScorer: TypeAlias = Callable[[Folder, Callable[[], None]], Scorer]
"""Makes the scorer of a folder. The function is called while a score function is loaded, which may take long."""


@dataclass(frozen=True)
class Branches:
    """Points of a search by prompts after the first; agents are scored before it, each of their figures by the best.

    Attributes:
        agents: their names.
        good: the points where the first is at most `MARGIN` below the agents' mean over figures.
        poor: the points where it is not.
    """

    agents: tuple[str, ...]
    good: tuple[Point, ...]
    poor: tuple[Point, ...]


@dataclass(frozen=True)
class SearchRequest:
    """The request of a search: its space, objectives and settings.

    Attributes:
        space: what varies.
        objectives: what is to be as good as possible.
        trials: how many points to try; None for all of a grid, or 30.
        sampler: `grid`, `tpe`, `cmaes` or `nsga2`.
        seed: the same seed gives the same points, as long as scores are the same.
        prune: whether points are given up whose items so far show that they are worse than the best.
        most_failures: points that may fail one after the other before the search stops; 0 for no bound.
        options: how every merge is carried out.
        branches: which points come after the first, by what that scores; None for all.
    """

    space: Space
    objectives: tuple[Objective, ...] = (Objective(),)
    trials: int | None = None
    sampler: str = "tpe"
    seed: int = 0
    prune: bool = True
    most_failures: int = 5
    options: Options = _OPTIONS
    branches: Branches | None = None

    @property
    def required(self) -> int:
        """The number of points to try."""
        size = self.space.size
        most = size if self.sampler == "grid" and size is not None else TRIALS
        required = most if self.trials is None else self.trials
        return required if size is None else min(required, size)


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        done, total: points; while replies and statistics are gathered, prompts.
        best: the first objective's best value so far.
        failed: points that failed.
        is_gathering: whether replies and statistics of prompts are gathered, before the first point.
        is_loading: whether the file or module of the score function is loaded, before the first point.

    Example:
        >>> done = []
        >>> def listen(event: ramerge.SearchProgress) -> None:
        ...     done.append(event.done)
        >>> vary, settings = {"parameters.r": [0, 0.1]}, ramerge.SearchSettings(html=False)
        >>> result = ramerge.search("recipe.yaml", "found", score, vary=vary, settings=settings, on_progress=listen)
        >>> done
        [0, 1, 2]
    """

    done: int
    total: int
    best: float | None
    failed: int
    is_gathering: bool = False
    is_loading: bool = False


Listener: TypeAlias = Callable[[SearchProgress], None]


def search(
    recipe: Document,
    out: Path,
    request: SearchRequest,
    make_scorer: MakeScorer,
    *,
    notes: Sequence[str] = (),
    on_progress: Listener = lambda _: None,
    on_merge: Callable[[Progress], None] = lambda _: None,
) -> SearchResult:
    """Carry out a search: try points of its space, and keep the one that scores best.

    An interrupted search in the folder is resumed: only the points that are missing are tried. Notes are kept with what
    it finds.
    """
    if problems := missing({"search": libraries_of(request.sampler)}, who="ramerge search needs"):
        raise EvaluationError(problems)
    if problems := check_sampler(request.sampler, request.space):
        raise EvaluationError(problems)
    with ExitStack() as stack:
        folder = stack.enter_context(search_folder(out))
        inputs = state_of_first(recipe, request.space, request.space.methods, request.options)
        loading = SearchProgress(0, request.required, None, 0, is_loading=True)
        scorer = stack.enter_context(closing(make_scorer(folder, lambda: on_progress(loading))))
        folder.check_asked(
            {
                "recipe": recipe.as_dict(),
                "inputs": dict(sorted(inputs.items())),
                "space": request.space.as_dict(),
                "score": dict(scorer.about()),
                "objectives": [asdict(each) for each in request.objectives],
            }
        )
        stack.callback(folder.clear)
        study = Study(folder.journal, request.space, request.sampler, request.seed, request.objectives)
        return _Search(recipe, request, folder, scorer, study, notes, on_progress, on_merge).run()


def state_of_first(recipe: Document, space: Space, methods: Iterable[str], options: Options) -> dict[str, str]:
    """The state of the inputs of the first point with each of some methods.

    Raises:
        RecipeError: the recipe of one is wrong.
        PlanError: one cannot be merged; all problems are listed.
    """
    inputs: dict[str, str] = {}
    problems: list[str] = []
    for method in methods:
        first = {axis.key: axis.domain.extremes()[0] for axis in space.axes_of(method)}
        made = plan(document_of(recipe, {"method": method} | first), options=options)
        problems += made.problems
        inputs |= state_of(made.details.inputs.files)
    if problems:
        raise PlanError(dict.fromkeys(problems))
    return inputs


def libraries_of(sampler: str | None) -> list[str]:
    """Modules of the extra `search` that a sampler needs."""
    return ["optuna", *(["cmaes"] if sampler == "cmaes" else [])]


@dataclass
class _Search:
    _recipe: Document
    _request: SearchRequest
    _folder: Folder
    _scorer: Scorer
    _study: Study
    _notes: Sequence[str]
    _on_progress: Listener
    _on_merge: Callable[[Progress], None]

    def __post_init__(self) -> None:
        self._agents: dict[str, float] = {}
        self._trials = self._study.trials()
        self._best: Trial | None = self._chosen() if len(self._request.objectives) == 1 else None
        self._best_scores = self._validation(self._best.number) if self._best else None
        complete = next((trial.number for trial in self._trials if trial.state == "complete"), None)
        self._names = list((complete is not None and self._folder.scores(complete)) or ())

    def run(self) -> SearchResult:
        in_a_row = 0
        self._agents = self._scores_of_agents()
        self._notify()
        while len(self._trials) < self._required() and (asked := self._study.ask()) is not None:
            failure = self._try(asked)
            self._trials = self._study.trials()
            self._notify()
            in_a_row = in_a_row + 1 if failure else 0
            if self._request.most_failures and in_a_row >= self._request.most_failures:
                raise EvaluationError(
                    [
                        f"{in_a_row} points in a row failed; the last: {failure}; all are kept in {self._folder.root}, "
                        "and the same command resumes with the next point (--most-failures 0 never stops)",
                        *self._folder.said_by_score(),
                    ]
                )
        return self._result()

    def _required(self) -> int:
        """The number of points to try, after those that need not be tried are left out."""
        if self._request.branches is None or not self._trials:
            return self._request.required
        first, branches = self._trials[0], self._request.branches
        is_good = first.values is not None and first.values[0] >= fmean(self._agents.values()) - MARGIN
        points = branches.good if is_good else branches.poor
        self._study.limit([first.point, *points])
        return min(self._request.required, 1 + len(points))

    def _scores_of_agents(self) -> dict[str, float]:
        """The score of the best agent for each figure; kept in the folder of the search."""
        if self._request.branches is None:
            return {}
        known = self._folder.agents()
        for name in self._request.branches.agents:
            if name in known:
                continue
            point = {"method": "passthrough", "parameters.agent": name}
            merge_point(self._recipe, point, self._folder.candidate, self._on_merge, self._request.options)
            try:
                with closing(self._scorer.parts(self._folder.candidate, "validation")) as parts:
                    scores = _split(self._scorer, joined(parts), "validation")
            except ScoreFailedError as error:
                raise EvaluationError(f"agent {name} got no score: {error}") from error
            known[name] = {figure: measure.value for figure, measure in scores.items()}
            self._folder.keep_agents(known)
        figures = dict.fromkeys(figure for scores in known.values() for figure in scores)
        return {each: max(scores.get(each, -math.inf) for scores in known.values()) for each in figures}

    def _notify(self) -> None:
        value = self._best.values[0] if self._best and self._best.values else None
        failed = sum(trial.state == "failed" for trial in self._trials)
        self._on_progress(SearchProgress(len(self._trials), self._required(), value, failed))

    # --- one point ----------------------------------------------------------------------------------------------------

    def _try(self, asked: Asked) -> str | None:
        """Merge and score a point; the reason why it failed, or None."""
        began, merged = time.monotonic(), None
        try:
            if self._scorer.merge is None:
                merge_point(self._recipe, asked.point, self._folder.candidate, self._on_merge, self._request.options)
                text = (self._folder.candidate / _RECIPE).read_text(encoding="utf-8")  # just written
            else:
                recipe = recipe_of(self._recipe, asked.point)
                self._scorer.merge(portable(recipe, None))
                text = portable(recipe, self._folder.root / "trials").to_yaml()
            merged = time.monotonic()
            self._folder.write(f"trials/{asked.number}.yaml", text)
            scores, is_whole = self._scored()
            if not self._names:
                check_objectives(self._request.objectives, scores)
            validation = _split(self._scorer, scores, "validation")
            values = [_finite(each, validation) for each in self._request.objectives]
        except (OutputError, WrongObjectiveError):
            raise
        except (ScoreFailedError, RamergeError) as error:
            failure = str(error)[:_SHOWN]
            self._study.fail(asked, failure, _seconds(began, merged))
            return failure
        fingerprint = _seconds(began, merged) | {f"score {name}": measure.value for name, measure in validation.items()}
        self._folder.keep(asked.number, scores)
        if not is_whole:
            items = min(len(measure.items) for measure in validation.values() if measure.items is not None)
            self._study.prune(asked, values[0], items, fingerprint)
            return None
        self._study.tell(asked, values, fingerprint)
        self._names = self._names or list(scores)
        if len(self._request.objectives) == 1:
            sign = self._request.objectives[0].sign
            if self._best is None or self._best.values is None or sign * values[0] > sign * self._best.values[0]:
                self._best = Trial(asked.number, asked.point, "complete", tuple(values), None, {})
                self._best_scores = validation
        return None

    def _scored(self) -> tuple[Scores, bool]:
        """The candidate's scores, and whether they are whole: a hopeless point is given up."""
        parts: list[Scores] = []
        with closing(self._scorer.parts(self._folder.candidate, "validation")) as coming:
            for part in coming:
                check_names(part, self._names)
                parts.append(part)
                if self._best_scores is not None and self._request.prune and self._scorer.in_parts:
                    so_far = joined(parts)
                    validation = _split(self._scorer, so_far, "validation")
                    if evidence.is_hopeless(self._request.objectives[0], validation, self._best_scores):
                        return so_far, False
        return joined(parts), True

    # --- the result ---------------------------------------------------------------------------------------------------

    def _validation(self, number: int) -> Scores:
        scores = self._folder.scores(number)
        if scores is None:
            raise EvaluationError(f"{self._folder.root}/trials/{number}.json: is not there any more")
        return _split(self._scorer, scores, "validation")

    def _chosen(self) -> Trial | None:
        complete = [trial for trial in self._trials if trial.values is not None]
        if not complete:
            return None
        front = self._front(complete)
        return front[evidence.balanced([self._gains(trial) for trial in front])]

    def _front(self, complete: Sequence[Trial]) -> list[Trial]:
        return [complete[place] for place in evidence.front([self._gains(trial) for trial in complete])]

    def _gains(self, trial: Trial) -> list[float]:
        return [each.sign * value for each, value in zip(self._request.objectives, trial.values or (), strict=True)]

    def _result(self) -> SearchResult:
        best = self._chosen()
        if best is None:
            failures = [f"point {trial.number}: {trial.failure}" for trial in self._trials if trial.failure][:3]
            raise EvaluationError(
                [f"{self._folder.root}: no point got a score", *failures, *self._folder.said_by_score()]
            )
        objectives = self._request.objectives
        notes = self._merge_best(best)
        validation = self._validation(best.number)
        apart, test, more = self._test(best, validation)
        points = [self._point(trial, best, validation) for trial in self._trials]
        complete = [trial for trial in self._trials if trial.values is not None]
        result = SearchResult(
            objectives=objectives,
            sampler=self._request.sampler,
            seed=self._request.seed,
            space=self._request.space.as_dict(),
            score=dict(self._scorer.about()),
            points=tuple(points),
            points_of_space=self._request.space.size,
            best=best.number,
            front=tuple(trial.number for trial in self._front(complete)) if len(objectives) > 1 else (best.number,),
            level=tuple(
                each.number for each in points if len(objectives) == 1 and each.behind and each.behind[0].holds_0
            ),
            apart=apart,
            test=tuple(evidence.estimate(each, test) for each in objectives) if test else None,
            optimism=tuple(evidence.optimism(each, validation, test) for each in objectives) if test else None,
            scores={name: measure.value for name, measure in (test or {}).items()},
            seconds={
                "merging": round(sum(point.merge_seconds for point in points), 3),
                "scoring": round(sum(point.score_seconds for point in points), 3),
            },
            agents=self._agents,
            notes=(*self._notes, *notes, *more),
        )
        self._folder.write("search.json", dumped(result.to_dict()))
        return result

    def _point(self, trial: Trial, best: Trial, of_best: Scores) -> TriedPoint:
        merge, score = (float(trial.fingerprint.get(key, 0.0)) for key in (_MERGE, _SCORE))
        if trial.state == "failed":
            return TriedPoint(trial.number, trial.point, trial.state, merge, score, failure=trial.failure)
        scores = self._validation(trial.number)
        objectives = self._request.objectives
        behind = None
        if trial.state == "complete" and trial.number != best.number:
            behind = tuple(evidence.difference(each, scores, of_best) for each in objectives)
        return TriedPoint(
            trial.number,
            trial.point,
            trial.state,
            merge,
            score,
            tuple(evidence.estimate(each, scores) for each in objectives),
            behind,
            {name: measure.value for name, measure in scores.items()},
        )

    def _merge_best(self, best: Trial) -> list[str]:
        """Merge the best point to `best`, unless it is there already. Returns its warnings."""
        name = f"trials/{best.number}.yaml"
        try:
            recipe = read_recipe(self._folder.root / name)
        except RecipeError as error:
            text = f"{self._folder.root / name}: cannot be read; remove the folder, or name another"
            raise EvaluationError([text, *error.problems]) from error
        text = portable(recipe, self._folder.root).to_yaml()
        if self._folder.text("recipe.yaml") == text and self._folder.has_best():
            with suppress(RecipeError):  # a damaged record: merge it again
                return list(read_record(self._folder.best / RECORDS[0]).warnings)
        record = merge_point(self._recipe, best.point, self._folder.best, self._on_merge, self._request.options)
        self._folder.write("recipe.yaml", text)
        return list(record.warnings)

    def _test(self, best: Trial, validation: Scores) -> tuple[str | None, Scores | None, list[str]]:
        """Score the best point on test items: how they are kept apart, the scores, and why there are none."""
        if not self._scorer.has_test:
            return None, None, []
        if not self._scorer.splits:
            if any(measure.items is None for measure in validation.values()):
                return (
                    None,
                    None,
                    [
                        "the best point is reported on the items that it was chosen by, so its score is too high by an "
                        "unknown amount: the score gives no items, and has no parameter split"
                    ],
                )
            test: Scores = _split(self._scorer, self._folder.scores(best.number) or {}, "test")
            return "every second item is for the test", test, []
        apart = "the score's own items for validation and test"
        kept = self._folder.scores(best.number, "test")
        if kept is not None:
            return apart, kept, []
        try:
            with closing(self._scorer.parts(self._folder.best, "test")) as parts:
                test = joined(parts)
            check_names(test, self._names)
            for each in self._request.objectives:
                _finite(each, test)
        except (ScoreFailedError, EvaluationError) as error:
            return apart, None, [f"the best point could not be scored on test items: {error}"]
        self._folder.keep(best.number, test, "test")
        return apart, test, []


def _split(scorer: Scorer, scores: Scores, split: Split) -> dict[str, Measure]:
    """The part of the items for one purpose, where the score itself does not keep them apart."""
    if scorer.splits or any(measure.items is None for measure in scores.values()):
        return dict(scores)
    return {name: measure.half(split) for name, measure in scores.items()}


def _finite(objective: Objective, scores: Scores) -> float:
    value = objective.value(scores)
    if not math.isfinite(value):
        raise ScoreFailedError(f"{objective.name}: has no value, because there are no items to divide by")
    return value


def _seconds(began: float, merged: float | None) -> dict[str, float]:
    now = time.monotonic()
    merge = (merged or now) - began
    return {_MERGE: round(merge, 3), _SCORE: round(now - began - merge, 3)}
