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
from lab.claims import signed
from lab.predictions import NOT_SCORED, Expected
from lab.results import FIRST_BASE, SECOND_BASE, Results
from lab.statistics import Estimate, Floats, holm

SUM, CORE, CORE_PLUS, RMS, TIMES = "task_arithmetic", "core", "core+", "ram+ shared=rms", "sum x 0.8"
Digits = Mapping[str, Mapping[str, str]]
"""Of each model, of each task the rewards of its prompts in quarters: one digit a prompt."""


@dataclass(frozen=True)
class Paired:
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

    def having(self, *models: str) -> Paired:
        """The trainings that have all of these."""
        known = {seed: one for seed, one in self.by_training.items() if all(name in one for name in models)}
        return Paired(known, self.tasks)

    def rewards(self, models: Sequence[str]) -> list[Floats]:
        """Of each task, of shape (trainings, prompts, models), from 0 to 1."""
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
        drawn = statistics.replicates(self.rewards([model]))[:, 0]
        return statistics.estimate(float(self.by_task(model).mean()), drawn)

    def difference(self, first: str, second: str) -> Estimate | None:
        """The first's mean less the second's, on the trainings that have both; None where there are none."""
        both = self.having(first, second)
        if not both.by_training:
            return None
        drawn = statistics.replicates(both.rewards([first, second]))
        value = float((both.by_task(first) - both.by_task(second)).mean())
        return statistics.estimate(value, drawn[:, 0] - drawn[:, 1])


def _digits(text: str) -> list[int]:
    return [int(digit) for digit in text]


def situations(results: Results, kept_as: str = FIRST_BASE) -> dict[str, Paired]:
    """Situations of which anything is kept in a file of results."""
    kept: dict[str, Any] = results.kept(kept_as).get("situations", {})
    found = {}
    for name, trainings in kept.items():
        if trainings:
            tasks = tuple(next(iter(next(iter(trainings.values())).values())))
            found[name] = Paired(trainings, tasks)
    return found


def runs(results: Results) -> Paired | None:
    """Rows of runs that were scored in every task, each in its own; None without any."""
    kept = results.kept("checkpoints")
    by_training: dict[str, dict[str, dict[str, str]]] = {}
    for name, run in kept.items():
        task, _, seed = name.partition(" ")
        for row, digits in run["rows"].items():
            by_training.setdefault(seed, {}).setdefault(row, {})[task] = digits
    tasks = tuple(dict.fromkeys(name.partition(" ")[0] for name in kept))
    whole = {seed: rows for seed, rows in by_training.items() if all(len(row) == len(tasks) for row in rows.values())}
    return Paired(whole, tasks) if whole else None


def adjusted(paired: Paired, against: str) -> dict[str, tuple[Estimate, float]]:
    """The difference of every other model to one, with Holm's p-value over them."""
    found = {
        name: difference
        for name in paired.models
        if name not in (against, "agents") and (difference := paired.difference(name, against)) is not None
    }
    p = holm({name: one.p for name, one in found.items()})
    return {name: (one, p[name]) for name, one in found.items()}


def behind(known: Mapping[str, Paired], rule: str) -> tuple[str, float] | None:
    """The situation in which a rule is farthest below the best other one, and how far; None where it was not scored."""
    found = {}
    for name, paired in known.items():
        if rule in paired.models:
            others = [other for other in paired.models if other not in (rule, "agents")]
            best = max(float(paired.by_task(other).mean()) for other in others)
            found[name] = float(paired.by_task(rule).mean()) - best
    return min(found.items(), key=lambda item: item[1]) if found else None


# --- predictions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfRuns:
    """One row less another, over all runs."""

    name: str
    first: str
    second: str
    expected: Expected


@dataclass(frozen=True)
class OfKinds:
    """One rule less another in a situation."""

    name: str
    situation: str
    first: str
    second: str
    expected: Expected


RUNS = (
    OfRuns("S1", "uniform 3", "last", Expected(0, 6)),
    OfRuns("S2", "uniform 5", "uniform 3", Expected(-2, 1)),
    OfRuns("S3", "ema", "last", Expected(0, 6)),
    OfRuns("S4", "greedy", "uniform 3", Expected(-2, 2)),
    OfRuns("S5", "greedy", "last", Expected(0, 7)),
    OfRuns("S6", "relex 15", "last", Expected(-45, -5, -1)),
    OfRuns("S7", "relex 30", "last", Expected(-20, 0)),
    OfRuns("S8", "relex 50", "last", Expected(-6, 2)),
    OfRuns("S9", "relex 15", "cut 15", Expected(-20, 10)),
    OfRuns("S10", "relex 50", "cut 50", Expected(-4, 4)),
)
FOUR, FOUR_EXACT, EIGHT, EIGHT_EXACT = "four, bfloat16", "four, float32", "eight, bfloat16", "eight, float32"
KINDS = (
    OfKinds("R1", FOUR, SUM, "ram+", Expected(5, 9, 1)),
    OfKinds("R2", FOUR, CORE, SUM, Expected(-2, 1)),
    OfKinds("R3", FOUR, CORE, TIMES, Expected(-1, 2)),
    OfKinds("R4", FOUR, CORE, RMS, Expected(2, 6, 1)),
    OfKinds("R5", FOUR, CORE_PLUS, CORE, Expected(-1.5, 0.5)),
    OfKinds("R6", FOUR, "ties", "ram+", Expected(0, 4)),
    OfKinds("R7", FOUR, "ties", SUM, Expected(-7, -2, -1)),
    OfKinds("R8", FOUR, "swudi", CORE, Expected(-4, 2)),
    OfKinds("R9", FOUR_EXACT, SUM, TIMES, Expected(-3, 1)),
    OfKinds("R10", FOUR_EXACT, CORE, TIMES, Expected(-2, 1.5)),
    OfKinds("R11", FOUR_EXACT, CORE, RMS, Expected(-2, 2)),
    OfKinds("R12", FOUR_EXACT, CORE_PLUS, CORE, Expected(-1, 1)),
    OfKinds("R13", EIGHT_EXACT, SUM, CORE, Expected(-40, -5, -1)),
    OfKinds("R14", EIGHT_EXACT, CORE_PLUS, CORE, Expected(-1, 2)),
    OfKinds("R15", EIGHT_EXACT, CORE, RMS, Expected(-2, 5)),
    OfKinds("R16", EIGHT, SUM, CORE, Expected(-10, 1)),
    OfKinds("R17", "SFT", SUM, CORE, Expected(-30, -2, -1)),
    OfKinds("R18", "SFT", CORE_PLUS, CORE, Expected(0, 4)),
    OfKinds("R19", "SFT", CORE, RMS, Expected(-2, 6)),
    OfKinds("R20", "LoRA", SUM, CORE, Expected(-15, 1)),
    OfKinds("R21", "LoRA", "swudi", CORE, Expected(-math.inf, -10, -1)),
    OfKinds("R22", "two, bfloat16", CORE, SUM, Expected(-1.5, 1.5)),
)
WORST = (("R23", CORE_PLUS, Expected(-4, 0)), ("R24", SUM, Expected(-math.inf, -10)))
OF_SECOND_BASE = (
    OfKinds("G1", "SFT", CORE_PLUS, SUM, Expected(-3, 2)),
    OfKinds("G2", "SFT", CORE_PLUS, "ram+", Expected(3, 15, 1)),
    OfKinds("G4", "LoRA", CORE_PLUS, SUM, Expected(1, 15, 1)),
    OfKinds("G5", "LoRA", CORE_PLUS, RMS, Expected(-2, 3)),
)
BEST_OF_SECOND_BASE = (("G3", "SFT", CORE_PLUS, Expected(-3, 0)), ("G6", "LoRA", RMS, Expected(-4, 0)))
COMPONENT = Expected(0.75, 0.95)
TRAININGS, ALL_RUNS, ALL_KINDS = 3, 12, 7
"""How many trainings, runs and situations the predictions are about; with fewer, verdicts are preliminary."""
SO_FAR = " so far"
Line = tuple[str, str, str, str, str]


def of_runs(results: Results) -> Iterator[Line]:
    """Each prediction about runs, what was measured, and whether it came true."""
    paired = runs(results)
    whole = paired is not None and len(paired.tasks) * len(paired.by_training) == ALL_RUNS
    for one in RUNS:
        found = paired.difference(one.first, one.second) if paired is not None else None
        yield _line(one.name, f"{one.first} minus {one.second}", one.expected, found, whole)
    shares = [run["first component"]["50"] for run in results.kept("checkpoints").values()]
    if shares:
        mean = float(np.mean(shares))
        told = f"{mean:.2f} ({min(shares):.2f} to {max(shares):.2f} over runs)"
        expected = f"{COMPONENT.low:g} to {COMPONENT.high:g}"
        verdict = _preliminary(COMPONENT.verdict(mean), whole)
        yield "S11", "share of the first component, 50 %", expected, told, verdict


def of_kinds(results: Results) -> Iterator[Line]:
    """Each prediction about situations, what was measured, and whether it came true."""
    known = situations(results)
    for one in KINDS:
        yield _difference(one, known)
    for name, rule, expected in WORST:
        worst = behind(known, rule) if len(known) == ALL_KINDS else None
        told = f"{worst[1]:+.1f} in {worst[0]}" if worst else ""
        verdict = expected.verdict(worst[1]) if worst else NOT_SCORED
        yield name, f"`{rule}` against the best other rule in its worst situation", expected.range, told, verdict


def of_second_base(results: Results) -> Iterator[Line]:
    """Each prediction about agents of a second base, what was measured, and whether it came true."""
    known = situations(results, SECOND_BASE)
    for one in OF_SECOND_BASE:
        yield _difference(one, known)
    for name, situation, rule, expected in BEST_OF_SECOND_BASE:
        paired = known.get(situation)
        found = behind({situation: paired}, rule) if paired is not None else None
        told = f"{found[1]:+.1f}" if found else ""
        whole = paired is not None and len(paired.by_training) == TRAININGS
        verdict = _preliminary(expected.verdict(found[1]), whole) if found else NOT_SCORED
        yield name, f"{situation}: `{rule}` against the best other rule", expected.range, told, verdict


def _difference(one: OfKinds, known: Mapping[str, Paired]) -> Line:
    both = known[one.situation].having(one.first, one.second) if one.situation in known else None
    found = both.difference(one.first, one.second) if both is not None else None
    whole = both is not None and len(both.by_training) == TRAININGS
    return _line(one.name, f"{one.situation}: `{one.first}` minus `{one.second}`", one.expected, found, whole)


def _line(name: str, what: str, expected: Expected, found: Estimate | None, whole: bool) -> Line:
    verdict = expected.judged(found)
    told = signed(found) if found else ""
    return name, what, expected.range, told, verdict if found is None else _preliminary(verdict, whole)


def _preliminary(verdict: str, whole: bool) -> str:
    return verdict if whole else verdict + SO_FAR
