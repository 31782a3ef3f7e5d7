"""More kinds of real agents, and checkpoints along their runs: what lab/real/kinds.py and lab/real/runs.py keep.

Predictions are those of lab/experiments/035-real-agents.md, and of 040-a-second-base.md for agents of a second base.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab import statistics
from lab.claims import signed_text
from lab.predictions import NO_SCORE, Expectation
from lab.results import FIRST_BASE, SECOND_BASE, Results
from lab.statistics import Estimate, Floats, holm

SUM, CORE, CORE_PLUS, RMS, TIMES = "task_arithmetic", "core", "core+", "ram+ shared=rms", "sum x 0.8"
Digits = Mapping[str, Mapping[str, str]]
"""Of each model, of each task the rewards of its prompts in quarters: one digit a prompt."""


@dataclass(frozen=True)
class Comparison:
    """Models that were asked the same prompts, in several trainings.

    Attributes:
        by_training: what is kept of each training.
        tasks: the tasks, all of which count the same.
    """

    by_training: Mapping[str, Digits]
    tasks: tuple[str, ...]

    @property
    def models(self) -> list[str]:
        """Those that were scored in every training that has any."""
        first = next(iter(self.by_training.values()))
        return [name for name in first if all(name in one for one in self.by_training.values())]

    def having(self, *models: str) -> Comparison:
        """The trainings that have all of these."""
        trainings = {seed: one for seed, one in self.by_training.items() if all(name in one for name in models)}
        return Comparison(trainings, self.tasks)

    def rewards(self, models: Sequence[str]) -> list[Floats]:
        """For each task an array of shape (trainings, prompts, models), from 0 to 1."""
        return [
            np.array([[_digits(one[name][task]) for name in models] for one in self.by_training.values()])
            .transpose(0, 2, 1)
            .astype(np.float64)
            / 4
            for task in self.tasks
        ]

    def by_task(self, model: str) -> Floats:
        """Means in per cent, of shape (tasks,)."""
        return np.array([100 * task.mean() for task in self.rewards([model])])

    def mean(self, model: str) -> Estimate:
        """Over trainings and tasks, in per cent."""
        draws = statistics.replicates(self.rewards([model]))[:, 0]
        return statistics.estimate(float(self.by_task(model).mean()), draws)

    def difference(self, first: str, second: str) -> Estimate | None:
        """The first's mean less the second's, on the trainings that have both; None where there are none."""
        both = self.having(first, second)
        if not both.by_training:
            return None
        draws = statistics.replicates(both.rewards([first, second]))
        value = float((both.by_task(first) - both.by_task(second)).mean())
        return statistics.estimate(value, draws[:, 0] - draws[:, 1])


def _digits(text: str) -> list[int]:
    return [int(digit) for digit in text]


def situations(results: Results, kept_as: str = FIRST_BASE) -> dict[str, Comparison]:
    """Situations of which anything is kept in a file of results."""
    content: dict[str, Any] = results.content(kept_as).get("situations", {})
    comparisons = {}
    for name, trainings in content.items():
        if trainings:
            tasks = tuple(next(iter(next(iter(trainings.values())).values())))
            comparisons[name] = Comparison(trainings, tasks)
    return comparisons


def runs(results: Results) -> Comparison | None:
    """Rows of runs that were scored in every task, each in its own; None without any."""
    content = results.content("checkpoints")
    by_training: dict[str, dict[str, dict[str, str]]] = {}
    for name, run in content.items():
        task, _, seed = name.partition(" ")
        for row, digits in run["rows"].items():
            by_training.setdefault(seed, {}).setdefault(row, {})[task] = digits
    tasks = tuple(dict.fromkeys(name.partition(" ")[0] for name in content))
    whole = {seed: rows for seed, rows in by_training.items() if all(len(row) == len(tasks) for row in rows.values())}
    return Comparison(whole, tasks) if whole else None


def adjusted_differences(comparison: Comparison, against: str) -> dict[str, tuple[Estimate, float]]:
    """The difference of every other model to one, with Holm's p-value over them."""
    differences = {
        name: difference
        for name in comparison.models
        if name not in (against, "agents") and (difference := comparison.difference(name, against)) is not None
    }
    p = holm({name: one.p for name, one in differences.items()})
    return {name: (one, p[name]) for name, one in differences.items()}


def behind(comparisons: Mapping[str, Comparison], rule: str) -> tuple[str, float] | None:
    """The situation in which a rule is farthest below the best other one, and how far; None where it was not scored."""
    margins = {}
    for name, comparison in comparisons.items():
        if rule in comparison.models:
            others = [other for other in comparison.models if other not in (rule, "agents")]
            best = max(float(comparison.by_task(other).mean()) for other in others)
            margins[name] = float(comparison.by_task(rule).mean()) - best
    return min(margins.items(), key=lambda item: item[1]) if margins else None


# --- predictions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfRuns:
    """One row less another, over all runs."""

    name: str
    first: str
    second: str
    expectation: Expectation


@dataclass(frozen=True)
class OfKinds:
    """One rule less another in a situation."""

    name: str
    situation: str
    first: str
    second: str
    expectation: Expectation


RUNS = (
    OfRuns("S1", "uniform 3", "last", Expectation(0, 6)),
    OfRuns("S2", "uniform 5", "uniform 3", Expectation(-2, 1)),
    OfRuns("S3", "ema", "last", Expectation(0, 6)),
    OfRuns("S4", "greedy", "uniform 3", Expectation(-2, 2)),
    OfRuns("S5", "greedy", "last", Expectation(0, 7)),
    OfRuns("S6", "relex 15", "last", Expectation(-45, -5, -1)),
    OfRuns("S7", "relex 30", "last", Expectation(-20, 0)),
    OfRuns("S8", "relex 50", "last", Expectation(-6, 2)),
    OfRuns("S9", "relex 15", "cut 15", Expectation(-20, 10)),
    OfRuns("S10", "relex 50", "cut 50", Expectation(-4, 4)),
)
FOUR, FOUR_EXACT, EIGHT, EIGHT_EXACT = "four, bfloat16", "four, float32", "eight, bfloat16", "eight, float32"
KINDS = (
    OfKinds("R1", FOUR, SUM, "ram+", Expectation(5, 9, 1)),
    OfKinds("R2", FOUR, CORE, SUM, Expectation(-2, 1)),
    OfKinds("R3", FOUR, CORE, TIMES, Expectation(-1, 2)),
    OfKinds("R4", FOUR, CORE, RMS, Expectation(2, 6, 1)),
    OfKinds("R5", FOUR, CORE_PLUS, CORE, Expectation(-1.5, 0.5)),
    OfKinds("R6", FOUR, "ties", "ram+", Expectation(0, 4)),
    OfKinds("R7", FOUR, "ties", SUM, Expectation(-7, -2, -1)),
    OfKinds("R8", FOUR, "swudi", CORE, Expectation(-4, 2)),
    OfKinds("R9", FOUR_EXACT, SUM, TIMES, Expectation(-3, 1)),
    OfKinds("R10", FOUR_EXACT, CORE, TIMES, Expectation(-2, 1.5)),
    OfKinds("R11", FOUR_EXACT, CORE, RMS, Expectation(-2, 2)),
    OfKinds("R12", FOUR_EXACT, CORE_PLUS, CORE, Expectation(-1, 1)),
    OfKinds("R13", EIGHT_EXACT, SUM, CORE, Expectation(-40, -5, -1)),
    OfKinds("R14", EIGHT_EXACT, CORE_PLUS, CORE, Expectation(-1, 2)),
    OfKinds("R15", EIGHT_EXACT, CORE, RMS, Expectation(-2, 5)),
    OfKinds("R16", EIGHT, SUM, CORE, Expectation(-10, 1)),
    OfKinds("R17", "SFT", SUM, CORE, Expectation(-30, -2, -1)),
    OfKinds("R18", "SFT", CORE_PLUS, CORE, Expectation(0, 4)),
    OfKinds("R19", "SFT", CORE, RMS, Expectation(-2, 6)),
    OfKinds("R20", "LoRA", SUM, CORE, Expectation(-15, 1)),
    OfKinds("R21", "LoRA", "swudi", CORE, Expectation(-math.inf, -10, -1)),
    OfKinds("R22", "two, bfloat16", CORE, SUM, Expectation(-1.5, 1.5)),
)
WORST = (("R23", CORE_PLUS, Expectation(-4, 0)), ("R24", SUM, Expectation(-math.inf, -10)))
OF_SECOND_BASE = (
    OfKinds("G1", "SFT", CORE_PLUS, SUM, Expectation(-3, 2)),
    OfKinds("G2", "SFT", CORE_PLUS, "ram+", Expectation(3, 15, 1)),
    OfKinds("G4", "LoRA", CORE_PLUS, SUM, Expectation(1, 15, 1)),
    OfKinds("G5", "LoRA", CORE_PLUS, RMS, Expectation(-2, 3)),
)
BEST_OF_SECOND_BASE = (("G3", "SFT", CORE_PLUS, Expectation(-3, 0)), ("G6", "LoRA", RMS, Expectation(-4, 0)))
COMPONENT = Expectation(0.75, 0.95)
TRAININGS, ALL_RUNS, ALL_KINDS = 3, 12, 7
"""How many trainings, runs and situations the predictions are about; with fewer, verdicts are preliminary."""
SO_FAR = " so far"
Line = tuple[str, str, str, str, str]


def of_runs(results: Results) -> Iterator[Line]:
    """Each prediction about runs, what was measured, and whether it came true."""
    comparison = runs(results)
    whole = comparison is not None and len(comparison.tasks) * len(comparison.by_training) == ALL_RUNS
    for one in RUNS:
        difference = comparison.difference(one.first, one.second) if comparison is not None else None
        yield _line(one.name, f"{one.first} minus {one.second}", one.expectation, difference, whole)
    shares = [run["first component"]["50"] for run in results.content("checkpoints").values()]
    if shares:
        mean = float(np.mean(shares))
        text = f"{mean:.2f} ({min(shares):.2f} to {max(shares):.2f} over runs)"
        expectation = f"{COMPONENT.low:g} to {COMPONENT.high:g}"
        verdict = _preliminary(COMPONENT.verdict(mean), whole)
        yield "S11", "share of the first component, 50 %", expectation, text, verdict


def of_kinds(results: Results) -> Iterator[Line]:
    """Each prediction about situations, what was measured, and whether it came true."""
    comparisons = situations(results)
    for one in KINDS:
        yield _difference(one, comparisons)
    for name, rule, expectation in WORST:
        worst = behind(comparisons, rule) if len(comparisons) == ALL_KINDS else None
        text = f"{worst[1]:+.1f} in {worst[0]}" if worst else ""
        verdict = expectation.verdict(worst[1]) if worst else NO_SCORE
        yield name, f"`{rule}` against the best other rule in its worst situation", expectation.range, text, verdict


def of_second_base(results: Results) -> Iterator[Line]:
    """Each prediction about agents of a second base, what was measured, and whether it came true."""
    comparisons = situations(results, SECOND_BASE)
    for one in OF_SECOND_BASE:
        yield _difference(one, comparisons)
    for name, situation, rule, expectation in BEST_OF_SECOND_BASE:
        comparison = comparisons.get(situation)
        worst = behind({situation: comparison}, rule) if comparison is not None else None
        text = f"{worst[1]:+.1f}" if worst else ""
        whole = comparison is not None and len(comparison.by_training) == TRAININGS
        verdict = _preliminary(expectation.verdict(worst[1]), whole) if worst else NO_SCORE
        yield name, f"{situation}: `{rule}` against the best other rule", expectation.range, text, verdict


def _difference(one: OfKinds, comparisons: Mapping[str, Comparison]) -> Line:
    both = comparisons[one.situation].having(one.first, one.second) if one.situation in comparisons else None
    difference = both.difference(one.first, one.second) if both is not None else None
    whole = both is not None and len(both.by_training) == TRAININGS
    return _line(one.name, f"{one.situation}: `{one.first}` minus `{one.second}`", one.expectation, difference, whole)


def _line(name: str, what: str, expectation: Expectation, difference: Estimate | None, whole: bool) -> Line:
    verdict = expectation.judge(difference)
    text = signed_text(difference) if difference else ""
    return name, what, expectation.range, text, verdict if difference is None else _preliminary(verdict, whole)


def _preliminary(verdict: str, whole: bool) -> str:
    return verdict if whole else verdict + SO_FAR
