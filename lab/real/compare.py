"""Rules for shared elements on the real agents: merge in bfloat16 and in float32, and score base, agents and merges.

    python lab/real/compare.py --work .real

keeps the reward of every prompt in lab/results/real-SEED.json after each model, so that a run that was stopped goes on;
SEED is that of the agents' training. All models see the same prompts, none of which occurs in training. No parameter is
chosen. `python -m lab page` renders the section of docs/findings.md from it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from evaluate import evaluate_task
from tasks import TASKS
from transformers import AutoModelForCausalLM, AutoTokenizer

import ramerge

MERGES: dict[str, dict[str, Any]] = {
    "ram": {"method": "ram"},
    "ram+": {"method": "ram+"},
    "ram+ shared=agree_max": {"method": "ram+", "parameters": {"shared": "agree_max"}},
    "linear": {"method": "linear"},
    "task_arithmetic": {"method": "task_arithmetic"},
}
FOLDERS = {"bfloat16": "agents", "float32": "agents-float32"}
"""Where the agents lie that are merged into an output of this dtype."""
RESULTS = Path(__file__).parents[1] / "results"


def merged(work: Path, agents: Sequence[str], name: str, dtype: str) -> Path:
    """One merge, in a folder that the next one replaces."""
    folder = work / "merge"
    shutil.rmtree(folder, ignore_errors=True)
    documents = {task: str((work / FOLDERS[dtype] / task).resolve()) for task in agents}
    ramerge.merge(
        {"base": str((work / "base").resolve()), "agents": documents, "dtype": dtype, **MERGES[name]}, folder, threads=1
    )
    return folder


def rewards(folder: Path, agents: Sequence[str], flags: dict[str, int]) -> dict[str, str]:
    """The reward of each prompt of each task, in quarters: one digit a prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    found = {task: evaluate_task(model, tokenizer, TASKS[task], flags)["rewards"] for task in agents}
    return {task: "".join(str(round(4 * reward)) for reward in values) for task, values in found.items()}


def training(work: Path, task: str) -> dict[str, Any]:
    """What is known of an agent's training."""
    log = json.loads((work / "agents" / task / "train.json").read_text(encoding="utf-8"))
    return {key: log["settings"][key] for key in ("steps", "lr", "seed")}


def main() -> None:
    """Merge, score, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".real"), help="folder of base, agents and agents-float32")
    parser.add_argument("--agents", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--prompts", type=int, default=100, help="test prompts a task")
    parser.add_argument("--seed", type=int, default=0, help="seed of the test prompts")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file of results; default: lab/results/real-SEED.json")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    flags = {"prompts": given.prompts, "seed": given.seed, "batch": given.batch}
    models = {"base": given.work / "base", **{task: given.work / "agents" / task for task in given.agents}}
    agents = {task: training(given.work, task) for task in given.agents}
    seeds = sorted({agent.pop("seed") for agent in agents.values()})
    if len(seeds) != 1:
        raise SystemExit(f"{given.work} has agents of several seeds: {', '.join(map(str, seeds))}")
    kept: dict[str, Any] = {"prompts": given.prompts, "prompt seed": given.seed, "seed": seeds[0], "agents": agents}
    kept["models"] = {}
    out = given.out or RESULTS / f"real-{seeds[0]}.json"
    if out.exists():
        before = json.loads(out.read_text(encoding="utf-8"))
        if {**before, "models": {}} != kept:
            raise SystemExit(f"{out} holds results of other agents or prompts: remove it first")
        kept = before
    for name in (*models, *(f"{merge}, {dtype}" for dtype in FOLDERS for merge in MERGES)):
        if name in kept["models"]:
            continue
        began = time.perf_counter()
        folder = models[name] if name in models else merged(given.work, given.agents, *name.split(", "))
        kept["models"][name] = rewards(folder, given.agents, flags)
        out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
