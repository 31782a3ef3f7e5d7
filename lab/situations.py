"""Which rule is safe in every situation: 23 kinds of agents to merge, each with the same rules and no tuned parameter.

    python -m lab.situations --seeds 20 21 22

trains a base for eight tasks and agents of all kinds, merges and scores them, keeps the scores in
lab/results/situations.json, and resumes an interrupted run. Any seeds can be given: with other seeds than those that
are kept, `--out` writes the scores to a file of yours, and nothing in the repository changes. The table is printed, and
`lab/experiments/032-situations.md` has what was predicted before anything was scored.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ramerge
from lab import measure
from lab.claims import signed
from lab.model import Questions, Weights, read_model, write_model
from lab.predictions import CAME_TRUE, FAILED, Expected
from lab.results import RESULTS
from lab.rows import Row
from lab.statistics import Estimate, over_seeds
from lab.store import once
from lab.tasks import EIGHT, SEED, held_out
from lab.training import Practice, Schooling, adapt, adapted, school, train
from ramerge.core.foundation.files import write_file

KEPT = RESULTS / "situations.json"
TEST = 300
SCHOOLING = Schooling(steps=1100)
_RANK = 8

_RATES = (2e-2, 1e-2, 5e-3, 2e-2, 1e-2, 1e-2, 1e-2, 1e-2)
_RL = Practice(100, _RATES)
KINDS: Mapping[str, Practice] = {
    "rl": _RL,
    "rl-float32": replace(_RL, rounded=False),
    "rl-adam": Practice(40, (2e-4,) * 8, optimizer="adam"),
    "rl-long": replace(_RL, steps=300),
    "sft": Practice(60, (5e-4,) * 8, optimizer="adam", supervised=True, prompts=32),
    "sft-light": Practice(20, (2e-4,) * 8, optimizer="adam", supervised=True, prompts=32),
    "lora": Practice(100, (1.5e-3,) * 8, optimizer="adam", rounded=False),
}
"""How agents are trained."""


@dataclass(frozen=True)
class Agent:
    """An agent: how it was trained, on which task, and which training of that kind it is."""

    kind: str
    task: int
    training: int = 0

    @property
    def name(self) -> str:
        """What folders and recipes call it."""
        return f"{self.kind}-{EIGHT[self.task].name}-{self.training}"


@dataclass(frozen=True)
class Situation:
    """Agents to merge, some perhaps more than once, and the dtype of the merged model."""

    name: str
    agents: tuple[Agent, ...]
    dtype: str = "bfloat16"

    @property
    def tasks(self) -> tuple[int, ...]:
        """Indices of the tasks that agents were trained on, each once."""
        return tuple(dict.fromkeys(agent.task for agent in self.agents))


def _first(kind: str, count: int) -> tuple[Agent, ...]:
    return tuple(Agent(kind, task) for task in range(count))


SITUATIONS: tuple[Situation, ...] = (
    *(Situation(f"RL, {count} agents", _first("rl", count)) for count in (2, 3, 5, 8)),
    *(Situation(f"RL in float32, {count} agents", _first("rl-float32", count), "float32") for count in (3, 5, 8)),
    *(Situation(f"RL with Adam, {count} agents", _first("rl-adam", count)) for count in (3, 5)),
    *(Situation(f"SFT, {count} agents", _first("sft", count)) for count in (3, 5, 8)),
    *(Situation(f"light SFT, {count} agents", _first("sft-light", count)) for count in (3, 5)),
    *(Situation(f"LoRA, {count} agents", _first("lora", count), "float32") for count in (2, 3, 5)),
    Situation("RL, one of 3 given three times", (*_first("rl", 3), *[Agent("rl", 0)] * 2)),
    Situation("RL, one of 3 trained three times", (*_first("rl", 3), Agent("rl", 0, 1), Agent("rl", 0, 2))),
    Situation("SFT, one of 3 trained three times", (*_first("sft", 3), Agent("sft", 0, 1), Agent("sft", 0, 2))),
    Situation("RL, one of 3 trained longer", (Agent("rl-long", 0), Agent("rl", 1), Agent("rl", 2))),
    Situation("RL and SFT", (Agent("rl", 0), Agent("rl", 1), Agent("sft", 2), Agent("sft", 3))),
    Situation("RL in float32, SFT and LoRA", (Agent("rl-float32", 0), Agent("sft", 1), Agent("lora", 2)), "float32"),
)

COMMON = (
    Row("sum", "task_arithmetic"),
    Row("sum x 0.7", "task_arithmetic", {"scale": 0.7}),
    Row("sum x 0.8", "task_arithmetic", {"scale": 0.8}),
    Row("average", "linear"),
    Row("ram", "ram"),
    Row("ram+", "ram+"),
    Row("agree_max", "ram+", {"shared": "agree_max"}),
    Row("rms", "ram+", {"shared": "rms"}),
    Row("ties 0.1", "ties", {"density": 0.1}),
    Row("ties 0.2", "ties", {"density": 0.2}),
    Row("swudi", "swudi"),
    Row("tsvm", "tsvm"),
)
"""Twelve rules with their defaults. The best of them in each situation, picked after the fact, is the bar."""
CORE = (Row("core", "core"), Row("core+", "core+"))
VARIED = (
    Row("core power=0.5", "core", {"power": 0.5}),
    Row("core power=1", "core", {"power": 1.0}),
    Row("core rank=8", "core", {"rank": 8}),
    Row("core rank=32", "core", {"rank": 32}),
    Row("core+ time=0.5", "core+", {"time": 0.5}),
    Row("core+ time=2", "core+", {"time": 2.0}),
)
"""The rule with its constants moved, on seeds that did not choose them."""
ROWS = (*COMMON, *CORE, *VARIED)


# --- measuring -------------------------------------------------------------------------------------------------------


def scores_of(work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Of each situation the per cent of right answers, as a mean over its tasks, of every rule and of the agents.

    With them `density` and `cosine`, by which `ramerge recommend` tells situations apart: of the agents' task vectors
    the mean density, and the greatest cosine of two.
    """
    torch.set_num_threads(1)
    folder = work / f"seed-{seed}"
    base = _model(folder / "base", "bfloat16", partial(school, seed, SCHOOLING, tasks=EIGHT))
    test = [Questions(held_out(task, 0, TEST, SEED + seed)[1]) for task in EIGHT]
    found = {}
    for situation in SITUATIONS:
        path = folder / "scores" / f"{situation.name}.json"
        found[situation.name] = once(path, partial(_scores, folder, base, seed, situation, test))
        path = folder / "geometry" / f"{situation.name}.json"
        found[situation.name] |= once(path, partial(_geometry, folder, situation))
        print(f"seed {seed}: {situation.name}", file=sys.stderr, flush=True)
    return found


def _scores(
    folder: Path, base: Weights, seed: int, situation: Situation, test: Sequence[Questions]
) -> dict[str, float]:
    agents: dict[str, str] = {}
    own = []
    for place, agent in enumerate(situation.agents):
        path = folder / "agents" / agent.name
        weights = _trained(path, base, seed, agent)
        agents[f"a{place}"] = str(path)
        own.append(measure.mean_right(weights, {"": test[agent.task]}))
    asked = {EIGHT[task].name: test[task] for task in situation.tasks}
    recipe = {"base": str(folder / "base"), "agents": agents, "dtype": situation.dtype}
    scores = {"base": measure.mean_right(base, asked), "agents": float(np.mean(own))}
    scores |= {row.name: measure.mean_right(_merged(recipe, row), asked) for row in ROWS}
    return {name: round(100 * value, 3) for name, value in scores.items()}


def _geometry(folder: Path, situation: Situation) -> dict[str, float]:
    agents = {f"a{place}": str(folder / "agents" / agent.name) for place, agent in enumerate(situation.agents)}
    recipe = {"base": str(folder / "base"), "agents": agents, "dtype": situation.dtype}
    model = ramerge.analyze(recipe, options=ramerge.Options(threads=1, cache=False)).model
    density = float(np.mean([agent.density for agent in model.agents]))
    return {"density": round(density, 4), "cosine": round(max(pair.cosine for pair in model.pairs), 4)}


def _trained(folder: Path, base: Weights, seed: int, agent: Agent) -> Weights:
    how, task = KINDS[agent.kind], EIGHT[agent.task]
    other = seed + 1_000_000 * agent.training  # other prompts and samples, the same base

    def make() -> Weights:
        if agent.kind == "lora":
            return adapted(base, adapt(base, task, other, how, _RANK, 100 + agent.task, EIGHT))
        return train(base, task, other, how, tasks=EIGHT)

    return _model(folder, "bfloat16" if how.rounded else "float32", make)


def _model(folder: Path, dtype: str, make: Any) -> Weights:
    if not (folder / "model.safetensors").exists():
        write_model(folder, make(), getattr(torch, dtype))
    return read_model(folder)


def _merged(recipe: Mapping[str, Any], row: Row) -> Weights:
    asked = {**recipe, "method": row.method, "parameters": dict(row.fixed)}
    plan = ramerge.plan(asked, options=ramerge.Options(threads=1, cache=False))
    return {tensor.name: tensor.torch().float() for tensor in plan.tensors()}


# --- what it says ----------------------------------------------------------------------------------------------------


Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Safety:
    """How a rule does over all situations.

    Attributes:
        mean: over situations and seeds, in per cent.
        worst: the situation in which it is farthest below the best of `COMMON`, mean over seeds.
        behind: how far, in points; negative if it is below.
    """

    mean: float
    worst: str
    behind: float


def table(kept: Mapping[str, Any]) -> dict[str, Safety]:
    """Every rule's mean and its worst situation, from what `main` keeps."""
    scores, names = _array(kept), [one.name for one in SITUATIONS]
    by_rule = {row.name: scores[:, :, place] for place, row in enumerate(ROWS)}
    best = np.stack([by_rule[row.name].mean(0) for row in COMMON]).max(0)
    found = {}
    for name, values in by_rule.items():
        behind = values.mean(0) - best
        place = int(behind.argmin())
        found[name] = Safety(float(values.mean()), names[place], float(behind[place]))
    return found


def difference(kept: Mapping[str, Any], rule: str, other: str) -> Estimate:
    """One rule less another, as a mean over situations, with the bootstrap's interval over seeds."""
    scores, names = _array(kept), [row.name for row in ROWS]
    means = scores[:, :, names.index(rule)] - scores[:, :, names.index(other)]
    return over_seeds(means.mean(1).tolist())


def _array(kept: Mapping[str, Any]) -> Scores:
    """Of shape (seeds, situations, rules)."""
    return np.array(
        [[[one[situation.name][row.name] for row in ROWS] for situation in SITUATIONS] for one in kept.values()]
    )


Line = tuple[str, str, str, str, str]
_LESS = (
    ("2", "core+", "rms", Expected(1, 5, apart=1)),
    ("3", "core", "rms", Expected(0.5, 4)),
    ("8", "core power=0.5", "core", Expected(-2, 0.5)),
    ("8", "core power=1", "core", Expected(-2, 0.5)),
    ("9", "core rank=8", "core", Expected(-0.7, 0.7)),
    ("9", "core rank=32", "core", Expected(-0.7, 0.7)),
    ("10", "core+ time=0.5", "core+", Expected(-1, 1)),
    ("10", "core+ time=2", "core+", Expected(-1, 1)),
)
_WORST = (
    ("4", "core+", Expected(-6, -1)),
    ("5", "core", Expected(-9, -2)),
    *(("6", name, Expected(-math.inf, -15)) for name in ("sum", "average", "ram+")),
)


def predicted(kept: Mapping[str, Any]) -> list[Line]:
    """The predictions of lab/experiments/032-situations.md, what was measured, and whether they came true."""
    found = table(kept)
    rules = [row.name for row in (*COMMON, *CORE)]
    best = max(rules, key=lambda name: found[name].mean)
    lines = [
        ("1", "the highest mean of the 14 rules", "`core+`", f"`{best}`", CAME_TRUE if best == "core+" else FAILED)
    ]
    for number, rule, other, expected in _LESS:
        apart = difference(kept, rule, other)
        lines.append((number, f"`{rule}` minus `{other}`", expected.range, signed(apart), expected.judged(apart)))
    for number, rule, expected in _WORST:
        one = found[rule]
        told = f"{one.behind:+.1f} ({one.worst})"
        lines.append((number, f"`{rule}` in its worst situation", expected.range, told, expected.verdict(one.behind)))
    one, below = found["swudi"], Expected(-math.inf, -20)
    in_lora = one.worst.startswith("LoRA") and one.behind <= -20
    told = f"{one.behind:+.1f} ({one.worst})"
    lines.append(
        ("7", "`swudi` in its worst situation, with LoRA agents", below.range, told, CAME_TRUE if in_lora else FAILED)
    )
    return sorted(lines, key=lambda line: int(line[0]))


def text(kept: Mapping[str, Any]) -> str:
    """The table as Markdown, with the differences of `core+` below."""
    lines = ["| rule | mean | worst against the best of 12 | where |", "|---|---:|---:|---|"]
    for name, one in sorted(table(kept).items(), key=lambda item: -item[1].mean):
        lines.append(f"| {name} | {one.mean:.1f} | {one.behind:+.1f} | {one.worst} |")
    lines.append("")
    for rule, other in (("core+", "rms"), ("core", "rms"), ("core+", "core"), ("core+", "ram+"), ("core+", "sum")):
        found = difference(kept, rule, other)
        lines.append(f"- {rule} minus {other}: {found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f})")
    return "\n".join(lines)


def keep(score: Callable[[int], Any], seeds: Sequence[int], jobs: int, out: Path) -> dict[str, Any]:
    """Score seeds in so many processes, and write what is found to a file, a line for each seed."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        kept = {str(seed): one for seed, one in zip(seeds, pool.map(score, seeds), strict=True)}
    lines = ",\n".join(f" {json.dumps(seed)}: {json.dumps(one)}" for seed, one in kept.items())
    write_file(out, f"{{\n{lines}\n}}\n")
    return kept


def main() -> None:
    """Do what is not done yet, keep the scores, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".lab/situations"), help="folder for agents and scores")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20, 30)), help="default: 20 to 29")
    parser.add_argument("--out", type=Path, default=KEPT, help="file for the scores")
    parser.add_argument("--jobs", type=int, default=2, help="processes, each for a seed; default: 2")
    given = parser.parse_args()
    print(text(keep(partial(scores_of, given.work), given.seeds, given.jobs, given.out)))


if __name__ == "__main__":
    main()
