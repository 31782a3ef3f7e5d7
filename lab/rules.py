"""A better rule for elements that several agents moved: chosen on a third of the seeds, tested on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.results import Outcome, Results
from lab.rows import RULES
from lab.statistics import Estimate, over_seeds

SETTINGS = ("three", "five", "three-float32", "three-sft", "copies")
REFERENCE = "ram+ shared=mean"
FEWEST = 2
"""Seeds that a choice is tested on at least."""


@dataclass(frozen=True)
class Choice:
    """A rule and how it does on seeds that it was not chosen by.

    Attributes:
        settings: those that were measured.
        choosing, testing: seeds.
        scores: of each candidate, its mean in each setting over the choosing seeds.
        winner: the candidate with the best mean over settings.
        against: on the testing seeds, the winner less RAM+, in each setting and over all.
        against_sum: likewise the winner less Task Arithmetic with its scale chosen on validation prompts.
    """

    settings: tuple[str, ...]
    choosing: tuple[int, ...]
    testing: tuple[int, ...]
    scores: dict[str, list[float]]
    winner: str
    against: dict[str, Estimate]
    against_sum: dict[str, Estimate]


def choose(results: Results) -> Choice | None:
    """The choice and its test; None where there are too few seeds."""
    outcomes = [outcome for name in SETTINGS if (outcome := results.setting(name)) is not None]
    names = [row.name for row in RULES if all(row.name in outcome.default for outcome in outcomes)]
    seeds = sorted(set.intersection(*(set(outcome.seeds) for outcome in outcomes))) if outcomes else []
    choosing, testing = tuple(seeds[::3]), tuple(seed for seed in seeds if seed not in seeds[::3])
    if len(testing) < FEWEST or REFERENCE not in names:
        return None
    first = [outcome.only(lambda seed: seed in choosing) for outcome in outcomes]
    rest = [outcome.only(lambda seed: seed in testing) for outcome in outcomes]
    scores = {name: [outcome.default[name].mean for outcome in first] for name in names}
    winner = max(names, key=lambda name: np.mean(scores[name]))
    return Choice(
        tuple(outcome.name for outcome in outcomes),
        choosing,
        testing,
        scores,
        winner,
        _differences(rest, [outcome.default[winner].by_task.mean(1) for outcome in rest], REFERENCE, is_tuned=False),
        _differences(
            rest, [outcome.default[winner].by_task.mean(1) for outcome in rest], "task_arithmetic", is_tuned=True
        ),
    )


def _differences(
    outcomes: Sequence[Outcome], winner: Sequence[np.ndarray], name: str, *, is_tuned: bool
) -> dict[str, Estimate]:
    """By setting, and under `all` over settings, of one mean for each seed."""
    by_setting = {
        one.name: scores - (one.best if is_tuned else one.default)[name].by_task.mean(1)
        for one, scores in zip(outcomes, winner, strict=True)
    }
    by_setting["all"] = np.mean(list(by_setting.values()), axis=0)
    return {setting: over_seeds(values.tolist()) for setting, values in by_setting.items()}
