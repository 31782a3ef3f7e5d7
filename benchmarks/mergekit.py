"""mergekit in a virtual environment of its own, and its recipes for our checkpoints."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.checkpoints import Family
from benchmarks.timing import run, tell

# Installed in this order: the first of any build, since only the processor is used.
REQUIREMENTS = ("torch==2.13.0", "mergekit==0.1.5", "transformers==5.23.0")
_VERSIONS = ("mergekit", "torch", "transformers", "safetensors", "numpy")


@dataclass(frozen=True)
class Peer:
    """A method of mergekit, its parameters for each model, and what ramerge has to be set to for doing the same."""

    method: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


# By ramerge's methods. Its TIES trims each tensor by itself, which takes less than our default does.
PEERS = {
    "ram": Peer("ram"),
    "ram+": Peer("ramplus_tl"),
    "task_arithmetic": Peer("task_arithmetic", {"weight": 1.0}),
    "linear": Peer("linear", {"weight": 1.0}),
    "ties": Peer("ties", {"weight": 1.0, "density": 0.2}),
    "dare": Peer("dare_linear", {"weight": 1.0, "density": 0.5}),
    "dare_ties": Peer("dare_ties", {"weight": 1.0, "density": 0.5}, settings=("parameters.density=1",)),
}


def install(home: Path) -> Path:
    """The Python of mergekit's environment, which is made if it is not there."""
    python = home / "bin" / "python"
    if not (home / "bin" / "mergekit-yaml").exists():
        tell(f"installing {', '.join(REQUIREMENTS)} in {home}")
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        run([str(python), "-m", "pip", "install", REQUIREMENTS[0]])
        run([str(python), "-m", "pip", "install", *REQUIREMENTS])
    return python


def versions(python: Path) -> dict[str, str]:
    """Versions of mergekit and of the libraries it computes with."""
    program = (
        "import importlib.metadata, json, sys; "
        "print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))"
    )
    numbers: dict[str, str] = json.loads(run([str(python), "-c", program, *_VERSIONS]).output)
    return numbers


def command(peer: Peer, files: Family, work: Path, python: Path) -> list[str]:
    """`mergekit-yaml` without options, on a recipe that it writes."""
    recipe_file = work / f"mergekit-{peer.method}.yaml"
    recipe_file.write_text(recipe(peer, files))
    return [str(python.with_name("mergekit-yaml")), str(recipe_file), str(work / "mergekit-merged")]


def recipe(peer: Peer, files: Family) -> str:
    """In mergekit's format. It would write float32 for some methods unless it is told not to."""
    # its linear would ask for a weight of the base too
    base = [] if peer.method == "linear" else [f"base_model: {files.base}"]
    lines = [f"merge_method: {peer.method}", *base, "models:"]
    for folder in files.agents.values():
        lines.append(f"  - model: {folder}")
        if peer.parameters:
            lines += ["    parameters:", *(f"      {name}: {value}" for name, value in peer.parameters.items())]
    return "\n".join([*lines, "dtype: bfloat16", "out_dtype: bfloat16"]) + "\n"
