"""The commands that are measured."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from benchmarks import timing
from benchmarks.checkpoints import Family

# Every method that works element by element, in the order of tables. WUDI has a section of its own.
METHODS = ("ram", "ram+", "task_arithmetic", "linear", "fisher", "ties", "dare", "dare_ties")


ANEW = ("--quiet", "--no-cache")
"""No progress, and no counts of earlier runs."""


def command(method: str, files: Family, out: Path, settings: Sequence[str] = ()) -> list[str]:
    """`ramerge merge` without progress, over what may stand at `out`; settings are such as `parameters.r=0.2`."""
    options = [text for setting in settings for text in ("--set", setting)]
    return [
        timing.script("ramerge"),
        "merge",
        *_recipe(method, files),
        *options,
        *ANEW,
        "--overwrite",
        str(out),
    ]


def delta(base: Path, agent: Path, out: Path) -> list[str]:
    """`ramerge delta` without progress."""
    return [
        timing.script("ramerge"),
        "delta",
        "--base",
        str(base),
        "--agent",
        f"agent={agent}",
        str(out),
        "--quiet",
        "--overwrite",
    ]


def apply(base: Path, delta: Path, out: Path) -> list[str]:
    """`ramerge apply` without progress."""
    return [
        timing.script("ramerge"),
        "apply",
        "--base",
        str(base),
        str(delta),
        str(out),
        "--quiet",
        "--overwrite",
    ]


def copying(inputs: Sequence[Path], size: int, copy: Path) -> str:
    """The least for a shell: read every input once, write so many bytes of the first ones and synchronize them."""
    names, target = shlex.join(map(str, inputs)), shlex.quote(str(copy))
    return f"cat {names} > /dev/null && cat {names} | head -c {size} > {target} && sync {target}"


def plan(method: str, files: Family) -> list[str]:
    """`ramerge plan` of the same merge, as JSON."""
    return [timing.script("ramerge"), "plan", *_recipe(method, files), "--no-cache", "--json"]


def sweep(method: str, files: Family, out: Path, vary: str) -> list[str]:
    """`ramerge sweep` without progress over the values of one parameter, such as `parameters.r=0,0.1`."""
    options = ["--vary", vary, *ANEW, "--overwrite", str(out)]
    return [timing.script("ramerge"), "sweep", *_recipe(method, files), *options]


def analysis(files: Family, agents: int) -> list[str]:
    """`ramerge analyze` without progress of so many agents, some of them several times."""
    folders = list(files.agents.values())
    flags = [text for n in range(agents) for text in ("--agent", f"a{n}={folders[n % len(folders)]}")]
    return [timing.script("ramerge"), "analyze", "--base", str(files.base), *flags, "--quiet", "--no-cache"]


def inputs(method: str, files: Family) -> list[Path]:
    """The files that a merge reads."""
    return files.weights + (files.importance_weights if method == "fisher" else [])


def floor(method: str, files: Family, copy: Path) -> str:
    """The least that a merge must do, for a shell: read every input once, write one model and synchronize it."""
    names = shlex.join(map(str, inputs(method, files)))
    base, target = shlex.quote(str(files.weights[0])), shlex.quote(str(copy))
    return f"cat {names} > /dev/null && cp {base} {target} && sync {target}"


def _recipe(method: str, files: Family) -> list[str]:
    agents = [text for name, folder in files.agents.items() for text in ("--agent", f"{name}={folder}")]
    folders = files.importances if method == "fisher" else {}
    importances = [text for name, folder in folders.items() for text in ("--importance", f"{name}={folder}")]
    return ["--method", method, "--base", str(files.base), *agents, *importances]
