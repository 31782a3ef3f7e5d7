"""Merges of the real agents, from the rewards that lab/real/compare.py keeps.

Each agent was trained once, so intervals are over prompts only.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        agents: tasks, with the settings of the agents' training.
        prompts: how many of each task.
        rewards: of base, agents and merges (`METHOD, DTYPE`), of shape (tasks, prompts), from 0 to 1.
    """

    agents: Mapping[str, Mapping[str, Any]]
    prompts: int
    rewards: Mapping[str, Floats]

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
        found: Floats = 100 * self.rewards[name].mean(1)
        return found

    def mean(self, name: str) -> Estimate:
        """The mean over tasks in per cent, with its interval over prompts."""
        return statistics.estimate(float(self.by_task(name).mean()), self._drawn[name])

    def difference(self, first: str, second: str) -> Estimate:
        """The first's mean less the second's, in points, on the same prompts."""
        value = float((self.by_task(first) - self.by_task(second)).mean())
        return statistics.estimate(value, self._drawn[first] - self._drawn[second])

    @cached_property
    def _drawn(self) -> dict[str, Floats]:
        together = np.stack(list(self.rewards.values()), axis=2)
        return dict(zip(self.rewards, statistics.replicates(together[None]).T, strict=True))


def read(results: Results) -> Real | None:
    """What is kept; None where it is not enough for a comparison."""
    stored = results.kept("real")
    if not stored:
        return None
    rewards = {
        name: np.array([[int(digit) / 4 for digit in by_task[task]] for task in stored["agents"]])
        for name, by_task in stored["models"].items()
    }
    real = Real(stored["agents"], stored["prompts"], rewards)
    return real if real.merges and rewards.keys() >= {BASE, *real.agents} else None
