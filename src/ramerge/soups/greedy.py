"""Greedy soup, as in Model Soups (Wortsman et al. 2022, arXiv 2203.05482, recipe 1).

All checkpoints are scored and sorted, the best one first. Each is added in turn to the checkpoints that are kept, and
kept itself if the uniform soup of them does not score worse than before. Scores, recipes and what was scored are kept
in a folder as that of `ramerge search`, from which an interrupted run resumes, also with another objective: scores have
all figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ramerge import EvaluationError, Options, PlanError, Progress, merge, plan
from ramerge.sdk.outputs import claim_folder
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document, check, portable, reads_of
from ramerge.sdk.tensors import state_of
from ramerge.sdk.text import dumped
from ramerge.searches.folder import Folder, search_folder
from ramerge.searches.run import MakeScorer
from ramerge.searches.scores import (
    Objective,
    ScoreFailedError,
    Scorer,
    Scores,
    Split,
    check_objectives,
    joined,
)
from ramerge.searches.settings import SearchSettings
from ramerge.soups.checkpoints import RunCheckpoint, agents_of

_STAGE = "greedy soup"
_NAMED = 3
"""Members of a soup that are named; of more, how many there are."""


@dataclass(frozen=True)
class Tried:
    """A soup that was scored in the greedy search.

    Attributes:
        members: names of the checkpoints in it.
        score: what it was judged by; None if it could not be scored.
        held_out: its score on every second item, which it was not judged by; None if the score has no items.
        kept: of a single checkpoint, whether it could be scored; of a soup, whether its last member was kept.
        failure: why it could not be scored.
    """

    members: tuple[str, ...]
    score: float | None
    held_out: float | None
    kept: bool
    failure: str = ""


@dataclass(frozen=True)
class GreedyResult:
    """The result of a greedy soup, the content of `soup.json`.

    Attributes:
        members: the checkpoints in the soup, in the order of their steps.
        trials: every soup that was scored, in order: first each checkpoint by itself.
        objective: the figure that it was chosen by.
    """

    members: tuple[str, ...]
    trials: tuple[Tried, ...]
    objective: str

    def to_json(self) -> str:
        """The text of `soup.json`."""
        return dumped(asdict(self))


def greedy_soup(
    recipe: Document,
    run: Sequence[RunCheckpoint],
    taken: Sequence[RunCheckpoint],
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
        recipe: of the uniform soup of all that are taken.
        run: the run's checkpoints.
        taken: those that may be in the soup.
        out: the folder.
        make_scorer: as for a search.
        objective: what is to be as good as possible.
        options: how every merge is carried out.
        listen: gets a `Progress` after each that was scored.
        most_failures: as for a search.

    Raises:
        EvaluationError: no checkpoint got a score, too many in a row got none, the objective is no figure of the score,
            or the folder holds something else.
        RamergeError: as `merge` raises.
    """
    made = plan(recipe, options=options)
    if made.problems:
        raise PlanError(made.problems)
    claim_folder(out, reads_of(recipe))
    loading = Progress(_STAGE, 0, 2 * len(taken) - 1, "soups", "loading the score")
    with search_folder(out) as folder, closing(make_scorer(folder, lambda: listen(loading))) as scorer:
        folder.check_asked(
            {
                "recipe": recipe.as_dict(),
                "inputs": state_of(made.details.inputs.files),
                "score": dict(scorer.about()),
            }
        )
        try:
            return _Greedy(recipe, run, taken, folder, scorer, objective, options, listen, most_failures).find()
        finally:
            folder.clear()


@dataclass
class _Greedy:
    recipe: Document
    run: Sequence[RunCheckpoint]
    taken: Sequence[RunCheckpoint]
    folder: Folder
    scorer: Scorer
    objective: Objective
    options: Options
    listen: Listener
    most_failures: int
    _figures: list[str] = field(default_factory=list)
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        self._numbers = self.folder.members()

    def find(self) -> GreedyResult:
        trials = [self._try(place, [one]) for place, one in enumerate(self.taken)]
        scored = [(one, tried) for one, tried in zip(self.taken, trials, strict=True) if tried.kept]
        if not scored:
            failures = [f"{tried.members[0]}: {tried.failure}" for tried in trials[:3]]
            raise EvaluationError(
                [f"{self.folder.root}: no checkpoint got a score", *failures, *self.folder.said_by_score()]
            )
        ranked = sorted(scored, key=lambda pair: self._gain(pair[1]), reverse=True)
        (first, best), *others = ranked
        kept = [first]
        for one, _ in others:
            tried = self._try(len(trials), [*kept, one])
            better = tried.score is not None and self._gain(tried) >= self._gain(best)
            trials.append(replace(tried, kept=better))
            if better:
                kept, best = [*kept, one], tried
        document = self._document(kept)
        record = merge(document, self.folder.best, options=self._options)
        result = GreedyResult(tuple(record.agents), tuple(trials), self.objective.name)
        self.folder.write("recipe.yaml", portable(check(document), self.folder.root).to_yaml())
        self.folder.write("soup.json", result.to_json())
        return result

    def _gain(self, tried: Tried) -> float:
        assert tried.score is not None
        return self.objective.sign * tried.score

    def _try(self, place: int, members: Sequence[RunCheckpoint]) -> Tried:
        """Merge and score a soup, unless an earlier run has."""
        names = tuple(one.name for one in members)
        document = self._document(members)
        listed = tuple(document.agents)
        number = self._numbers.setdefault(listed, max(self._numbers.values(), default=-1) + 1)
        try:
            scores = self.folder.scores(number)
            if scores is None:
                merge(document, self.folder.candidate, options=self._options)
                self.folder.write(f"trials/{number}.txt", "\n".join(listed) + "\n")
                with closing(self.scorer.parts(self.folder.candidate, "validation")) as parts:
                    scores = joined(parts)
                self.folder.keep(number, scores)
            if not self._figures:  # after they are kept: a run with the right objective uses them
                check_objectives([self.objective], scores)
            self._figures = self._figures or sorted(scores)
            if self._figures != sorted(scores):  # means of other things cannot be compared
                one, other = ", ".join(self._figures), ", ".join(sorted(scores))
                raise EvaluationError(f"{names[-1]} was scored by {other}, and those before by {one}; score all alike")
            tried = Tried(names, self._value(scores, "validation"), self._value(scores, "test"), True)
        except ScoreFailedError as error:
            tried = Tried(names, None, None, False, str(error))
        self._in_a_row = self._in_a_row + 1 if tried.failure else 0
        self.listen(Progress(_STAGE, place + 1, 2 * len(self.taken) - 1, "soups"))
        if self.most_failures and self._in_a_row >= self.most_failures:
            raise EvaluationError(
                [
                    f"{self._in_a_row} in a row got no score; the last, {' + '.join(names)}: {tried.failure} "
                    "(--most-failures 0 never stops)",
                    *self.folder.said_by_score(),
                ]
            )
        return tried

    def _value(self, scores: Scores, split: Split) -> float | None:
        """The score on one half of the items; without items, that by which it was judged."""
        has_items = not self.scorer.splits and all(measure.items is not None for measure in scores.values())
        if not has_items:
            return self.objective.value(scores) if split == "validation" else None
        return self.objective.value({name: measure.half(split) for name, measure in scores.items()})

    @property
    def _options(self) -> Options:
        return replace(self.options, overwrite=True)

    def _document(self, members: Sequence[RunCheckpoint]) -> Document:
        ordered = sorted(members, key=lambda one: one.step)
        agents = agents_of(ordered, self.run, self.recipe.stated("base"))
        return self.recipe.replacing({"method": "uniform", "agents": agents})


def failures_of(result: GreedyResult) -> list[str]:
    """Warnings about checkpoints that could not be scored."""
    return [
        f"{' + '.join(tried.members)}: could not be scored, and is left out: {tried.failure}"
        for tried in result.trials
        if tried.failure
    ]


def lines_of(result: GreedyResult, out: Path) -> list[str]:
    """The lines of a greedy soup for the terminal."""
    from ramerge.sdk.commands import table

    rows = []
    for tried in result.trials:
        *others, last = tried.members
        name = f"{len(others)} kept + {last}" if len(others) >= _NAMED else " + ".join(tried.members)
        outcome = "not kept" if not tried.kept else "kept" if others else ""
        rows.append([name, _number(tried.score), _number(tried.held_out), tried.failure or outcome])
    return [
        *table(["soup", result.objective, "held out", ""], rows),
        f"{out / 'best'}: the uniform soup of {', '.join(result.members)}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
