"""Carries out a search: a contest of the points of a space; then scores the best on items that did not decide the
choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import ramerge
from ramerge import EvaluationError, Options, Plan, PlanError
from ramerge.scoring.scores import (
    Measure,
    Objective,
    ScoreFailedError,
    Scorer,
    Scores,
    Split,
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
from ramerge.searches.own_replies import Choice, OwnReplies
from ramerge.searches.points import document_of
from ramerge.searches.results import SUM_FIRST, TEMPER, SearchResult, TriedPoint
from ramerge.searches.settings import SearchSettings
from ramerge.searches.space import Point, Space
from ramerge.searches.strategies import STRATEGIES, Question, StrategyKind, SumFirst, key_of
from ramerge.searches.text import comparison_sentences
from ramerge.searches.trials import Trial

TRIALS = 30
DEFAULT = "tpe"
_MOST_PLANS = 64
"""The most plans held in memory, which take some megabytes each: those that check a search, and the latest."""


MakeScorer: TypeAlias = Callable[[Folder, Callable[[], None]], Scorer]
"""Makes the scorer for a folder. It calls the given function while it loads a score function, which may take long."""


@dataclass(frozen=True)
class Branches:
    """Points of a search after the plain sum, which comes first; agents are scored before it.

    Attributes:
        good: the points to try if the sum is about as good as the agents' own mean over figures.
        poor: the points to try if it is not.
    """

    good: tuple[Point, ...]
    poor: tuple[Point, ...]


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        done, total: numbers of points; of prompts while gathering, of candidates while generating.
        best: the first objective's best value so far.
        failed: the number of failed points.
        is_generating: whether tied candidates reply to the held-out prompts, after the last point.
        is_gathering: whether agents' replies and statistics are gathered, before the first point.
        is_loading: whether the score function is being loaded, before the first point.

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
        recipe: the recipe that points change.
        options: how to carry out merges.
        out: the folder of the search; None if merges are scored in memory.
        description: what else determines the results of points; results with different descriptions are never mixed. By
            default, the recipe.
    """

    recipe: Document
    options: Options
    out: Path | None = None
    description: Mapping[str, object] = field(default_factory=dict)
    _plans: dict[str, Plan] = field(default_factory=dict, init=False)
    _state: dict[str, str] = field(default_factory=dict, init=False)

    def plan(self, point: Point) -> Plan:
        """Return the plan of a point's merge.

        Raises:
            RecipeError: the point's recipe is wrong.
            ChangedInputsError: an input has changed since another point was planned.
        """
        key = key_of(point)
        if key not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = self._plan_document(document_of(self.recipe, point))
        return self._plans[key]

    def plan_agent(self, name: str) -> Plan:
        """Return the plan of a merge that equals an agent.

        Raises:
            RecipeError, ChangedInputsError: as for `plan`.
        """
        point = {"method": "passthrough", "parameters.agent": name}
        return self._plan_document(document_of(self.recipe.without("rules"), point))

    def _plan_document(self, document: Document) -> Plan:
        options = replace(self.options, overwrite=True)  # of the last candidate
        place = self.out / "candidate" if self.out is not None else None
        plan = ramerge.plan(document, place, options=options)
        state = state_of(plan.details.inputs.files)
        if changes := [path for path in state if self._state.get(path, state[path]) != state[path]]:
            raise ChangedInputsError(
                f"{changes[0]}: has changed while the search ran, so its merges cannot be compared; name another "
                "folder, and search again"
            )
        self._state |= state
        return plan

    def content(self, space: Space) -> dict[str, object]:
        """Return the description of a search of these points, as far as known before anything is read."""
        return {**(self.description or {"recipe": self.recipe.as_dict()}), "space": space.as_dict()}

    def state_of_first(self, space: Space, methods: Iterable[str]) -> dict[str, str]:
        """Return the state of the inputs of the first point with each of some methods.

        Raises:
            RecipeError: the recipe of a point is wrong.
            PlanError: a point cannot be merged; all problems are listed.
        """
        plans = [
            self.plan({"method": method} | {axis.key: axis.domain.extremes()[0] for axis in space.axes_of(method)})
            for method in methods
        ]
        if problems := [problem for plan in plans for problem in plan.details.findings.problems]:
            raise PlanError(dict.fromkeys(problems))
        return {path: state for plan in plans for path, state in state_of(plan.details.inputs.files).items()}


def search(
    candidates: PlannedPoints,
    out: Path,
    space: Space,
    settings: SearchSettings,
    make_scorer: MakeScorer,
    *,
    agents: Sequence[str] = (),
    branches: Branches | None = None,
    notes: Sequence[str] = (),
    judge: OwnReplies | None = None,
    on_progress: Listener = lambda _: None,
) -> SearchResult:
    """Carry out a search: try points of its space, and keep the point that scores best.

    An interrupted search in the folder resumes: only missing points are tried. `notes` become part of the result.
    `agents` are scored before all points. The `judge` chooses between the best point and points tied with it.
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
        specialists = Specialists(contest, _scores_of_agents(agents, candidates, contest, folder))
        strategy = _make_strategy(settings, space, branches, folder, specialists)
        _try_points(contest, strategy, required_count, folder, on_progress)

        def on_reply(count_so_far: int, count: int) -> None:
            on_progress(SearchProgress(count_so_far, count, None, 0, is_generating=True))

        choice = judge.choose(contest, on_reply) if judge is not None else Choice(contest.best())
        if choice.best is None:
            failures = [f"point {trial.number}: {trial.failure}" for trial in contest.trials if trial.failure][:3]
            raise EvaluationError([f"{folder.root}: no point got a score", *failures, *folder.said_by_score()])
        all_notes = (*notes, *choice.notes)
        sampler = SUM_FIRST if branches is not None else settings.sampler or DEFAULT
        return _ResultBuilder(
            contest, space, settings, sampler, folder, all_notes, specialists, choice.best, choice
        ).result()


def required_trials(settings: SearchSettings, space: Space) -> int:
    """Return the number of points to try."""
    most = space.size if settings.sampler == "grid" and space.size is not None else TRIALS
    required_count = most if settings.trials is None else settings.trials
    return required_count if space.size is None else min(required_count, space.size)


def strategy_of(settings: SearchSettings, space: Space) -> StrategyKind:
    """Return the strategy of a search.

    Raises:
        EvaluationError: the strategy is not installed, or does not fit this space.
    """
    name = settings.sampler or DEFAULT
    kind = STRATEGIES[name]
    if problems := missing({"search": kind.libraries}, who=f"--sampler {name} needs") or kind.problems(space):
        raise EvaluationError(problems)
    return kind


def is_inside(path: str, folder: Path) -> bool:
    """Whether a file is in the folder of a search, which may be moved; such inputs count by fingerprint."""
    return Path(path).resolve().is_relative_to(folder.resolve())


def _trials_of(folder: Folder, space: Space) -> list[Trial]:
    """Read the trials of earlier runs in a folder, which may be untrusted.

    Points that failed after the last score are left out, to be tried again: their cause may be mended.
    """
    trials = folder.trials.read()
    while trials and trials[-1].state == "failed":
        trials.pop()
    for trial in trials:
        if not space.has(trial.point):
            raise EvaluationError(
                f"{folder.trials.root / str(trial.number)}.json: its point is none of this search; name another folder"
            )
    return trials


def _make_strategy(
    settings: SearchSettings,
    space: Space,
    branches: Branches | None,
    folder: Folder,
    specialists: Specialists,
) -> Strategy:
    if branches is not None:
        mean = Objective().value(specialists.scores("validation"))
        return SumFirst(list(space.points()), mean, branches.good, branches.poor)
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
                f"{folder.root}; run the same command again once the cause is mended (--most-failures 0 never stops)",
                *folder.said_by_score(),
            ]
        ) from error


def _scores_of_agents(
    names: Sequence[str], candidates: PlannedPoints, contest: Contest, folder: Folder
) -> dict[Split, dict[str, Scores]]:
    """Return the scores of agents, by the purpose of the items; they are stored in the folder of the search.

    A score that separates validation and test items itself is called for both, so that agents and the best point can be
    compared on items that did not choose the point.
    """
    scorer = contest.scorer
    splits: tuple[Split, ...] = ("validation", "test") if scorer.splits and scorer.has_test else ("validation",)
    agent_scores = folder.agents()
    for name in names:
        missing = [split for split in splits if name not in agent_scores.get(split, {})]
        if missing:
            candidates.plan_agent(name).merge()
        for split in missing:
            by_agent = agent_scores.setdefault(split, {})
            try:
                with closing(scorer.parts(contest.candidate, split)) as parts:
                    scores = join(parts)
                check_names(scores, list(next(iter(by_agent.values()), scores)))
            except ScoreFailedError as error:
                raise EvaluationError(f"agent {name} got no score: {error}") from error
            by_agent[name] = scores
            folder.keep_agents(agent_scores)
    return {split: {name: agent_scores[split][name] for name in names} for split in splits}


@dataclass(frozen=True)
class Specialists:
    """The best agent of each figure, with which merges are compared.

    Attributes:
        contest: the contest, with the scorer.
        agents: the scorer's measurements, by the purpose of the items and by agent; empty if agents were not scored.
    """

    contest: Contest
    agents: Mapping[Split, Mapping[str, Scores]]

    def scores(self, split: Split) -> dict[str, Measure]:
        """Return the score of the best agent for each figure, on the items for one purpose.

        A figure that is no objective itself is better in the direction of the first objective.
        """
        scorer = self.contest.scorer
        by_agent = self.agents.get(split if scorer.splits else "validation", {})
        splits = [split_of(scorer, scores, split) for scores in by_agent.values()]
        objectives = self.contest.objectives
        signs = {each.name: each.sign for each in objectives}

        def best(figure: str) -> Measure:
            sign = signs.get(figure, objectives[0].sign)
            return max((scores[figure] for scores in splits), key=lambda measure: sign * measure.value)

        return {figure: best(figure) for figure in (splits[0] if splits else ())}


@dataclass(frozen=True)
class _ResultBuilder:
    """Makes the result of a search from its contest."""

    contest: Contest
    space: Space
    settings: SearchSettings
    sampler: str
    folder: Folder
    notes: Sequence[str]
    specialists: Specialists
    best: Trial
    choice: Choice

    def result(self) -> SearchResult:
        contest, objectives, best = self.contest, self.contest.objectives, self.best
        warnings = write_best(self.folder, contest.candidates.plan(best.point), best.number)
        validation = contest.figures(best)
        apart, test, more = self._test_best(best, validation)
        points = [self._tried_point(trial, best, validation) for trial in contest.trials]
        is_one = len(objectives) == 1
        ours, theirs = self._compared_scores(validation, test)
        result = SearchResult(
            objectives=tuple(objectives),
            sampler=self.sampler,
            seed=self.settings.seed,
            space=self.space.as_dict(),
            score=self._score_settings(),
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
            agents={name: measure.value for name, measure in theirs.items()},
            over_agents=evidence.difference(objectives[0], ours, theirs) if theirs and is_one else None,
            compared_items={name: 0 if each.items is None else len(each.items) for name, each in theirs.items()},
            notes=(*self.notes, *warnings, *more),
        )
        result = replace(result, verdict="".join(comparison_sentences(result, self.folder.root)[-1:]))
        self.folder.write("search.json", dumped(result.to_dict()))
        return result

    def _compared_scores(self, validation: Scores, test: Scores | None) -> tuple[Scores, Scores]:
        """Return the scores of the best point and of the agents on the same items: test items if there are any."""
        if self.choice.agents:
            return self.choice.right[self.best.number], self.choice.agents
        if test is None:
            return validation, self.specialists.scores("validation")
        return test, self.specialists.scores("test")

    def _score_settings(self) -> dict[str, object]:
        scorer = self.contest.scorer
        if not isinstance(scorer, MassScorer):
            return dict(scorer.about())
        temper = scorer.temper([trial.scores for trial in self.contest.complete()])
        return {**scorer.about(), TEMPER: round(temper, 3)}

    def _tried_point(self, trial: Trial, best: Trial, of_best: Scores) -> TriedPoint:
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
            right={name: measure.value for name, measure in self.choice.right.get(trial.number, {}).items()},
        )

    def _test_best(self, best: Trial, validation: Scores) -> tuple[str | None, Scores | None, list[str]]:
        """Score the best point on test items; return how these are separated, the scores, and notes."""
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
