"""How far mergekit is from ramerge: `python scripts/compare_mergekit.py MERGEKIT-YAML BASE AGENT...`.

MERGEKIT-YAML is the program that `make peers` installs (.venv-peers/bin/mergekit-yaml). Both merge with each method,
once with `dtype: bfloat16`, in which mergekit computes, and once with `dtype: float32` and an output in bfloat16.
Printed are the share of parameters that differ, and the norm of the difference over that of ramerge's update.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ramerge

METHODS: dict[str, dict[str, Any]] = {
    "linear": {},
    "slerp": {"t": 0.5},
    "task_arithmetic": {},
    "ram": {},
    "ramplus_tl": {},
    "nuslerp": {},
    "sce": {"select_topk": 0.5},
    "ties": {"density": 0.2},
    "breadcrumbs": {"density": 0.9, "gamma": 0.01},
    "karcher": {},
    "model_stock": {},
}
WEIGHTED = ("linear", "task_arithmetic", "nuslerp", "ties", "breadcrumbs")
MOST = {"slerp": 1, "nuslerp": 2}
PRECISIONS = ("dtype: bfloat16\n", "dtype: float32\nout_dtype: bfloat16\n")


def recipe(method: str, base: Path, agents: list[Path], precision: str) -> str:
    """mergekit's recipe for some agents, all of weight 1."""
    own = "    parameters: {weight: 1}\n" if method in WEIGHTED else ""
    models = "".join(f"  - model: {agent}\n{own}" for agent in agents[: MOST.get(method)])
    named = "" if method == "linear" else f"base_model: {base}\n"
    parameters = f"parameters: {METHODS[method]}\n".replace("'", "") if METHODS[method] else ""
    return f"merge_method: {method}\n{named}models:\n{models}{parameters}{precision}"


def weights(model: Path) -> NDArray[np.float64]:
    """All parameters of a model in one row."""
    plan = ramerge.plan({"method": "passthrough", "agents": {"model": str(model)}, "dtype": "float32"})
    ordered = sorted((tensor.name, tensor.numpy().ravel()) for tensor in plan.tensors())
    return np.concatenate([values for _, values in ordered]).astype(np.float64)


def main(program: str, base: Path, agents: list[Path]) -> None:
    """Print a line for each method and precision."""
    start = weights(base)
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            for place, precision in enumerate(PRECISIONS):
                path, theirs, ours = (Path(folder, f"{method}-{place}{end}") for end in (".yaml", "-theirs", "-ours"))
                path.write_text(recipe(method, base, agents, precision))
                subprocess.run([program, path, theirs, "--no-copy-tokenizer", "--quiet"], check=True)
                ramerge.merge(path, ours)
                update, difference = weights(ours) - start, weights(theirs) - weights(ours)
                share, length = np.mean(difference != 0), np.linalg.norm(difference) / np.linalg.norm(update)
                print(f"{method:16} {precision.splitlines()[0]:16} {share:7.2%} {length:.4f}", flush=True)


if __name__ == "__main__":
    program, base, *agents = sys.argv[1:]
    main(program, Path(base).resolve(), [Path(agent).resolve() for agent in agents])
