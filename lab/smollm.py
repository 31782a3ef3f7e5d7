"""Merges of the real agents, from the rewards that lab/real/compare.py keeps.

A file of results is of one training of each agent. With several, intervals are over trainings and prompts, as those of
the tiny agents are; with one, over prompts only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lab import statistics
from lab.results import BASE, Results
from lab.statistics import Estimate, Floats

MODEL = "SmolLM2-135M"
REFERENCE, SUM, CANDIDATE = "ram+", "task_arithmetic", "ram+ shared=agree_max"


@dataclass(frozen=True)
class Real:
    """What is kept of the real agents.

    Attributes:
        seeds: of the trainings.
        agents: tasks.
        prompts: how many of each task.
        rewards: of base, agents and merges (`METHOD, DTYPE`), of shape (seeds, tasks, prompts), from 0 to 1.
    """

    seeds: tuple[int, ...]
    agents: tuple[str, ...]
    prompts: int
    rewards: Mapping[str, Floats]

    @property
    def trainings(self) -> str:
        """How often each agent was trained, in words."""
        return {1: "once", 2: "twice"}.get(len(self.seeds), f"{len(self.seeds)} times")

    @property
    def merges(self) -> dict[str, list[str]]:
        """The merged methods, by the dtype of agents and output; where what is to be compared is among them."""
        found: dict[str, list[str]] = {}
        for name in self.rewards:
            method, _, dtype = name.partition(", ")
            if dtype:
                found.setdefault(dtype, []).append(method)
        return {dtype: methods for dtype, methods in found.items() if {REFERENCE, SUM, CANDIDATE} <= set(methods)}

    def by_task(self, name: str) -> Floats:
        """Mean rewards in per cent, of shape (tasks,)."""
        found: Floats = 100 * self.rewards[name].mean((0, 2))
        return found

    def mean(self, name: str) -> Estimate:
        """The mean over trainings and tasks in per cent, with its interval."""
        return statistics.estimate(float(self.by_task(name).mean()), self._drawn[name])

    def difference(self, first: str, second: str) -> Estimate:
        """The first's mean less the second's, in points, on the same prompts."""
        value = float((self.by_task(first) - self.by_task(second)).mean())
        return statistics.estimate(value, self._drawn[first] - self._drawn[second])

    @cached_property
    def _drawn(self) -> dict[str, Floats]:
        together = np.stack(list(self.rewards.values()), axis=3)
        return dict(zip(self.rewards, statistics.replicates(together).T, strict=True))


def read(results: Results) -> Real | None:
    """What is kept of trainings of the same tasks, the most tasks that there are; None if that is not enough."""
    files = [stored for stored in results.kept_all("real-*") if {BASE, *stored["agents"]} <= stored["models"].keys()]
    if not files:
        return None
    first = max(files, key=lambda stored: len(stored["agents"]))
    alike = [stored for stored in files if _kind(stored) == _kind(first)]
    names = [name for name in first["models"] if all(name in stored["models"] for stored in alike)]
    tasks = tuple(first["agents"])
    rewards = {name: np.array([_rewards(stored["models"][name], tasks) for stored in alike]) for name in names}
    real = Real(tuple(stored["seed"] for stored in alike), tasks, first["prompts"], rewards)
    return real if real.merges else None


def _kind(stored: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tasks and prompts. Trainings are compared where these are the same."""
    return sorted(stored["agents"]), stored["prompts"], stored["prompt seed"]


def _rewards(digits: Mapping[str, str], tasks: Sequence[str]) -> list[list[float]]:
    """Of one model, from quarters: one digit a prompt."""
    return [[int(digit) / 4 for digit in digits[task]] for task in tasks]
