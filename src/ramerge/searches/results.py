"""`SearchResult`: the content of `search.json`, which terminal, page and the tab Choose show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramerge import __version__
from ramerge.core.foundation.typedjson import read_model
from ramerge.scoring.scores import Objective
from ramerge.sdk.text import Displayed, JsonLimits
from ramerge.searches.evidence import Estimate
from ramerge.searches.space import Point

SCHEMA = "ramerge.search/1"
BY_AGREEMENT = "agreement"
"""The key of `SearchResult.score` where prompts have scored: fingerprints of what was gathered, by agent."""
TEMPER = "temper"
"""The key of what negative log-likelihoods of replies are divided by in their mass, likewise."""
SUM_FIRST = "sum-first"
"""`SearchResult.sampler` where nothing was said to vary: the score of the sum decides which points come next."""
_LIMITS = JsonLimits(size=64_000_000, signs=3_000_000)


@dataclass(frozen=True, repr=False)
class TriedPoint(Displayed):
    """A point of a search and its result.

    Attributes:
        number: of the trial: `trials/N.json` holds its scores, `trials/N.yaml` its recipe.
        point: what varies, by key of the recipe.
        state: `complete`, `pruned` (given up early) or `failed`.
        merge_seconds, score_seconds: what it took.
        objectives: on validation items, in the order of the search's objectives; of a pruned point on a part of them.
        behind: the objectives' paired differences to the best point; None for that one and for others than complete.
        scores: every figure by name, on validation items.
        failure: why it has no score.
        nll: of a search by prompts, the mean over agents of the negative log-likelihood per token, in nats.
        right: by agent, the share of held-out prompts to which the candidate's own reply is right; empty if it was not
            asked.
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
        objectives: what was to be as good as possible.
        sampler, seed: what drew the points.
        space: what varied.
        score: what scored.
        points: every point that was tried.
        points_of_space: how many the space has; None where there is no end of them.
        best: the number of the best point.
        front: numbers of the Pareto front; only the best where there is one objective.
        level: numbers of the points that cannot be distinguished from the best at 95 %, with one objective.
        apart: how validation and test items are kept apart, as a sentence; None where they are not.
        test: the best point's objectives on items that it was not chosen by.
        optimism: how much better each is on the items of the choice; above 0 means that those flatter.
        scores: every figure of the best point on test items.
        seconds: of the whole search, with `merging` and `scoring` in it; the sum of all runs.
        notes: what a reader must know.
        agents: of each figure the score of the best agent, where agents were scored; of a search by prompts, where the
            best point has replied itself, the share of held-out prompts to which each agent's reply is right.
        over_agents: how much better the best point is than these, on the same items; None where that is not known.

    Example:
        >>> settings = ramerge.SearchSettings(html=False)
        >>> result = ramerge.search("recipe.yaml", "found", score, vary={"parameters.r": [0, 0.1]}, settings=settings)
        >>> result.winner.point["parameters.r"] in (0, 0.1)
        True
        >>> result.to_dict()["schema"]
        'ramerge.search/1'
    """

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

    def _summary(self) -> Mapping[str, object]:
        return {"best": self.best, **self.winner.point, "scores": self.winner.scores, **counts(self.points)}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        return [_figures_of(point) for point in self.ranked]

    @property
    def winner(self) -> TriedPoint:
        """The best point of the search."""
        return next(point for point in self.points if point.number == self.best)

    @property
    def ranked(self) -> list[TriedPoint]:
        """The points with a score, the best first; then pruned and failed ones."""
        order = {"complete": 0, "pruned": 1, "failed": 2}
        front = set(self.front)

        def key(point: TriedPoint) -> tuple[Any, ...]:
            value = self.objectives[0].sign * point.objectives[0].value if point.objectives else 0.0
            return (order[point.state], point.number not in front, point.number != self.best, -value, point.number)

        return sorted(self.points, key=key)

    def to_dict(self) -> dict[str, Any]:
        """The result of a search as plain values, as in `search.json`."""
        return {"schema": SCHEMA, "ramerge": __version__, **asdict(self)}


def _figures_of(point: TriedPoint) -> dict[str, object]:
    """The figures of a point that its line and its row in a table show."""
    objectives = {f"objective {number}": each.value for number, each in enumerate(point.objectives, 1)}
    failure = {"failure": point.failure} if point.failure else {}
    return {"number": point.number, **point.point, "state": point.state, **objectives, **failure}


def read_search(path: Path) -> SearchResult:
    """Read a search from its `search.json`.

    Raises:
        RecipeError: it cannot be read, or is none.
    """
    return read_model(path, SearchResult, _LIMITS, "search")


def counts(points: Sequence[TriedPoint]) -> dict[str, int]:
    """The number of points of a search in each state."""
    return {state: sum(point.state == state for point in points) for state in ("complete", "pruned", "failed")}
