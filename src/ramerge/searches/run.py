"""The whole search: a contest of the points of a space; then the best, on items that it was not chosen by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import ramerge
from ramerge import EvaluationError, Options, Plan, PlanError
from ramerge.scoring.scores import (
    ScoreFailedError,
    Scorer,
    Scores,
    check_names,
    join,
    objectives_of,
)
from ramerge.sdk.options import missing
from ramerge.sdk.recipes import Document
from ramerge.sdk.tensors import state_of
from ramerge.sdk.text import dumped, quantity
from ramerge.searches import evidence
from ramerge.searches.contest import (
    ChangedInputsError,
    Contest,
    Strategy,
    TooManyFailuresError,
    finite,
    split_of,
    write_best,
)
from ramerge.searches.folder import Folder, search_folder
from ramerge.searches.mass import MassScorer, nll_of
from ramerge.searches.own_replies import Choice, OwnReplies, Shares
from ramerge.searches.points import document_of
from ramerge.searches.results import TEMPER, SearchResult, TriedPoint
from ramerge.searches.settings import SearchSettings
from ramerge.searches.space import Point, Space
from ramerge.searches.strategies import STRATEGIES, Question, StrategyKind, SumFirst, key_of
from ramerge.searches.trials import Trial

TRIALS = 30
DEFAULT = "tpe"
_MOST_PLANS = 64
"""Plans that are held, which take some megabytes each: those that check a search, and the latest."""


MakeScorer: TypeAlias = Callable[[Folder, Callable[[], None]], Scorer]
"""Makes the scorer of a folder. The function is called while a score function is loaded, which may take long."""


@dataclass(frozen=True)
class Branches:
    """Points of a search after the first, which is the plain sum; agents are scored before it.

    Attributes:
        agents: their names.
        good: the points where the sum is about as good as the agents' own mean over figures.
        poor: the points where it is not.
    """

    agents: tuple[str, ...]
    good: tuple[Point, ...]
    poor: tuple[Point, ...]


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        done, total: points; while replies and statistics are gathered, prompts.
        best: the first objective's best value so far.
        failed: points that failed.
        is_generating: whether tied candidates reply to the held-out prompts, after the last point; these are counted.
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
    is_generating: bool = False
    is_loading: bool = False


Listener: TypeAlias = Callable[[SearchProgress], None]


@dataclass
class PlannedPoints:
    """The candidates of a search: points of its space, each planned once.

    Attributes:
        recipe: what points change.
        options: how merges are carried out.
        out: the folder of the search; None where merges are scored in memory.
        description: what else decides the results of points; results of others are not mixed with these. By default the
            recipe.
    """

    recipe: Document
    options: Options
    out: Path | None = None
    description: Mapping[str, object] = field(default_factory=dict)
    _plans: dict[str, Plan] = field(default_factory=dict, init=False)
    _state: dict[str, str] = field(default_factory=dict, init=False)

    def plan(self, point: Point) -> Plan:
        """The plan of a point's merge.

        Raises:
            RecipeError: its recipe is wrong.
            ChangedInputsError: an input has changed since another point was planned.
        """
        key = key_of(point)
        if key not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            options = replace(self.options, overwrite=True)  # of the last candidate
            place = self.out / "candidate" if self.out is not None else None
            plan = ramerge.plan(document_of(self.recipe, point), place, options=options)
            state = state_of(plan.details.inputs.files)
            if changes := [path for path in state if self._state.get(path, state[path]) != state[path]]:
                raise ChangedInputsError(
                    f"{changes[0]}: has changed while the search ran, so its merges cannot be compared; name another "
                    "folder, and search again"
                )
            self._state |= state
            self._plans[key] = plan
        return self._plans[key]

    def content(self, space: Space) -> dict[str, object]:
        """The description of a search of these points, as far as it is known before anything is read."""
        return {**(self.description or {"recipe": self.recipe.as_dict()}), "space": space.as_dict()}

    def state_of_first(self, space: Space, methods: Iterable[str]) -> dict[str, str]:
        """The state of the inputs of the first point with each of some methods.

        Raises:
            RecipeError: the recipe of one is wrong.
            PlanError: one cannot be merged; all problems are listed.
        """
        plans = [
            self.plan({"method": method} | {axis.key: axis.domain.extremes()[0] for axis in space.axes_of(method)})
            for method in methods
        ]
        if problems := [problem for plan in plans for problem in plan.problems]:
            raise PlanError(dict.fromkeys(problems))
        return {path: state for plan in plans for path, state in state_of(plan.details.inputs.files).items()}


def search(
    candidates: PlannedPoints,
    out: Path,
    space: Space,
    settings: SearchSettings,
    make_scorer: MakeScorer,
    *,
    branches: Branches | None = None,
    notes: Sequence[str] = (),
    judge: OwnReplies | None = None,
    on_progress: Listener = lambda _: None,
) -> SearchResult:
    """Carry out a search: try points of its space, and keep the one that scores best.

    An interrupted search in the folder is resumed: only the points that are missing are tried. Notes are kept with the
    result. A judge chooses between the best and those that are tied with it.
    """
    strategy_of(settings, space)
    objectives = objectives_of(settings.objectives)
    with ExitStack() as stack:
        folder = stack.enter_context(search_folder(out))
        inputs = candidates.state_of_first(space, space.methods)
        required_count = required_trials(settings, space)
        loading = SearchProgress(0, required_count, None, 0, is_loading=True)
        scorer = stack.enter_context(closing(make_scorer(folder, lambda: on_progress(loading))))
        outside = {path: state for path, state in sorted(inputs.items()) if not is_inside(path, folder.root)}
        folder.check_description(
            {**candidates.content(space), "inputs": outside, "score": dict(scorer.about())}, objectives
        )
        stack.callback(folder.clear)
        contest = Contest(
            candidates,
            scorer,
            objectives,
            folder.trials,
            folder.root,
            settings.prune,
            settings.most_failures,
            _trials_of(folder, space),
        )
        agents = _scores_of_agents(contest, folder, branches) if branches is not None else {}
        _try_points(contest, _strategy(settings, space, branches, folder, agents), required_count, folder, on_progress)

        def on_reply(count_so_far: int, count: int) -> None:
            on_progress(SearchProgress(count_so_far, count, None, 0, is_generating=True))

        choice = judge.choose(contest, on_reply) if judge is not None else Choice(contest.best())
        if choice.best is None:
            failures = [f"point {trial.number}: {trial.failure}" for trial in contest.trials if trial.failure][:3]
            raise EvaluationError([f"{folder.root}: no point got a score", *failures, *folder.said_by_score()])
        all_notes = (*notes, *choice.notes)
        return _Report(
            contest, space, settings, folder, all_notes, _best_of_each(agents), choice.best, choice.shares
        ).result()


def required_trials(settings: SearchSettings, space: Space) -> int:
    """The number of points to try."""
    most = space.size if settings.sampler == "grid" and space.size is not None else TRIALS
    required_count = most if settings.trials is None else settings.trials
    return required_count if space.size is None else min(required_count, space.size)


def strategy_of(settings: SearchSettings, space: Space) -> StrategyKind:
    """The strategy of a search.

    Raises:
        EvaluationError: it is not installed, or not for this space.
    """
    name = settings.sampler or DEFAULT
    kind = STRATEGIES[name]
    if problems := missing({"search": kind.libraries}, who=f"--sampler {name} needs") or kind.problems(space):
        raise EvaluationError(problems)
    return kind


def is_inside(path: str, folder: Path) -> bool:
    """Whether a file is in the folder of a search, which may be moved: fingerprints of what was gathered count."""
    return Path(path).resolve().is_relative_to(folder.resolve())


def _trials_of(folder: Folder, space: Space) -> list[Trial]:
    """The trials of earlier runs in a folder, which may come from a stranger."""
    trials = folder.trials.read()
    for trial in trials:
        if not space.has(trial.point):
            raise EvaluationError(
                f"{folder.trials.root / str(trial.number)}.json: its point is none of this search; name another folder"
            )
    return trials


def _strategy(
    settings: SearchSettings,
    space: Space,
    branches: Branches | None,
    folder: Folder,
    agents: Mapping[str, Mapping[str, float]],
) -> Strategy:
    if branches is not None:
        return SumFirst(list(space.points()), fmean(_best_of_each(agents).values()), branches.good, branches.poor)
    question = Question(space, objectives_of(settings.objectives), settings.seed, folder.journal)
    return strategy_of(settings, space).start(question)


def _try_points(
    contest: Contest, strategy: Strategy, required_count: int, folder: Folder, on_progress: Listener
) -> None:
    def report() -> None:
        count = strategy.count(contest.standings())
        best = contest.best() if len(contest.objectives) == 1 else None
        failures = sum(trial.state == "failed" for trial in contest.trials)
        total = max(required_count if count is None else min(required_count, count), len(contest.trials))
        on_progress(SearchProgress(len(contest.trials), total, contest.values(best)[0] if best else None, failures))

    try:
        contest.run(strategy, required_count, report)
    except TooManyFailuresError as error:
        raise EvaluationError(
            [
                f"{quantity(error.count, 'point')} in a row failed; the last: {error.trial.failure}; all are kept in "
                f"{folder.root}, and the same command resumes with the next point (--most-failures 0 never stops)",
                *folder.said_by_score(),
            ]
        ) from error


def _scores_of_agents(contest: Contest, folder: Folder, branches: Branches) -> dict[str, dict[str, float]]:
    """The scores of agents by figure, kept in the folder of the search."""
    agents = folder.agents()
    for name in branches.agents:
        if name in agents:
            continue
        contest.candidates.plan({"method": "passthrough", "parameters.agent": name}).merge()
        try:
            with closing(contest.scorer.parts(contest.candidate, "validation")) as parts:
                scores = split_of(contest.scorer, join(parts), "validation")
        except ScoreFailedError as error:
            raise EvaluationError(f"agent {name} got no score: {error}") from error
        agents[name] = {figure: measure.value for figure, measure in scores.items()}
        folder.keep_agents(agents)
    return agents


def _best_of_each(agents: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The score of the best agent for each figure."""
    figures = dict.fromkeys(figure for scores in agents.values() for figure in scores)
    return {each: max(scores.get(each, -math.inf) for scores in agents.values()) for each in figures}


@dataclass(frozen=True)
class _Report:
    """Makes the result of a search from its contest."""

    contest: Contest
    space: Space
    settings: SearchSettings
    folder: Folder
    notes: Sequence[str]
    agents: Mapping[str, float]
    best: Trial
    shares: Shares

    def result(self) -> SearchResult:
        contest, objectives, best = self.contest, self.contest.objectives, self.best
        warnings = write_best(self.folder, contest.candidates.plan(best.point), best.number)
        validation = contest.figures(best)
        apart, test, more = self._test(best, validation)
        points = [self._point(trial, best, validation) for trial in contest.trials]
        is_one = len(objectives) == 1
        result = SearchResult(
            objectives=tuple(objectives),
            sampler=self.settings.sampler or DEFAULT,
            seed=self.settings.seed,
            space=self.space.as_dict(),
            score=self._score(),
            points=tuple(points),
            points_of_space=self.space.size,
            best=best.number,
            front=(best.number,) if is_one else tuple(trial.number for trial in contest.front()),
            level=tuple(each.number for each in points if is_one and each.behind and each.behind[0].holds_0),
            apart=apart,
            test=tuple(evidence.estimate(each, test) for each in objectives) if test else None,
            optimism=tuple(evidence.optimism(each, validation, test) for each in objectives) if test else None,
            scores={name: measure.value for name, measure in (test or {}).items()},
            seconds={
                "merging": round(sum(point.merge_seconds for point in points), 3),
                "scoring": round(sum(point.score_seconds for point in points), 3),
            },
            agents=self.agents,
            notes=(*self.notes, *warnings, *more),
        )
        self.folder.write("search.json", dumped(result.to_dict()))
        return result

    def _score(self) -> dict[str, object]:
        scorer = self.contest.scorer
        if not isinstance(scorer, MassScorer):
            return dict(scorer.about())
        temper = scorer.temper([trial.scores for trial in self.contest.complete()])
        return {**scorer.about(), TEMPER: round(temper, 3)}

    def _point(self, trial: Trial, best: Trial, of_best: Scores) -> TriedPoint:
        point = TriedPoint(trial.number, trial.point, trial.state, trial.merge_seconds, trial.score_seconds)
        if trial.state == "failed":
            return replace(point, failure=trial.failure)
        scores, objectives = self.contest.figures(trial), self.contest.objectives
        behind = None
        if trial.state == "complete" and trial.number != best.number:
            behind = tuple(evidence.difference(each, scores, of_best) for each in objectives)
        return replace(
            point,
            objectives=tuple(evidence.estimate(each, scores) for each in objectives),
            behind=behind,
            scores={name: measure.value for name, measure in scores.items()},
            nll=nll_of(trial.scores) if isinstance(self.contest.scorer, MassScorer) else None,
            right=self.shares.get(trial.number, {}),
        )

    def _test(self, best: Trial, validation: Scores) -> tuple[str | None, Scores | None, list[str]]:
        """Score the best point on test items: how they are kept apart, the scores, and why there are none."""
        scorer = self.contest.scorer
        if not scorer.has_test:
            return None, None, []
        if not scorer.splits:
            if any(measure.items is None for measure in validation.values()):
                text = (
                    "the best point is reported on the items that it was chosen by, so its score is too high by an "
                    "unknown amount: the score gives no items, and has no parameter split"
                )
                return None, None, [text]
            return "every second item is for the test", self.contest.figures(best, "test"), []
        apart = "the score's own items for validation and test"
        test = self.folder.trials.test(best.number)
        if test is not None:
            return apart, test, []
        try:
            with closing(scorer.parts(self.folder.best, "test")) as parts:
                test = join(parts)
            check_names(test, list(validation))
            for each in self.contest.objectives:
                finite(each, test)
        except (ScoreFailedError, EvaluationError) as error:
            return apart, None, [f"the best point could not be scored on test items: {error}"]
        self.folder.trials.keep_test(best.number, test)
        return apart, test, []
