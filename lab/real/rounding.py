"""The effect of rounding on merges of two agents: nearest, stochastic and float32 outputs, of four methods.

    python lab/real/rounding.py --base .real/base --agent fact=.real/agents/fact --agent sum=.real/agents/sum --out DIR

merges (what is there already is kept), prints what the records say of rounding, scores every merge on the tasks that
the agents are named after, and prints the scores with paired differences against rounding to nearest. Results are
written to DIR/scores.json after every model, so that a run that was stopped goes on. A seed is one more column:
--seeds 0 1 2.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from evaluate import evaluate_task, named_directory
from tasks import TASKS
from transformers import AutoModelForCausalLM, AutoTokenizer

import ramerge

METHODS: dict[str, dict[str, Any]] = {
    "RAM": {"method": "ram"},
    "RAM+": {"method": "ram+"},
    "average": {"method": "task_arithmetic", "parameters": {"normalize": True}},
    "TIES": {"method": "ties"},
}


def outputs(seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Ways to round, by name."""
    coins = {f"stochastic, seed {seed}": {"rounding": "stochastic", "rounding_seed": seed} for seed in seeds}
    return {"nearest": {}, **coins, "float32": {"dtype": "float32"}}


def merged(flags: argparse.Namespace) -> dict[tuple[str, str], Path]:
    """All merges, by method and output."""
    agents = {name: str(folder.resolve()) for name, folder in flags.agent}
    found = {}
    for method in flags.methods:
        how = METHODS[method]
        for output, rounded in outputs(flags.seeds).items():
            folder = flags.out / f"{method} {output}".replace(", ", "-").replace(" ", "-")
            if not (folder / "ramerge.json").exists():
                ramerge.merge({"base": str(flags.base.resolve()), "agents": agents, **how, **rounded}, folder)
            found[method, output] = folder
    return found


def rounding_table(merges: Mapping[tuple[str, str], Path]) -> str:
    """Statements of the records, agent by agent."""
    lines = [
        "| method | output | agent | erased | grown | nominal lambda | effective lambda |",
        "|---|---|---|" + "---:|" * 4,
    ]
    for (method, output), folder in merges.items():
        for name, agent in json.loads((folder / "ramerge.json").read_text())["agents"].items():
            if "sampled" in agent:
                shares = f"{agent['erased_share']:.1%} | {agent['grown_share']:.1%}"
                effective = f"{agent['effective_lambda']:.3f} ± {agent['effective_error']:.3f}"
                lambdas = f"{agent['nominal_lambda']:.3f} | {effective}"
                lines.append(f"| {method} | {output} | {name} | {shares} | {lambdas} |")
    return "\n".join(lines)


def rewards_of(folder: Path, tasks: Sequence[str], settings: dict[str, int]) -> list[float]:
    """The rewards of all prompts, task after task."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    found = [evaluate_task(model, tokenizer, TASKS[task], settings)["rewards"] for task in tasks]
    return [float(reward) for rewards in found for reward in rewards]


def percent(values: Sequence[float], sign: str = "") -> str:
    """A mean with its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{100 * statistics.fmean(values):{sign}.1f} ± {100 * error:.1f}"


def score_table(scores: Mapping[str, Sequence[float]]) -> str:
    """Mean rewards, and paired differences against rounding to nearest."""
    names = list(dict.fromkeys(name.split(": ")[1] for name in scores))
    lines = [f"| method | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for method in dict.fromkeys(name.split(": ")[0] for name in scores):
        nearest, cells = scores.get(f"{method}: nearest"), []
        for name in names:
            own = scores.get(f"{method}: {name}")
            if own is None or nearest is None:
                cells.append("")
            elif name == "nearest":
                cells.append(percent(own))
            else:
                difference = [left - right for left, right in zip(own, nearest, strict=True)]
                cells.append(f"{percent(own)} ({percent(difference, '+')})")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Merge, report, score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--agent", type=named_directory, action="append", required=True, metavar="TASK=DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the random draws")
    parser.add_argument("--prompts", type=int, default=128, help="test prompts a task; 0 to score nothing")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    merges = merged(flags)
    print(rounding_table(merges), flush=True)
    tasks = [name for name, _ in flags.agent]
    settings = {"prompts": flags.prompts, "batch": flags.batch, "seed": 0}
    path = flags.out / "scores.json"
    scores: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}
    # the least known first: columns fill up one after the other
    for method, output in sorted(merges, key=lambda key: list(outputs(flags.seeds)).index(key[1])):
        if flags.prompts and f"{method}: {output}" not in scores:
            scores[f"{method}: {output}"] = rewards_of(merges[method, output], tasks, settings)
            path.write_text(json.dumps(scores) + "\n")
            print(score_table(scores), flush=True)


if __name__ == "__main__":
    main()
