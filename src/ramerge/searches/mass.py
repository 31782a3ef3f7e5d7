"""The scorer of merges by prompts: how likely the agents' right replies are, from one forward pass each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge import Plan, RecipeError
from ramerge.calibration.agreement import ReplySet, likelihoods, mass_items, temper_of
from ramerge.calibration.live_base import LiveBase
from ramerge.scoring.scores import MEAN, WORST, Measure, ScoreFailedError, Scorer, Scores, Split, of_items
from ramerge.searches.results import BY_AGREEMENT

_PARTS = 4


class MassScorer(Scorer):
    """Scorer by mass, for some prompts of every agent at a time; it merges into the model in memory.

    It measures negative log-likelihoods, because the divisor of mass depends on all candidates.

    Args:
        live: the model.
        replies: the replies to score merges on.
        fingerprints: of each agent's calibration, by agent.
    """

    splits = True
    in_parts = True
    has_test = False

    def __init__(self, live: LiveBase, replies: ReplySet, fingerprints: Mapping[str, str]) -> None:
        self._live, self._replies, self._fingerprints = live, replies, fingerprints

    @property
    @override
    def merge(self) -> Callable[[Plan], None]:
        return self._live.put

    @override
    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        del model
        if split == "test":
            raise ScoreFailedError("mass keeps no items for a test")
        for items in likelihoods(self._live.live, self._replies, _PARTS):
            yield {name: of_items(each) for name, each in items.items()}

    @override
    def temper(self, candidates: Sequence[Scores]) -> float:
        return temper_of(map(_item_scores, candidates))

    @override
    def figures(self, scores: Scores, temper: float) -> Scores:
        return {name: of_items(mass_items(items, temper)) for name, items in _item_scores(scores).items()}

    @override
    def about(self) -> Mapping[str, object]:
        counts = {name: list(counts) for name, counts in self._replies.counts.items()}
        return {
            BY_AGREEMENT: dict(self._fingerprints),
            "rewarded": self._replies.rewarded,
            "right": counts if self._replies.rewarded else {},
            "replies": {name: prompts_with_replies for name, (prompts_with_replies, _) in counts.items()},
        }


def refuse_reserved_names(agents: Iterable[str]) -> None:
    """Refuse agents whose mass would be taken for an objective, because they have its name.

    Raises:
        RecipeError: there are such agents.
    """
    if reserved := [name for name in agents if name in (MEAN, WORST)]:
        raise RecipeError(f"agent {name}: is the name of an objective; give the agent another" for name in reserved)


def nll_by_prompt(scores: Scores, replies: ReplySet) -> dict[str, dict[str, float]]:
    """Return the negative log-likelihood of each right reply that a `MassScorer` measured, by agent and prompt key.

    Raises:
        ValueError: these replies are not the measured replies.
    """
    likelihoods: dict[str, dict[str, float]] = {}
    for name in replies.exchanges:
        exchanges = [exchange for part in replies.in_parts(name, _PARTS) for exchange in part]
        items = scores[name].items if name in scores else None
        if items is None or len(items) != len(exchanges):
            raise ValueError(name)
        likelihoods[name] = {
            exchange.key: nll for exchange, (nll, _) in zip(exchanges, items.tolist(), strict=True) if exchange
        }
    return likelihoods


def nll_of(scores: Scores) -> float:
    """Return the negative log-likelihood per token, in nats, that a `MassScorer` measured, averaged over agents."""
    return fmean(measure.value for measure in scores.values())


def _item_scores(scores: Mapping[str, Measure]) -> dict[str, NDArray[np.float64]]:
    return {name: measure.items for name, measure in scores.items() if measure.items is not None}
