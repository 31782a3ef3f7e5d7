"""Whole merges next to the least that a merge must do: read every input once, write one model and synchronize it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, Section, Stored, bars, table
from benchmarks.timing import Finished, ratios, run, shown, spread, tell

_METHODS = ("ram", "ram+")
# Steps of a merge, each up to the moment when the next one begins.
_STEPS = {
    "startup": "start, imports",
    "plan": "plan, open",
    "counting": "counting pass",
    "merging": "merging pass",
    "sync": "final sync, publish",
    "exit": "exit",
}
_BARS = {("cold", "ram+"): 1.15, ("warm", "ram+"): 1.5}


def measure(options: Options) -> dict[str, Any]:
    """Floor and merges in turns, with cold caches and with warm ones; then the steps of merges."""
    files = family(options.size, options.work)
    refused = machine.cannot_drop_caches()
    states = ["warm"] if refused else ["cold", "warm"]
    if not refused:
        # Not timed: on a virtual disk the very first read of the files took three times as long as later cold ones.
        machine.make_cold()
        machine.make_warm(files.weights)
    return {
        "size": options.size,
        "bytes": files.nbytes,
        "cold_refused": refused,
        "commands": _commands(files, options.work),
        "caches": {caches: _in_turns(files, caches, options) for caches in states},
        "stages": {caches: _stages(files, caches, options) for caches in states},
    }


def _commands(files: Family, work: Path) -> dict[str, str]:
    return {
        "floor": merging.floor("ram", files, _copy(work)),
        **{method: shown(merging.command(method, files, _out(work))) for method in _METHODS},
    }


def _out(work: Path) -> Path:
    return work / "merged"


def _copy(work: Path) -> Path:
    return work / "copy.safetensors"


def _in_turns(files: Family, caches: str, options: Options) -> dict[str, list[dict[str, Any]]]:
    """Every run measures all three, each time beginning with another."""
    names = ["floor", *_METHODS]
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(options.runs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            finished = _once(name, files, caches, options.work)
            taken[name].append(finished.to_dict())
            tell(f"end_to_end {options.size}: {caches}, run {turn + 1}, {name}: {finished.seconds:.2f} s")
    return taken


def _once(name: str, files: Family, caches: str, work: Path) -> Finished:
    floor = ["sh", "-c", merging.floor("ram", files, _copy(work))]
    command = floor if name == "floor" else merging.command(name, files, _out(work))
    _prepare(files, caches, work)
    finished = run(command)
    _clear(work)
    return finished


def _stages(files: Family, caches: str, options: Options) -> dict[str, list[dict[str, float]]]:
    taken: dict[str, list[dict[str, float]]] = {method: [] for method in _METHODS}
    for turn in range(options.runs):
        for method in _METHODS:
            _prepare(files, caches, options.work)
            taken[method].append(_steps(method, files, _out(options.work)))
            _clear(options.work)
            tell(f"end_to_end {options.size}: steps, {caches}, run {turn + 1}, {method}: {taken[method][-1]}")
    return taken


def _steps(method: str, files: Family, out: Path) -> dict[str, float]:
    """Seconds of each step of a merge in a process of its own, and in all."""
    agents = [f"{name}={folder}" for name, folder in files.agents.items()]
    began = time.monotonic()
    finished = run([sys.executable, "-m", "benchmarks.stages", method, str(out), str(files.base), *agents])
    ended = time.monotonic()
    seen: dict[str, Any] = json.loads(finished.output)
    merging_pass = seen["stages"]["merging"]
    first = seen["stages"].get("counting", merging_pass)
    begun = [began, seen["imported"], first["begun"], merging_pass["begun"], merging_pass["ended"], seen["merged"]]
    steps = {step: after - before for step, before, after in zip(_STEPS, begun, [*begun[1:], ended], strict=True)}
    steps |= {
        "first_block": first["first_block"] - first["begun"],
        "total": ended - began,
        "record": seen["record"],
        "user": finished.user,
        "system": finished.system,
    }
    return {name: round(value, 4) for name, value in steps.items()}


def _prepare(files: Family, caches: str, work: Path) -> None:
    _clear(work)
    if caches == "cold":
        machine.make_cold()
    else:
        machine.make_warm(files.weights)


def _clear(work: Path) -> None:
    machine.remove(_out(work))
    machine.remove(_copy(work))


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, Stored]) -> str:
    """For each size the times, the bars and the steps."""
    return "\n\n".join(_render_size(stored.data) for stored in by_size.values())


def _render_size(data: Mapping[str, Any]) -> str:
    size = data["size"]
    commands = "\n".join(f"    {command}" for command in data["commands"].values())
    rows, held = [], []
    for caches, taken in data["caches"].items():
        floor = [one["seconds"] for one in taken["floor"]]
        for name, ones in taken.items():
            took = [one["seconds"] for one in ones]
            disk = spread([one["disk_read"] / 1e9 for one in ones])
            ratio = ratios(took, floor)
            rows.append((caches, name, spread(took).text(), "-" if name == "floor" else ratio.text(), disk.text()))
            if (caches, name) in _BARS:
                text = f"{size}, {caches} caches: {name} over the floor"
                held.append(Bar(f"end_to_end.{size}.{caches}.{name}", text, ratio, _BARS[caches, name]))
    parts = [
        f"### Qwen2.5-{size}",
        f"Four checkpoints, {data['bytes'] / 1e9:.2f} GB in all. The floor is the first command, in one shell:",
        commands,
        "*Cold* means that `sync; echo 3 > /proc/sys/vm/drop_caches` ran before each command, which also empties the "
        "cache of Python and its libraries; *warm*, that all inputs were read before. The output is removed in "
        "between.",
        f"Cold caches were not measured: {data['cold_refused']}." if data["cold_refused"] else "",
        _doubts(data),
        table(("caches", "what", "seconds", "over the floor", "read from disk, GB"), rows),
        bars(held),
        f"#### Where the time goes: Qwen2.5-{size}",
        _stage_table(data["stages"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _doubts(data: Mapping[str, Any]) -> str:
    """What shows that caches were not what they should have been, by what had to come from the disk."""
    cold = [one["disk_read"] for ones in data["caches"].get("cold", {}).values() for one in ones]
    warm = [one["disk_read"] for ones in data["caches"]["warm"].values() for one in ones]
    lukewarm = sum(read < 0.95 * data["bytes"] for read in cold) + sum(read > 0.05 * data["bytes"] for read in warm)
    return f"**{lukewarm} of {len(cold) + len(warm)} measurements did not have such caches.**" if lukewarm else ""


def _stage_table(by_caches: Mapping[str, Any]) -> str:
    rows = []
    for caches, by_method in by_caches.items():
        for method, ones in by_method.items():
            medians = {step: spread([one[step] for one in ones]).median for step in ones[0]}
            steps = [f"{medians[step]:.2f}" for step in _STEPS]
            processor = f"{medians['user'] + medians['system']:.2f}"
            rows.append((caches, method, *steps, spread([one["total"] for one in ones]).text(), processor))
    head = ("caches", "method", *_STEPS.values(), "total", "processor time")
    text = (
        "The table has seconds, as medians of separate runs through the library, `python -m benchmarks.stages` (a "
        "step lasts from one `on_progress` event to the next; RAM counts and merges in one pass). The first block of "
        "a pass also loads the compiled kernels."
    )
    return f"{text}\n\n{table(head, rows)}"


SECTION = Section("end_to_end", "End to end", sized=True, measure=measure, render=render)
