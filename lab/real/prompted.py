"""Merges of real agents with a few unlabeled prompts: what `regmean` gives, and how well agreement chooses.

    python lab/real/prompted.py --work .real --seed 51 --situation SFT LoRA --out lab/results/prompted.json

merges the agents of a training with every rule in memory, keeps the reward of every held-out prompt, and for 16 other
prompts of each task how likely the merge finds the agents' own replies. Statistics are gathered on 16 prompts of the
training half. `lab/experiments/044-prompts.md` has what was predicted. A model that is in the file is not scored again.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks import ALL_TASKS, LONG_TASKS, TASKS, Task

import ramerge
from ramerge.calibration.agreement import likelihoods, replies_of
from ramerge.calibration.calibrate import gather_agents
from ramerge.calibration.live_base import LiveBase
from ramerge.calibration.prompts import Prompt, halves, read_prompts
from ramerge.calibration.speaker import Speaker
from ramerge.core.foundation.files import write_file
from ramerge.core.foundation.progress import silence

RESULTS = Path(__file__).parents[1] / "results" / "prompted.json"
TOKENS = 24
"""Of a reply; the longest that one of the four tasks needs is 20."""
LONG_TOKENS = 140

RULES: dict[str, dict[str, Any]] = {
    "sum": {"method": "task_arithmetic"},
    "sum x 0.8": {"method": "task_arithmetic", "parameters": {"scale": 0.8}},
    "sum x 0.5": {"method": "task_arithmetic", "parameters": {"scale": 0.5}},
    "sum x 1.3": {"method": "task_arithmetic", "parameters": {"scale": 1.3}},
    "sum x 1.6": {"method": "task_arithmetic", "parameters": {"scale": 1.6}},
    "ram": {"method": "ram"},
    "ram+": {"method": "ram+"},
    "ties": {"method": "ties"},
    "core": {"method": "core"},
    "core+": {"method": "core+"},
    "swudi": {"method": "swudi"},
    "regmean 0.01": {"method": "regmean", "parameters": {"ridge": 0.01}},
    "regmean 0.1": {"method": "regmean", "parameters": {"ridge": 0.1}},
    "regmean 1": {"method": "regmean", "parameters": {"ridge": 1.0}},
    "regmean 10": {"method": "regmean", "parameters": {"ridge": 10.0}},
}
"""The candidates."""
PRIORS: dict[str, dict[str, Any]] = {
    "regmean towards the mean": {"method": "regmean", "parameters": {"towards": "mean"}},
    "regmean towards half the sum": {"method": "regmean", "parameters": {"share": 0.5}},
    "RegMean, as published": {"method": "regmean", "preset": "paper"},
}
STATISTICS: dict[str, dict[str, Any]] = {
    "4 prompts": {"count": 4},
    "8 prompts": {"count": 8},
    "32 prompts": {"count": 32},
    "prompts alone": {"record": "prompt"},
    "the base's inputs": {"source": "base"},
    "128 rows": {"rows": 128},
    "2048 rows": {"rows": 2048},
    "64 prompts": {"count": 64},
    "sampled replies": {"temperature": 1.0},
    "prompts of another task": {"text": "another task"},
    "general prompts": {"text": "general", "reward": ""},
    "own and general prompts": {"text": "own and general", "reward": ""},
}
"""Other statistics for `regmean 0.01`: settings that differ; `text` says whose prompts
an agent gets instead of its own, or as many besides."""
GENERAL = Path(__file__).with_name("ifeval.jsonl")
"""Instructions that belong to no task."""


@dataclass(frozen=True)
class Situation:
    """Agents to merge.

    Attributes:
        folders: for each agent's task the folders of its agents in that of a training.
        dtype: of the merged model.
        unseen: tasks that no agent was trained on and no prompt shows.
    """

    folders: Mapping[str, tuple[str, ...]]
    dtype: str = "bfloat16"
    unseen: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """The most tokens of a reply."""
        return LONG_TOKENS if LONG_TASKS.keys() & self.folders.keys() else TOKENS


def agents_of(situation: Situation, work: Path, seed: int) -> dict[str, str]:
    """The folder of each agent, by name."""
    return {
        f"{task}-{folder}": str((work / str(seed) / folder / task).resolve())
        for task, folders in situation.folders.items()
        for folder in folders
    }


def _all(*folders: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(TASKS, folders)


SITUATIONS = {
    "SFT": Situation(_all("sft")),
    "LoRA": Situation(_all("lora"), "float32"),
    "RL": Situation(_all("agents")),
    "RL, float32": Situation(_all("agents-float32"), "float32"),
    "two, RL": Situation(dict.fromkeys(("call", "needle"), ("agents",))),
    "mixture": Situation({"sum": ("agents",), "call": ("agents",), "fact": ("sft",), "needle": ("sft",)}),
    "eight": Situation(_all("agents", "sft")),
    "unseen": Situation({task: ("sft",) for task in TASKS if task != "needle"}, unseen=("needle",)),
    "unseen, RL": Situation({task: ("agents",) for task in TASKS if task != "needle"}, unseen=("needle",)),
    "long, SFT": Situation(dict.fromkeys(("steps", "call", "needle"), ("sft",))),
    "long, RL": Situation(dict.fromkeys(("steps", "call", "needle"), ("agents",))),
    "adapter and full": Situation({**_all("sft"), "fact": ("lora",)}, "float32"),
}


def prompts_of(task: Task, count: int, half: str, seed: int) -> list[Prompt]:
    """Problems of a task as prompts, with their answers for the reward."""
    return [
        Prompt(
            f"{task.name} {place}",
            None,
            tuple(task.messages(example)),
            reward_fields={"data_source": task.name, "ground_truth": example.answer, "extra_info": {}},
        )
        for place, example in enumerate(task.examples(half, seed, count))
    ]


@dataclass(frozen=True)
class Experiment:
    """One situation of one training.

    Attributes:
        live: the model.
        work: the folder of the base and of trainings.
        seed: of the training.
        situation: the agents.
        settings: of what is gathered.
        asked: test problems of each task.
        batch: how many are asked at once.
    """

    live: LiveBase
    work: Path
    seed: int
    situation: Situation
    settings: ramerge.CalibrationSettings
    asked: Mapping[str, Sequence[Prompt]]
    batch: int

    @property
    def agents(self) -> dict[str, str]:
        """By name, the folder."""
        return agents_of(self.situation, self.work, self.seed)

    @property
    def tasks(self) -> list[str]:
        """The tasks that some agent was trained on."""
        return list(self.situation.folders)

    def gathered(self, place: Path, text: str = "own", **changed: Any) -> Path:
        """The folder of what was gathered of all agents on problems of the training half."""
        settings = replace(self.settings, **{"hold_out": True, **changed})
        shift = 1 if text == "another task" else 0
        asked = dict(zip(self.tasks, self.tasks[shift:] + self.tasks[:shift], strict=True))
        # without a held-out half: the same half of 32 that statistics see, or a part of it
        count = settings.count if settings.hold_out else 2 * settings.count
        problems = {task: prompts_of(ALL_TASKS[task], count, "train", 10_000 + self.seed) for task in self.tasks}
        if not settings.hold_out:
            problems = {task: halves(found)[0][: settings.count] for task, found in problems.items()}
        if text == "general":
            problems = dict.fromkeys(self.tasks, read_prompts(GENERAL)[: settings.count])
        if text == "own and general":
            problems = {task: [*found, *read_prompts(GENERAL)[: settings.count]] for task, found in problems.items()}
            settings = replace(settings, count=2 * settings.count)
        prompts = {name: problems[asked[name.partition("-")[0]]] for name in self.agents}
        options = ramerge.Options(overwrite=True)
        gather_agents(self.live, prompts, place, settings, options, silence)
        return place

    def recipe(self, rule: Mapping[str, Any], inputs: Path | None) -> dict[str, Any]:
        """The merge of all agents by a rule."""
        agents: dict[str, Any] = {
            name: {"model": model, "inputs": str(inputs / name)} if inputs is not None else model
            for name, model in self.agents.items()
        }
        return {"base": self.live.models.base, "agents": agents, "dtype": self.situation.dtype, **rule}

    def rewards(self, tasks: Sequence[str]) -> dict[str, str]:
        """Of the model as it is on test problems: by task one digit a prompt, in quarters."""
        return {name: self._rewards_on(name, self.asked[name]) for name in tasks}

    def own_rewards(self) -> dict[str, str]:
        """Of the model's own replies to each agent's held-out prompts, as `ramerge search --generate` asks for them."""
        held_out = {
            task: halves(
                prompts_of(ALL_TASKS[task], self.settings.count, "train", 10_000 + self.seed), self.settings.prompt_seed
            )[1]
            for task in self.tasks
        }
        digits = {task: self._rewards_on(task, prompts) for task, prompts in held_out.items()}
        return {name: digits[name.partition("-")[0]] for name in self.agents}

    def _rewards_on(self, task: str, prompts: Sequence[Prompt]) -> str:
        speaker = Speaker("model", self.live.live, self.live.tokenizer_of(), self.situation.tokens)
        rows = [(prompt, *speaker.question(prompt)) for prompt in prompts]
        replies = [
            reply.text
            for start in range(0, len(rows), self.batch)
            for reply in speaker.replies(rows[start : start + self.batch])
        ]
        rewards = [
            ALL_TASKS[task].reward(reply, prompt.reward_fields["ground_truth"])
            for reply, prompt in zip(replies, prompts, strict=True)
        ]
        return "".join(str(round(4 * reward)) for reward in rewards)


@dataclass(frozen=True)
class Candidates:
    """The merges to score, besides the base and the agents.

    Attributes:
        only: names in `RULES`.
        priors: whether those of `PRIORS` are, too.
        statistics: names in `STATISTICS`.
        sampled: whether agreement is measured with sampled replies, too.
        counts: other numbers of prompts a task with which agreement is measured, too.
    """

    only: Sequence[str]
    priors: bool
    statistics: Sequence[str]
    sampled: bool
    counts: Sequence[int]


def measure(experiment: Experiment, place: Path, kept: dict[str, Any], candidates: Candidates) -> Iterator[str]:
    """Score what is not scored yet; gives what was done after each model."""
    folder = experiment.gathered(place / "statistics")
    replies = replies_of(folder)
    sets = {
        "right": replies,
        "all": replace(replies, exchanges={name: held_out(folder, name) for name in experiment.agents}, counts={}),
    }
    if candidates.sampled:
        other = experiment.gathered(place / "sampled", gather="replies", temperature=1.0)
        sets["right, sampled"] = replies_of(other)
    for count in candidates.counts:
        other = experiment.gathered(place / f"{count} prompts", gather="replies", count=count)
        sets[f"right, {count} prompts"] = replies_of(other)
    if "agents" not in kept:
        rewards: dict[str, list[str]] = {}
        for name in experiment.agents:
            experiment.live.put_agent(name)
            task = name.partition("-")[0]
            rewards.setdefault(task, []).append(experiment.rewards([task])[task])
        kept["agents"] = {task: max(found, key=lambda digits: sum(map(int, digits))) for task, found in rewards.items()}
        yield "agents"
    if "base" not in kept:
        experiment.live.put_base()
        kept["base"] = experiment.rewards(experiment.tasks)
        if experiment.situation.unseen:
            kept["base, unseen"] = experiment.rewards(experiment.situation.unseen)
        yield "base"
    todo: list[tuple[str, dict[str, Any], Path]] = [(name, RULES[name], folder) for name in candidates.only]
    todo += [(name, rule, folder) for name, rule in PRIORS.items()] if candidates.priors else []
    for name in candidates.statistics:
        other = place / name.replace(" ", "-")
        if not other.exists():
            experiment.gathered(other, **{"hold_out": False, "count": 16, **STATISTICS[name]})
        todo.append((f"regmean 0.01, {name}", RULES["regmean 0.01"], other))
    for name, rule, inputs in todo:
        one = kept.setdefault(name, {})
        missing = [which for which in sets if which not in one]
        if not missing:
            continue
        began = time.perf_counter()
        recipe = experiment.recipe(rule, inputs if rule["method"] == "regmean" else None)
        experiment.live.put(ramerge.plan(recipe, options=ramerge.Options()))
        merged = time.perf_counter() - began
        for which in missing:
            (likely,) = likelihoods(experiment.live.live, sets[which])
            items = {agent: each[each[:, 1] > 0].round(4) for agent, each in likely.items()}
            one[which] = {agent: each.tolist() for agent, each in items.items()}
        if "rewards" not in one:
            one["rewards"] = experiment.rewards(experiment.tasks)
            if name in RULES:
                one["own"] = experiment.own_rewards()
            one["merging"] = round(merged, 1)
            if experiment.situation.unseen:
                one["unseen"] = experiment.rewards(experiment.situation.unseen)
        yield name


def held_out(folder: Path, name: str) -> list[Any]:
    """The replies of an agent that no statistic has seen, whatever they earned."""
    from ramerge.calibration.exchanges import REPLIES, read_exchanges

    return [each for each in read_exchanges(folder / name / REPLIES) if each.held_out]


def calibration_settings(device: str, dtype: str) -> ramerge.CalibrationSettings:
    """Settings of every calibration here: 32 prompts an agent, half of them held out, with the tasks' rewards."""
    reward = f"{Path(__file__).with_name('reward.py')}:compute_score"
    return ramerge.CalibrationSettings(
        count=32, rows=512, max_new=TOKENS, reward=reward, device=device, dtype=dtype, batch=32
    )


def _dumped(kept: Mapping[str, Any]) -> str:
    """JSON with a line for each list, because most of it are pairs of numbers."""
    return re.sub(r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()), json.dumps(kept, indent=1)) + "\n"


def main() -> None:
    """Score situations one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".real"), help="folder of the base and of trainings by seed")
    parser.add_argument("--situation", choices=SITUATIONS, nargs="+", default=["SFT", "LoRA", "RL"])
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--prompts", type=int, default=75, help="test prompts a task")
    parser.add_argument("--batch", type=int, default=75)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of the model while it is scored")
    parser.add_argument("--only", nargs="+", choices=RULES, default=list(RULES), help="candidates; default: all")
    parser.add_argument("--statistics", nargs="+", choices=STATISTICS, default=[], help="also other statistics")
    parser.add_argument("--priors", action="store_true", help="also other priors")
    parser.add_argument("--sampled", action="store_true", help="also agreement with sampled replies")
    parser.add_argument("--counts", type=int, nargs="+", default=[], help="also agreement with so many prompts a task")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    settings = calibration_settings(given.device, given.dtype)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    candidates = Candidates(given.only, given.priors, given.statistics, given.sampled, given.counts)
    asked = {name: prompts_of(task, given.prompts, "test", 0) for name, task in ALL_TASKS.items()}
    for name in given.situation:
        agents = agents_of(SITUATIONS[name], given.work, given.seed)
        models = ramerge.Recipe(method="uniform", base=(given.work / "base").resolve(), agents=agents)
        situation = SITUATIONS[name]
        settings = replace(settings, max_new=situation.tokens)
        with LiveBase(models, settings, ramerge.Options()) as live:
            experiment = Experiment(live, given.work, given.seed, situation, settings, asked, given.batch)
            known = kept.setdefault(name, {}).setdefault(str(given.seed), {})
            place = given.work / str(given.seed) / f"prompted-{name.replace(' ', '-')}"
            began = time.perf_counter()
            for done in measure(experiment, place, known, candidates):
                write_file(given.out, _dumped(kept))
                print(f"{name}, {given.seed}, {done}: {time.perf_counter() - began:.0f} s", flush=True)
                began = time.perf_counter()


if __name__ == "__main__":
    main()
