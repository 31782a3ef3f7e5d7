"""LoRA agents: what methods that solve for whole matrices make of task vectors of low rank.

    python -m lab.lora

trains adapters, merges and scores them, keeps the scores in lab/results/lora.json, and resumes an interrupted run;
`python -m docs.tables` writes the table into docs/methods/spectral.md. Adapters of one base are trained twice: once
from the same A, as trainers do that give all runs one seed, and once from an A of their own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from lab import measure
from lab.model import Questions, Weights, read_model, write_model
from lab.results import RESULTS
from lab.rows import Row
from lab.store import once
from lab.tasks import BY_NAME, NAMES, SEED, held_out
from lab.training import SCALING, Factors, Practice, Schooling, adapt, adapter_weights, school
from ramerge.core.foundation.files import write_file

FILE = RESULTS / "lora.json"
RANKS = (8, 2, 32)
"""Of matrices whose smaller side is 64."""
STARTS = {"one A": [1] * len(NAMES), "own A": list(range(100, 100 + len(NAMES)))}
"""Seeds of A, for each task."""
COUNTS = (3, 5)
TEST = 500
HOW = Practice(100, (1.5e-3,) * len(NAMES), optimizer="adam", rounded=False)
TIMES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
ROWS = (
    Row("task_arithmetic", "task_arithmetic"),
    Row("linear", "linear"),
    Row("ram+", "ram+"),
    *(Row(f"swudi exp_time={time:g}", "swudi", {"exp_time": time}) for time in TIMES),
    *(Row(f"aswudi {rule}", "aswudi", {"auto_rank_method": rule}) for rule in ("participation_sqrt", "stable_rank")),
    *(Row(name, name) for name in ("wudi", "tsvm", "psa", "knots", "iso_c", "iso_cts", "resmerge")),
)


def main() -> None:
    """Do what is not done yet, and keep the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".lab/lora"), help="folder for agents and scores")
    parser.add_argument("--seeds", type=int, default=3)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    runs = [once(flags.work / f"seed-{seed}.json", partial(scores_of, flags.work, seed)) for seed in range(flags.seeds)]
    columns = {column: {name: [one[column][name] for one in runs] for name in runs[0][column]} for column in runs[0]}
    lines = ",\n".join(f" {json.dumps(column)}: {json.dumps(rows)}" for column, rows in columns.items())
    write_file(FILE, f"{{\n{lines}\n}}\n")


def column(rank: int, start: str, count: int) -> str:
    """Key of the scores in the results."""
    return f"rank {rank}, {start}, {count} agents"


def scores_of(work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Per cent of right answers of a seed's agents, each in its own task, and of all merges."""
    folder = work / f"seed-{seed}"
    if not (folder / "base" / "model.safetensors").exists():
        write_model(folder / "base", school(seed, Schooling()), torch.bfloat16)
    base = read_model(folder / "base")
    test = {name: Questions(held_out(task, 150, TEST, SEED + seed)[1]) for name, task in BY_NAME.items()}
    by_column = {}
    for rank in RANKS:
        for start, seeds in STARTS.items():
            factors = {
                name: adapt(base, BY_NAME[name], seed, HOW, rank, first)
                for name, first in zip(NAMES, seeds, strict=True)
            }
            for name, one in factors.items():
                write_adapter(folder / f"{start} {rank}" / name, one, rank)
            for count in COUNTS:
                questions = {name: test[name] for name in NAMES[:count]}
                recipe = {
                    "base": str(folder / "base"),
                    "agents": {name: str(folder / f"{start} {rank}" / name) for name in questions},
                    "dtype": "float32",
                }
                own = np.mean(
                    [
                        measure.mean_right(adapter_weights(base, factors[name]), {name: questions[name]})
                        for name in questions
                    ]
                )
                scores = {"the agents": float(own)}
                scores |= {row.name: measure.mean_right(_merge(recipe, row), questions) for row in ROWS}
                by_column[column(rank, start, count)] = {name: round(100 * value, 2) for name, value in scores.items()}
    return by_column


def _merge(recipe: Mapping[str, Any], row: Row) -> Weights:
    return next(measure.merges(recipe, row))[1]


def write_adapter(folder: Path, factors: Factors, rank: int) -> None:
    """An adapter as PEFT writes it."""
    tensors = {
        f"base_model.model.{name.removesuffix('weight')}lora_{side}.weight": one.contiguous()
        for name, pair in factors.items()
        for side, one in zip("AB", pair, strict=True)
    }
    modules = sorted({name.split(".")[-2] for name in factors})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": SCALING * rank, "target_modules": modules, "bias": "none"}
    write_file(folder / "adapter_config.json", json.dumps(config, indent=1) + "\n")
    write_file(folder / "adapter_model.safetensors", save(tensors, metadata={"format": "pt"}))


if __name__ == "__main__":
    main()
