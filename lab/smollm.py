"""Merges of the real agents, from the rewards that lab/real/compare.py keeps.

A file of results is of one training of each agent. With several, intervals are over trainings and prompts, as those of
the tiny agents are; with one, over prompts only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lab import statistics
from lab.results import BASE, Results
from lab.statistics import Estimate, Floats

MODEL = "SmolLM2-135M"
_MERGES = Path(__file__).parent / "real" / "merges.json"
REFERENCE, SUM, CANDIDATE = "ram+", "task_arithmetic", "ram+ shared=agree_max"


@dataclass(frozen=True)
class Real:
    """What is kept of the real agents.

    Attributes:
        seeds: of the trainings.
        agents: tasks.
        asked: how many prompts of each task were asked for; a task that has fewer is asked all.
        rewards: of base, agents and merges (`METHOD, DTYPE`), from 0 to 1: of each task, of shape (seeds, prompts).
    """

    seeds: tuple[int, ...]
    agents: tuple[str, ...]
    asked: int
    rewards: Mapping[str, tuple[Floats, ...]]

    @property
    def prompts(self) -> dict[str, int]:
        """How many prompts of each task were asked."""
        return {task: rewards.shape[1] for task, rewards in zip(self.agents, self.rewards[BASE], strict=True)}

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
        return np.array([100 * task.mean() for task in self.rewards[name]])

    def mean(self, name: str) -> Estimate:
        """The mean over trainings and tasks in per cent, with its interval."""
        return statistics.estimate(float(self.by_task(name).mean()), self._drawn[name])

    def of_seeds(self, seeds: Sequence[int]) -> Real:
        """The same of some trainings."""
        places = [self.seeds.index(seed) for seed in seeds]
        rewards = {name: tuple(task[places] for task in known) for name, known in self.rewards.items()}
        return Real(tuple(seeds), self.agents, self.asked, rewards)

    def difference(self, first: str, second: str) -> Estimate:
        """The first's mean less the second's, in points, on the same prompts."""
        value = float((self.by_task(first) - self.by_task(second)).mean())
        return statistics.estimate(value, self._drawn[first] - self._drawn[second])

    @cached_property
    def _drawn(self) -> dict[str, Floats]:
        together = [np.stack(task, axis=2) for task in zip(*self.rewards.values(), strict=True)]
        return dict(zip(self.rewards, statistics.replicates(together).T, strict=True))


def read(results: Results, kind: str = "real") -> Real | None:
    """What is kept of trainings of the same tasks, the most tasks that there are; None if that is not enough.

    Args:
        results: all that is kept.
        kind: `real`, computed in float32 by transformers, or `served`, in bfloat16 by a server.
    """
    known = results.kept_all(f"{kind}-*")
    files = [stored for stored in known if {BASE, *stored["agents"]} <= stored["models"].keys()]
    if not files:
        return None
    first = max(files, key=lambda stored: len(stored["agents"]))
    alike = [stored for stored in files if _kind(stored) == _kind(first)]
    names = [name for name in first["models"] if all(name in stored["models"] for stored in alike)]
    tasks = tuple(first["agents"])
    rewards = {name: tuple(_rewards(alike, name, task) for task in tasks) for name in names}
    real = Real(tuple(stored["seed"] for stored in alike), tasks, first["prompts"], rewards)
    return real if real.merges else None


def asked_merges() -> list[str]:
    """The names of the merges that lab/real/compare.py scores."""
    return list(json.loads(_MERGES.read_text(encoding="utf-8")))


def _kind(stored: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tasks and prompts. Trainings are compared where these are the same."""
    return sorted(stored["agents"]), stored["prompts"], stored["prompt seed"]


def _rewards(alike: Sequence[Mapping[str, Any]], name: str, task: str) -> Floats:
    """Of one model and task, of shape (seeds, prompts), from quarters: one digit a prompt."""
    return np.array([[int(digit) / 4 for digit in stored["models"][name][task]] for stored in alike])
