"""A better rule for elements that several agents moved: chosen on a third of the seeds, tested on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.results import Measured, Results
from lab.rows import RULES
from lab.statistics import Estimate, over_seeds

SETTINGS = ("three", "five", "three-float32", "three-sft", "copies")
REFERENCE = "ram+ shared=mean"


@dataclass(frozen=True)
class Choice:
    """A rule and how it does on seeds that it was not chosen by.

    Attributes:
        settings: those that were measured.
        choosing, testing: seeds.
        scores: of each candidate, its mean in each setting over the choosing seeds.
        winner: the candidate with the best mean over settings.
        against: on the testing seeds, the winner less RAM+, in each setting and over all.
        scaled: likewise the winner less Task Arithmetic with its scale chosen on validation prompts.
    """

    settings: tuple[str, ...]
    choosing: tuple[int, ...]
    testing: tuple[int, ...]
    scores: dict[str, list[float]]
    winner: str
    against: dict[str, Estimate]
    scaled: dict[str, Estimate]


def choose(results: Results) -> Choice | None:
    """The choice and its test; None where there are too few seeds."""
    known = [measured for name in SETTINGS if (measured := results.setting(name)) is not None]
    names = [row.name for row in RULES if all(row.name in measured.default for measured in known)]
    seeds = sorted(set.intersection(*(set(measured.seeds) for measured in known))) if known else []
    choosing, testing = tuple(seeds[::3]), tuple(seed for seed in seeds if seed not in seeds[::3])
    if not testing or REFERENCE not in names:
        return None
    first = [measured.only(lambda seed: seed in choosing) for measured in known]
    rest = [measured.only(lambda seed: seed in testing) for measured in known]
    scores = {name: [measured.default[name].mean for measured in first] for name in names}
    winner = max(names, key=lambda name: np.mean(scores[name]))
    return Choice(
        tuple(measured.name for measured in known),
        choosing,
        testing,
        scores,
        winner,
        _differences(rest, [measured.default[winner].by_task.mean(1) for measured in rest], REFERENCE, tuned=False),
        _differences(
            rest, [measured.default[winner].by_task.mean(1) for measured in rest], "task_arithmetic", tuned=True
        ),
    )


def _differences(
    measured: Sequence[Measured], winner: Sequence[np.ndarray], name: str, *, tuned: bool
) -> dict[str, Estimate]:
    """By setting, and under `all` over settings, of one mean for each seed."""
    found = {
        one.name: scores - (one.best if tuned else one.default)[name].by_task.mean(1)
        for one, scores in zip(measured, winner, strict=True)
    }
    found["all"] = np.mean(list(found.values()), axis=0)
    return {setting: over_seeds(values.tolist()) for setting, values in found.items()}
