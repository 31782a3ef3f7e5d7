"""`SearchResult`: the content of `search.json`, which terminal, page and the tab Choose show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from ramerge import __version__
from ramerge.core.foundation.typedjson import read_model
from ramerge.scoring.scores import Objective
from ramerge.sdk.text import Displayed, JsonLimits
from ramerge.searches.evidence import Estimate
from ramerge.searches.space import Point

SCHEMA = "ramerge.search/1"
BY_AGREEMENT = "agreement"
"""The key of `SearchResult.score` for a search by prompts: fingerprints of the agents' calibrations."""
TEMPER = "temper"
"""The key of `SearchResult.score` for the divisor of negative log-likelihoods in mass."""
SUM_FIRST = "sum-first"
"""The `SearchResult.sampler` if nothing varies explicitly: the score of the sum decides which points come next."""
_LIMITS = JsonLimits(size=64_000_000, signs=3_000_000)


@dataclass(frozen=True, repr=False)
class TriedPoint(Displayed):
    """A point of a search, and its result.

    Attributes:
        number: the number N of the trial: `trials/N.json` holds its scores, `trials/N.yaml` its recipe.
        point: the varied values, by key of the recipe.
        state: `complete`, `pruned` (given up early) or `failed`.
        merge_seconds, score_seconds: the time that merging and scoring took.
        objectives: values on validation items, in the search's order of objectives; for a pruned point, on a part of
            the items.
        behind: the objectives' paired differences to the best point; None for the best and for incomplete points.
        scores: every figure by name, on validation items.
        failure: why the point has no score.
        nll: in a search by prompts, the negative log-likelihood per token, in nats, averaged over agents.
        right: by agent, the share of held-out prompts with a right reply by the candidate; empty if it generated no
            replies.
    """

    number: int
    point: Point
    state: str
    merge_seconds: float
    score_seconds: float
    objectives: tuple[Estimate, ...] = ()
    behind: tuple[Estimate, ...] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    nll: float | None = None
    right: Mapping[str, float] = field(default_factory=dict)

    def _summary(self) -> Mapping[str, object]:
        return _figures_of(self)


@dataclass(frozen=True, repr=False)
class SearchResult(Displayed):
    """The result of a search, with all its points.

    Attributes:
        objectives: the optimized objectives.
        sampler, seed: the sampler of the points, and its seed.
        space: the space of the search, as plain values.
        score: the description of the score.
        points: every tried point.
        points_of_space: the number of points in the space; None if it is infinite.
        best: the number of the best point.
        front: numbers of the Pareto front; only the best with one objective.
        level: with one objective, numbers of the points that cannot be distinguished from the best at 95 %.
        apart: how validation and test items are separated, as a sentence; None if they are not.
        test: the best point's objectives on items that did not decide the choice.
        optimism: how much better each objective is on the items of the choice; above 0, these overestimate it.
        scores: every figure of the best point on test items.
        seconds: time of the whole search, and of `merging` and `scoring` in it; the sum of all runs.
        notes: notes for the reader.
        agents: for each figure, the score of the best agent, if agents were scored; in a search by prompts whose best
            point has generated replies, the share of held-out prompts with a right reply by each agent.
        over_agents: how much better the best point is than these agents, on the same items; None if unknown.
        compared_items: for each figure, the number of items on which the best point and the agents are compared; 0 if
            the score gives no items.
        verdict: the sentence on whether the best point is worse than its agents, better, as good, or undecided; empty
            with several objectives.

    Example:
        >>> settings = ramerge.SearchSettings(html=False)
        >>> result = ramerge.search("recipe.yaml", "found", score, vary={"parameters.r": [0, 0.1]}, settings=settings)
        >>> result.winner.point["parameters.r"] in (0, 0.1)
        True
        >>> result.to_dict()["schema"]
        'ramerge.search/1'
    """

    _all_figures: ClassVar[str] = "ranked"

    objectives: tuple[Objective, ...]
    sampler: str
    seed: int
    space: Mapping[str, Any]
    score: Mapping[str, Any]
    points: tuple[TriedPoint, ...]
    points_of_space: int | None
    best: int
    front: tuple[int, ...]
    level: tuple[int, ...]
    apart: str | None
    test: tuple[Estimate, ...] | None
    optimism: tuple[Estimate, ...] | None
    scores: Mapping[str, float]
    seconds: Mapping[str, float]
    notes: tuple[str, ...] = ()
    agents: Mapping[str, float] = field(default_factory=dict)
    over_agents: Estimate | None = None
    compared_items: Mapping[str, int] = field(default_factory=dict)
    verdict: str = ""

    def _summary(self) -> Mapping[str, object]:
        verdict = {"verdict": self.verdict} if self.verdict else {}
        choice = {"best": self.best, **self.winner.point, "scores": self.winner.scores}
        return {**choice, **verdict, **counts(self.points)}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        names = [objective.name for objective in self.objectives]
        return [_figures_of(point, names, is_tied=point.number in self.level) for point in self.ranked]

    @property
    def winner(self) -> TriedPoint:
        """The best point of the search."""
        return next(point for point in self.points if point.number == self.best)

    @property
    def ranked(self) -> list[TriedPoint]:
        """The points with a score, best first; then pruned and failed points."""
        order = {"complete": 0, "pruned": 1, "failed": 2}
        front = set(self.front)

        def key(point: TriedPoint) -> tuple[Any, ...]:
            value = self.objectives[0].sign * point.objectives[0].value if point.objectives else 0.0
            return (order[point.state], point.number not in front, point.number != self.best, -value, point.number)

        return sorted(self.points, key=key)

    def to_dict(self) -> dict[str, Any]:
        """Return the result of a search as plain values, as in `search.json`."""
        return {"schema": SCHEMA, "ramerge": __version__, **asdict(self)}


def _figures_of(point: TriedPoint, objectives: Sequence[str] = (), *, is_tied: bool = False) -> dict[str, object]:
    """Return the figures of a point for its summary line and its row in a table.

    Args:
        objectives: the names of the objectives; by default, their numbers.
        is_tied: whether the point cannot be distinguished from the best.
    """
    names = objectives or [f"objective {number}" for number in range(1, len(point.objectives) + 1)]
    values: dict[str, object] = {name: each.value for name, each in zip(names, point.objectives, strict=False)}
    if point.behind is not None:
        values |= {f"{name} to the best": each.with_interval() for name, each in zip(names, point.behind, strict=False)}
    if point.right:
        values["right"] = fmean(point.right.values())
    if is_tied:
        values["tied"] = "with the best"
    failure = {"failure": point.failure} if point.failure else {}
    return {"number": point.number, **point.point, "state": point.state, **values, **failure}


def read_search(path: Path) -> SearchResult:
    """Read a search from its `search.json`.

    Raises:
        RecipeError: the file cannot be read, or is not a search.
    """
    return read_model(path, SearchResult, _LIMITS, "search")


def counts(points: Sequence[TriedPoint]) -> dict[str, int]:
    """Return the number of points of a search in each state."""
    return {state: sum(point.state == state for point in points) for state in ("complete", "pruned", "failed")}
