"""The commands that are measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks import timing
from benchmarks.checkpoints import Family


def command(method: str, files: Family, out: Path) -> list[str]:
    """`ramerge merge` without progress, over what may stand at `out`."""
    return [timing.beside("ramerge"), "merge", *_recipe(method, files), "--quiet", "--overwrite", str(out)]


def plan(method: str, files: Family) -> list[str]:
    """`ramerge plan` of the same merge, as JSON."""
    return [timing.beside("ramerge"), "plan", *_recipe(method, files), "--json"]


def _recipe(method: str, files: Family) -> list[str]:
    agents = [text for name, folder in files.agents.items() for text in ("--agent", f"{name}={folder}")]
    return ["--method", method, "--base", str(files.base), *agents]
