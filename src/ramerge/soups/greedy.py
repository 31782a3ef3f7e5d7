"""Greedy soup, as in Model Soups (Wortsman et al. 2022, arXiv 2203.05482, recipe 1).

All checkpoints are scored and sorted, best first. Each is added in turn to the kept checkpoints, and stays if their
uniform soup does not score worse than before. Scores, recipes and scored checkpoints are stored in a folder as in
`ramerge search`, from which an interrupted run resumes, even with another objective, because scores hold all figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ramerge
from ramerge import EvaluationError, Options, Plan, PlanError, Progress
from ramerge.scoring.scores import Objective, Split
from ramerge.sdk.outputs import claim_folder
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document, reads_of
from ramerge.sdk.tensors import state_of
from ramerge.sdk.text import dumped, quantity
from ramerge.searches.contest import Contest, Standing, TooManyFailuresError, write_best
from ramerge.searches.folder import Folder, search_folder
from ramerge.searches.run import MakeScorer
from ramerge.searches.settings import SearchSettings
from ramerge.searches.space import Point
from ramerge.searches.strategies import key_of
from ramerge.searches.trials import Trial
from ramerge.soups.checkpoints import RunCheckpoint, agents_of

_STAGE = "greedy soup"
_SOUP = "soup"
"""The key of a point: the names of the checkpoints in a soup, in the order of their steps."""
_SPLITS: tuple[Split, Split] = ("validation", "test")
_MOST_NAMES = 3
"""The most members of a soup that are named; beyond that, only their number is given."""


@dataclass(frozen=True)
class SoupTrial:
    """A scored soup of the greedy search.

    Attributes:
        score: the score; None if the soup could not be scored.
        held_out: its score on the held-out half of the items; None if the score has no items.
        kept: for a single checkpoint, whether it could be scored; for a soup, whether its last member stays.
    """

    members: tuple[str, ...]
    score: float | None
    held_out: float | None
    kept: bool
    failure: str = ""


@dataclass(frozen=True)
class GreedyResult:
    """The result of a greedy soup: the content of `soup.json`.

    Attributes:
        trials: all scored soups, in order; each single checkpoint comes first.
    """

    members: tuple[str, ...]
    trials: tuple[SoupTrial, ...]
    objective: str

    def to_json(self) -> str:
        """Return the text of `soup.json`."""
        return dumped(asdict(self))


def greedy_soup(
    recipe: Document,
    run: Sequence[RunCheckpoint],
    checkpoints: Sequence[RunCheckpoint],
    out: Path,
    make_scorer: MakeScorer,
    objective: Objective,
    *,
    options: Options,
    listen: Listener,
    most_failures: int = SearchSettings.most_failures,
) -> GreedyResult:
    """Find a greedy soup. The folder `out` gets `best/` with its checkpoint, `recipe.yaml` and `soup.json`.

    Args:
        recipe: the recipe of the uniform soup of all chosen checkpoints.
        listen: called with a `Progress` after each scored soup.
    """
    soup_plan = ramerge.plan(recipe, options=options)
    if soup_plan.problems:
        raise PlanError(soup_plan.details.findings.problems)
    claim_folder(out, reads_of(recipe))
    total = 2 * len(checkpoints) - 1
    loading = Progress(_STAGE, 0, total, "soups", "loading the score")
    with search_folder(out) as folder, closing(make_scorer(folder, lambda: listen(loading))) as scorer:
        folder.check_description(
            {
                "recipe": recipe.as_dict(),
                "inputs": state_of(soup_plan.details.inputs.files),
                "score": dict(scorer.about()),
            }
        )
        # failures are tried again
        finished_trials = [trial for trial in folder.trials.read() if trial.state == "complete"]
        soups = _SoupCandidates(recipe, run, {one.name: one for one in checkpoints}, options, folder.candidate)
        contest = Contest(soups, scorer, [objective], folder.trials, folder.root, False, most_failures, finished_trials)
        strategy = GreedySoup([one.name for one in checkpoints], objective)
        try:
            contest.run(
                strategy, None, lambda: listen(Progress(_STAGE, strategy.done(contest.standings()), total, "soups"))
            )
            return _write_result(contest, strategy, folder)
        except TooManyFailuresError as error:
            raise EvaluationError(
                [
                    f"stopped after {quantity(error.count, 'failure')} in a row (--most-failures 0 never stops); the "
                    f"last, {' + '.join(error.trial.point[_SOUP])}: {error.trial.failure}",
                    *folder.said_by_score(),
                ]
            ) from error
        finally:
            folder.clear()


@dataclass(frozen=True)
class _SoupStep:
    """A soup in the order of a greedy search; `standing` is None for the next soup to score."""

    members: tuple[str, ...]
    standing: Standing | None
    kept: bool


@dataclass(frozen=True)
class GreedySoup:
    """The strategy that names the soups of a greedy search."""

    names: Sequence[str]
    objective: Objective

    def ask(self, trials: Sequence[Standing]) -> Point | None:
        return next((self.point(step.members) for step in self.steps(trials) if step.standing is None), None)

    def point(self, members: Sequence[str]) -> Point:
        """Return the point of a soup of some checkpoints."""
        return {_SOUP: [name for name in self.names if name in members]}

    def count(self, trials: Sequence[Standing]) -> int:
        del trials
        return 2 * len(self.names) - 1

    def done(self, trials: Sequence[Standing]) -> int:
        """Return the number of scored soups."""
        return sum(step.standing is not None for step in self.steps(trials))

    def steps(self, trials: Sequence[Standing]) -> Iterator[_SoupStep]:
        """Yield all soups in order, up to the first unscored soup: each checkpoint by itself, then soups of several.

        Soups that only a search with another objective has scored are left out.
        """
        results = {key_of(trial.point): trial for trial in trials}
        singles: list[tuple[str, Standing]] = []
        for name in self.names:
            standing = results.get(key_of(self.point([name])))
            yield _SoupStep((name,), standing, standing is not None and standing.state == "complete")
            if standing is None:
                return
            if standing.state == "complete":
                singles.append((name, standing))
        singles.sort(key=lambda one: self._signed_value(one[1]), reverse=True)
        members = [name for name, _ in singles[:1]]
        best = self._signed_value(singles[0][1]) if singles else 0.0
        for name, _ in singles[1:]:
            standing = results.get(key_of(self.point([*members, name])))
            better = standing is not None and standing.state == "complete" and self._signed_value(standing) >= best
            yield _SoupStep((*members, name), standing, better)
            if standing is None:
                return
            if better:
                members, best = [*members, name], self._signed_value(standing)

    def _signed_value(self, standing: Standing) -> float:
        return self.objective.sign * standing.values[0]


@dataclass(frozen=True)
class _SoupCandidates:
    """The candidates of a greedy search: plans of the soups that its points name."""

    recipe: Document
    run: Sequence[RunCheckpoint]
    checkpoints: Mapping[str, RunCheckpoint]
    options: Options
    candidate: Path

    def plan(self, point: Point) -> Plan:
        checkpoints = sorted((self.checkpoints[name] for name in point[_SOUP]), key=lambda one: one.step)
        agents = agents_of(checkpoints, self.run, self.recipe.stated("base"))
        document = self.recipe.replacing({"method": "uniform", "agents": agents})
        return ramerge.plan(document, self.candidate, options=replace(self.options, overwrite=True))


def _write_result(contest: Contest, strategy: GreedySoup, folder: Folder) -> GreedyResult:
    """Merge the best soup to `best`, and write the result."""
    trials = {key_of(trial.point): trial for trial in contest.trials}
    pairs = [(step, trials[key_of(strategy.point(step.members))]) for step in strategy.steps(contest.standings())]
    results = tuple(_soup_trial(contest, trial, step) for step, trial in pairs)
    best = next((trial for step, trial in reversed(pairs) if step.kept and len(step.members) > 1), None)
    if best is None:  # a single checkpoint, by the first objective
        kept_trials = [trial for step, trial in pairs if step.kept]
        best = max(kept_trials, key=lambda trial: contest.gains(trial)[0], default=None)
    if best is None:
        failures = [f"{one.members[0]}: {one.failure}" for one in results[:3]]
        raise EvaluationError([f"{folder.root}: no checkpoint got a score", *failures, *folder.said_by_score()])
    plan = contest.candidates.plan(best.point)
    write_best(folder, plan, best.number)
    result = GreedyResult(tuple(plan.recipe.agents), results, strategy.objective.name)
    folder.write("soup.json", result.to_json())
    return result


def _soup_trial(contest: Contest, trial: Trial, step: _SoupStep) -> SoupTrial:
    if trial.failure is not None:
        return SoupTrial(step.members, None, None, False, trial.failure)
    splits = not contest.scorer.splits and all(measure.items is not None for measure in trial.scores.values())
    value, held_out = (contest.objectives[0].value(contest.figures(trial, split)) for split in _SPLITS)
    return SoupTrial(step.members, value, held_out if splits else None, step.kept)


def failures_of(result: GreedyResult) -> list[str]:
    """Return warnings about checkpoints that could not be scored."""
    return [
        f"{' + '.join(trial.members)}: could not be scored, and is left out: {trial.failure}"
        for trial in result.trials
        if trial.failure
    ]


def lines_of(result: GreedyResult, out: Path) -> list[str]:
    """Return a greedy soup as lines for the terminal."""
    from ramerge.sdk.commands import table

    rows = []
    for trial in result.trials:
        *others, last = trial.members
        name = f"{len(others)} kept + {last}" if len(others) >= _MOST_NAMES else " + ".join(trial.members)
        outcome = "not kept" if not trial.kept else "kept" if others else ""
        rows.append([name, _score_text(trial.score), _score_text(trial.held_out), trial.failure or outcome])
    return [
        *table(["soup", result.objective, "held out", ""], rows),
        f"{out / 'best'}: the uniform soup of {', '.join(result.members)}",
    ]


def _score_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
