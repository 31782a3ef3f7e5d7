"""Rules on more kinds of real agents: more of them, near-copies, fine-tuned ones, LoRA.

    python lab/real/kinds.py --work .real --situation "four, bfloat16" --seeds 5 6 7

merges in memory with each rule and keeps the reward of every prompt in lab/results/kinds.json after each model, so
an interrupted run resumes. `--work` has the base, and for each seed the folders agents, agents-float32, sft and lora.
lab/experiments/035-real-agents.md has the situations, and what was predicted for them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from evaluate import replies_to
from peft import PeftModel
from tasks import TASKS, Example
from transformers import AutoModelForCausalLM, AutoTokenizer

import ramerge
from ramerge.core.foundation.files import write_file

RESULTS = Path(__file__).parents[1] / "results" / "kinds.json"
MERGES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("merges.json").read_text(encoding="utf-8"))
MERGES |= {
    "sum x 0.5": {"method": "task_arithmetic", "parameters": {"scale": 0.5}},
    "swudi": {"method": "swudi"},
    "core+ time=10": {"method": "core+", "parameters": {"time": 10.0}},
    "core+ time=100": {"method": "core+", "parameters": {"time": 100.0}},
    "swudi from core": {"method": "swudi", "parameters": {"init_mode": "core", "exp_time": 300.0}},
    "swudi time=1": {"method": "swudi", "parameters": {"exp_time": 1.0}},
    "swudi time=300": {"method": "swudi", "parameters": {"exp_time": 300.0}},
}
OTHERS = {"core+, others averaged": ("core+", "linear"), "swudi, others by core": ("swudi", "core")}
"""Rules for linear weights, with the rule for embeddings and vectors."""
_FIRST = (
    "task_arithmetic",
    "core",
    "core+",
    "sum x 0.8",
    "ram+ shared=rms",
    "ram+",
    "ties",
    "swudi",
    "ram+ shared=agree_max",
    "sum x 0.5",
    "ties density=0.1",
)
NEXT = {5: 6, 6: 7, 7: 5}
"""The second training of "eight"."""


@dataclass(frozen=True)
class Situation:
    """Agents to merge.

    Attributes:
        folder: of the agents in that of a training.
        dtype: of the merged model.
        tasks: of the agents.
        rules: names in `MERGES`, in the order in which they are scored.
        twice: whether the agents of another training are merged, too.
        rounding: of the merged model.
    """

    folder: str
    dtype: str
    tasks: tuple[str, ...] = tuple(TASKS)
    rules: tuple[str, ...] = _FIRST
    twice: bool = False
    rounding: str = "nearest"


_MENDED = ("task_arithmetic", "core", "sum x 0.8")
SITUATIONS = {
    "four, bfloat16": Situation("agents", "bfloat16", rules=(*_FIRST, "ram")),
    "four, float32": Situation("agents-float32", "float32"),
    "eight, float32": Situation("agents-float32", "float32", twice=True),
    "SFT": Situation("sft", "bfloat16"),
    "LoRA": Situation("lora", "float32"),
    "eight, bfloat16": Situation("agents", "bfloat16", rules=(*_FIRST, "ram"), twice=True),
    "two, bfloat16": Situation(
        "agents", "bfloat16", ("sum", "needle"), (*(rule for rule in _FIRST if rule != "sum x 0.5"), "ram")
    ),
}
MENDED = {
    "eight, bfloat16, written in float32": Situation("agents", "float32", rules=_MENDED, twice=True),
    "eight, bfloat16, rounded stochastically": Situation(
        "agents", "bfloat16", rules=_MENDED, twice=True, rounding="stochastic"
    ),
}
"""Those of lab/experiments/039-core-in-bfloat16.md, kept in a file of their own."""
_FLOW = (
    "core+, others averaged",
    "swudi, others by core",
    "core+ time=100",
    "swudi from core",
    "core+ time=10",
    "swudi time=1",
)
FLOW = {
    "flow, SFT": Situation("sft", "bfloat16", rules=_FLOW),
    "flow, LoRA": Situation("lora", "float32", rules=("core+ time=10", "core+ time=100", "swudi time=300")),
    "flow, eight, bfloat16": Situation("agents", "bfloat16", rules=_FLOW[:4], twice=True),
}
"""Those of lab/experiments/041-what-the-flow-does.md, likewise."""
_FIVE = ("task_arithmetic", "swudi", "core+", "ram+", "ties")
AFRESH = {f"{name}, afresh": replace(SITUATIONS[name], rules=_FIVE) for name in ("SFT", "LoRA")}
"""Those of lab/experiments/043-score-the-sum-first.md, likewise."""
ALL = SITUATIONS | MENDED | FLOW | AFRESH
Rewards = dict[str, str]
"""Of each task, the rewards of its prompts in quarters: one digit a prompt."""


class Scorer:
    """A model whose weights are replaced, and the prompts that it is asked."""

    def __init__(self, base: Path, prompts: int, batch: int) -> None:
        self.base, self.batch = base, batch
        self.model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
        self.asked: dict[str, list[Example]] = {name: task.examples("test", 0, prompts) for name, task in TASKS.items()}

    def merged(self, recipe: Mapping[str, Any], only_others: bool = False) -> None:
        """Make the model a merge, or only its embeddings and vectors."""
        places = dict(self.model.named_parameters())
        stream = ramerge.plan(recipe, options=ramerge.Options(threads=1)).tensors()
        with torch.no_grad():
            for tensor in stream:
                if not only_others or "embed" in tensor.name or "norm" in tensor.name:
                    places[tensor.name].copy_(tensor.torch())

    def agent(self, folder: Path) -> None:
        """Make the model one agent, or the base."""
        if (folder / "adapter_config.json").exists():
            model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
            model = PeftModel.from_pretrained(model, folder).merge_and_unload()
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.load_state_dict(model.state_dict())

    def rewards(self, tasks: tuple[str, ...]) -> Rewards:
        """Rewards of the model as it is."""
        found = {}
        for name in tasks:
            task, examples = TASKS[name], self.asked[name]
            texts = replies_to(self.model, self.tokenizer, task, examples, self.batch)
            rewards = [task.reward(text, one.answer) for text, one in zip(texts, examples, strict=True)]
            found[name] = "".join(str(round(4 * reward)) for reward in rewards)
        return found


def recipe(work: Path, situation: Situation, seed: int, rule: str) -> dict[str, Any]:
    """The merge of a training's agents by a rule."""
    seeds = (seed, NEXT[seed]) if situation.twice else (seed,)
    agents = {
        f"{task}-{one}": str((work / str(one) / situation.folder / task).resolve())
        for one in seeds
        for task in situation.tasks
    }
    return {
        "base": str((work / "base").resolve()),
        "agents": agents,
        "dtype": situation.dtype,
        "rounding": situation.rounding,
        **MERGES[rule],
    }


def wanted(name: str, seeds: list[int], known: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Training and model of all that is not scored yet: agents, then rule after rule."""
    models = ALL[name].rules if name in FLOW else ("agents", *ALL[name].rules)
    for model in models:
        for seed in seeds:
            if model not in known.get(str(seed), {}):
                yield seed, model


def measure(given: argparse.Namespace, name: str) -> None:
    """Score what is not scored yet of one situation."""
    situation, scorer = ALL[name], Scorer(given.work / "base", given.prompts, given.batch)
    kept: dict[str, Any] = {"prompts": given.prompts, "base": {}, "situations": {}}
    if given.out.exists():
        kept = json.loads(given.out.read_text(encoding="utf-8"))
    if kept["prompts"] != given.prompts:
        raise SystemExit(f"{given.out} has results of {kept['prompts']} prompts a task")
    if not kept["base"]:
        kept["base"] = scorer.rewards(tuple(TASKS))
    known = kept["situations"].setdefault(name, {})
    for seed, model in list(wanted(name, given.seeds, known)):
        began = time.perf_counter()
        if model == "agents":
            rewards = {}
            for task in situation.tasks:
                scorer.agent(given.work / str(seed) / situation.folder / task)
                rewards |= scorer.rewards((task,))
        else:
            rule, *others = OTHERS.get(model, (model,))
            scorer.merged(recipe(given.work, situation, seed, rule))
            for other in others:
                scorer.merged(recipe(given.work, situation, seed, other), only_others=True)
            rewards = scorer.rewards(situation.tasks)
        known.setdefault(str(seed), {})[model] = rewards
        write_file(given.out, json.dumps(kept, indent=1) + "\n")
        print(f"{name}, {seed}, {model}: {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    """Score situations one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".real"), help="folder of the base and of trainings by seed")
    parser.add_argument("--situation", choices=ALL, nargs="+", default=list(SITUATIONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7])
    parser.add_argument("--prompts", type=int, default=75, help="test prompts a task")
    parser.add_argument("--batch", type=int, default=75)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.situation:
        measure(given, name)


if __name__ == "__main__":
    main()
