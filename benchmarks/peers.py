"""mergekit beside ramerge, on the same files in the same run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, Section, Stored, bars, table
from benchmarks.timing import Finished, ratios, run, shown, spread, tell

# Installed in this order: the first of any build, since only the processor is used.
_REQUIREMENTS = ("torch==2.13.0", "mergekit==0.1.5", "transformers==5.23.0")
_VERSIONS = ("mergekit", "torch", "transformers", "safetensors", "numpy")
# mergekit's methods, and what ramerge is measured as beside them.
_PEERS = {"ramplus_tl": "ram+", "ram": "ram", "task_arithmetic": None}
_TIMES = 20


def measure(options: Options) -> dict[str, Any]:
    """ramerge and mergekit in turns."""
    python = _installed(options.work / "mergekit-venv")
    files = family(options.size, options.work)
    commands = _commands(files, options.work, python)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            finished, written = _once(command, files)
            taken[name].append({**finished.as_dict(), "written": written})
            tell(f"peers {options.size}: run {turn + 1}, {name}: {finished.seconds:.2f} s, {_peaks(taken[name][-1])}")
    return {
        "size": options.size,
        "versions": _versions(python),
        "requirements": list(_REQUIREMENTS),
        "recipe": _recipe("ramplus_tl", files),
        "commands": {name: shown(command) for name, command in commands.items()},
        "taken": taken,
    }


def _installed(home: Path) -> Path:
    """The Python of mergekit's own virtual environment, made if it is not there."""
    python = home / "bin" / "python"
    if not (home / "bin" / "mergekit-yaml").exists():
        tell(f"peers: installing {', '.join(_REQUIREMENTS)} in {home}")
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        run([str(python), "-m", "pip", "install", _REQUIREMENTS[0]])
        run([str(python), "-m", "pip", "install", *_REQUIREMENTS])
    return python


def _versions(python: Path) -> dict[str, str]:
    program = (
        "import importlib.metadata, json, sys; "
        "print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))"
    )
    versions: dict[str, str] = json.loads(run([str(python), "-c", program, *_VERSIONS]).output)
    return versions


def _commands(files: Family, work: Path, python: Path) -> dict[str, list[str]]:
    """Each of mergekit's merges, after the merge of ramerge that it is compared with."""
    commands: dict[str, list[str]] = {}
    for method, ours in _PEERS.items():
        if ours is not None:
            commands[f"ramerge {ours}"] = merging.command(ours, files, work / "merged")
        recipe = work / f"mergekit-{method}.yaml"
        recipe.write_text(_recipe(method, files))
        program = str(python.with_name("mergekit-yaml"))
        commands[f"mergekit {method}"] = [program, str(recipe), str(work / "mergekit-merged")]
    return commands


def _recipe(method: str, files: Family) -> str:
    """A recipe in mergekit's format. Its RAM+ gives float32 unless it is told not to."""
    lines = [f"merge_method: {method}", f"base_model: {files.base}", "models:"]
    for folder in files.agents.values():
        lines.append(f"  - model: {folder}")
        if method == "task_arithmetic":
            lines += ["    parameters:", "      weight: 1.0"]
    return "\n".join([*lines, "dtype: bfloat16", "out_dtype: bfloat16"]) + "\n"


def _once(command: list[str], files: Family) -> tuple[Finished, int]:
    """A merge with warm caches, and the bytes of weights that it wrote."""
    out = Path(command[-1])
    machine.remove(out)
    machine.make_warm(files.weights)
    finished = run(command, watch=True)
    written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    machine.remove(out)
    return finished, written


def _peaks(one: Mapping[str, Any]) -> str:
    return f"{one['anonymous'] / 1e6:,.0f} MB without mapped files, {one['peak'] / 1e6:,.0f} MB with them"


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, Stored]) -> str:
    """For each size times, memory and bars."""
    versions = next(iter(by_size.values())).data["versions"]
    text = (
        f"mergekit {versions['mergekit']} in a virtual environment of its own ("
        + ", ".join(f"{name} {version}" for name, version in versions.items() if name != "mergekit")
        + "), on the processor, without options: no `--lazy-unpickle`, no `--async-write`, its own number of "
        "threads, one output file, the tokenizer's files copied. Its recipes ask for bfloat16 (`dtype` and "
        "`out_dtype`), so that it writes what ramerge writes. All inputs are read into the page cache before each run; "
        "what a run had to read from the disk all the same was pushed out by its own memory. Whole processes, start-up "
        "included."
    )
    return "\n\n".join([text, *[_render_size(stored.data) for stored in by_size.values()]])


def _render_size(data: Mapping[str, Any]) -> str:
    size, taken = data["size"], data["taken"]
    recipe = "\n".join(f"    {line}" for line in data["recipe"].splitlines())
    commands = "\n".join(f"    {command}" for command in data["commands"].values())
    head = ("tool and method", "seconds", "MB without mapped files", "VmHWM, MB", "written, GB", "read from disk, GB")
    return "\n\n".join(
        [
            f"### Qwen2.5-{size}",
            commands,
            f"mergekit's recipe for `ramplus_tl`:\n\n{recipe}",
            table(head, [_row(name, ones) for name, ones in taken.items()]),
            bars([bar for method, ours in _PEERS.items() if ours for bar in _bars(size, taken, method, ours)]),
        ]
    )


def _row(name: str, ones: list[dict[str, Any]]) -> tuple[str, ...]:
    return (
        name,
        spread([one["seconds"] for one in ones]).text(),
        spread([one["anonymous"] / 1e6 for one in ones]).text(0),
        spread([one["peak"] / 1e6 for one in ones]).text(0),
        f"{ones[0]['written'] / 1e9:.2f}",
        spread([one["disk_read"] / 1e9 for one in ones]).text(),
    )


def _bars(size: str, taken: Mapping[str, Any], method: str, ours: str) -> list[Bar]:
    theirs, mine = taken[f"mergekit {method}"], taken[f"ramerge {ours}"]
    held = []
    for kind, what in (("seconds", "time"), ("anonymous", "memory without mapped files")):
        ratio = ratios([one[kind] for one in theirs], [one[kind] for one in mine])
        text = f"{size}: {what} of mergekit's {method} over ramerge's {ours}"
        held.append(Bar(f"peers.{size}.{method}.{kind}", text, ratio, _TIMES, at_least=True, digits=1))
    return held


SECTION = Section("peers", "Peers", sized=True, measure=measure, render=render, fewest=3)
