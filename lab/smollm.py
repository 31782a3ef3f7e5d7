"""Merges of the real agents, from the rewards that lab/real/compare.py keeps.

A file of results is of one training of each agent. With several, intervals are over trainings and prompts, as those of
the tiny agents are; with one, over prompts only. A merge that was added later was scored on fewer trainings: two merges
are compared on the trainings that have both.
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
from lab.results import BASE, FIRST_BASE, MODELS, Results
from lab.statistics import Estimate, Floats

MODEL = MODELS[FIRST_BASE]
AGENTS = "agents"
"""Each agent in its own task."""
_MERGES = Path(__file__).parent / "real" / "merges.json"
REFERENCE, SUM, CANDIDATE = "ram+", "task_arithmetic", "ram+ shared=agree_max"
_IN_WORDS = ("ram", REFERENCE, CANDIDATE, "linear", SUM)
"""Merges that sentences are about, which name one number of trainings."""


@dataclass(frozen=True)
class Real:
    """Rewards of the real agents and of their merges.

    Attributes:
        agents: tasks.
        prompt_count: how many prompts of each task were asked for; a task that has fewer is asked all.
        rewards: of base, agents and merges (`METHOD, DTYPE`), from 0 to 1: of each task, of shape (seeds, prompts).
        seeds_by_model: seeds of the trainings on which each was scored, in the order of its rewards.
    """

    agents: tuple[str, ...]
    prompt_count: int
    rewards: Mapping[str, tuple[Floats, ...]]
    seeds_by_model: Mapping[str, tuple[int, ...]]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of all trainings."""
        return self.seeds_by_model[BASE]

    @property
    def prompts(self) -> dict[str, int]:
        """How many prompts of each task were asked."""
        return {task: rewards.shape[1] for task, rewards in zip(self.agents, self.rewards[BASE], strict=True)}

    @property
    def trainings(self) -> str:
        """How often each agent was trained, as a phrase."""
        return {1: "once", 2: "twice"}.get(len(self.seeds), f"{len(self.seeds)} times")

    @property
    def merges(self) -> dict[str, list[str]]:
        """The merged methods, by the dtype of agents and output; where what is to be compared is among them."""
        by_dtype: dict[str, list[str]] = {}
        for name in self.rewards:
            method, _, dtype = name.partition(", ")
            if dtype:
                by_dtype.setdefault(dtype, []).append(method)
        return {dtype: methods for dtype, methods in by_dtype.items() if {REFERENCE, SUM, CANDIDATE} <= set(methods)}

    def by_task(self, name: str) -> Floats:
        """Mean rewards in per cent over the trainings that have the model, of shape (tasks,)."""
        return np.array([100 * task.mean() for task in self.rewards[name]])

    def mean(self, name: str) -> Estimate:
        """The mean over trainings and tasks in per cent, with its interval."""
        return statistics.estimate(float(self.by_task(name).mean()), self.draws[name])

    @cached_property
    def whole(self) -> Real:
        """The same of the trainings on which all merges that sentences are about were scored."""
        names = [f"{method}, {dtype}" for dtype in self.merges for method in _IN_WORDS]
        return self.having(*(name for name in names if name in self.seeds_by_model))

    def having(self, *names: str) -> Real:
        """The same of the trainings on which all of these were scored."""
        seeds = [seed for seed in self.seeds if all(seed in self.seeds_by_model[name] for name in names)]
        return self if len(seeds) == len(self.seeds) else self.of_seeds(seeds)

    def having_both(self, first: str, second: str) -> Real:
        """The same of the trainings on which both were scored, and with its replicates if those are all of either."""
        return self.having(first, second) if self.seeds_by_model[first] != self.seeds_by_model[second] else self

    def of_seeds(self, seeds: Sequence[int]) -> Real:
        """The same of some trainings."""
        seeds_by_model = {
            name: tuple(seed for seed in own if seed in seeds) for name, own in self.seeds_by_model.items()
        }
        places = {
            name: [self.seeds_by_model[name].index(seed) for seed in common]
            for name, common in seeds_by_model.items()
            if common
        }
        rewards = {name: tuple(task[common] for task in self.rewards[name]) for name, common in places.items()}
        return Real(self.agents, self.prompt_count, rewards, {name: seeds_by_model[name] for name in rewards})

    def difference(self, first: str, second: str) -> Estimate:
        """The first's mean less the second's, in points, on the same trainings and prompts."""
        both = self.having_both(first, second)
        value = float((both.by_task(first) - both.by_task(second)).mean())
        return statistics.estimate(value, both.draws[first] - both.draws[second])

    @cached_property
    def draws(self) -> dict[str, Floats]:
        """Replicates of the means; every draw is shared by all models of the same trainings."""
        by_model: dict[str, Floats] = {}
        for seeds in dict.fromkeys(self.seeds_by_model.values()):
            names = [name for name, own in self.seeds_by_model.items() if own == seeds]
            together = [np.stack(task, axis=2) for task in zip(*(self.rewards[name] for name in names), strict=True)]
            by_model |= zip(names, statistics.replicates(together).T, strict=True)
        return by_model


def read(results: Results, kind: str = "real") -> Real | None:
    """Results of the trainings with most tasks; None without enough of them.

    Args:
        results: all that is kept.
        kind: `real`, computed in float32 by transformers, or `served`, in bfloat16 by a server.
    """
    files = [content for content in results.kept_all(f"{kind}-*") if BASE in content["models"]]
    if not files:
        return None
    first = max(files, key=lambda content: len(content["agents"]))
    alike = [content for content in files if _kind(content) == _kind(first)]
    having = {
        name: [content for content in alike if name in content["models"]]
        for name in dict.fromkeys(name for content in alike for name in content["models"])
    }
    tasks = tuple(first["agents"])
    rewards = {name: tuple(_rewards(runs, name, task) for task in tasks) for name, runs in having.items()}
    seeds_by_model = {name: tuple(content["seed"] for content in runs) for name, runs in having.items()}
    real = Real(tasks, first["prompts"], rewards, seeds_by_model)
    return real if real.merges else None


def asked_merges() -> list[str]:
    """The names of the merges that lab/real/compare.py scores."""
    return list(json.loads(_MERGES.read_text(encoding="utf-8")))


def _kind(content: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tasks and prompts. Trainings are compared where these are the same."""
    return sorted(content["agents"]), content["prompts"], content["prompt seed"]


def _rewards(alike: Sequence[Mapping[str, Any]], name: str, task: str) -> Floats:
    """Rewards of shape (seeds, prompts), from quarters: one digit a prompt."""
    return np.array([_quarters(content["models"][name][task]) for content in alike])


def _quarters(digits: str) -> list[float]:
    return [int(digit) / 4 for digit in digits]
