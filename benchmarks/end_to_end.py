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
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import ProcessResult, command_line, ratios, run, spread, tell

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
    obstacle = machine.cannot_drop_caches()
    states = ["warm"] if obstacle else ["cold", "warm"]
    if not obstacle:
        # Not timed: on a virtual disk the very first read of the files took three times as long as later cold ones.
        machine.make_cold()
        machine.make_warm(files.weights)
    return {
        "size": options.size,
        "bytes": files.nbytes,
        "cold_refused": obstacle,
        "commands": _commands(files, options.work),
        "caches": {caches: _in_turns(files, caches, options) for caches in states},
        "stages": {caches: _stages(files, caches, options) for caches in states},
    }


def _commands(files: Family, work: Path) -> dict[str, str]:
    return {
        "floor": merging.floor("ram", files, _copy(work)),
        **{method: command_line(merging.command(method, files, _out(work))) for method in _METHODS},
    }


def _out(work: Path) -> Path:
    return work / "merged"


def _copy(work: Path) -> Path:
    return work / "copy.safetensors"


def _in_turns(files: Family, caches: str, options: Options) -> dict[str, list[dict[str, Any]]]:
    """Every run measures all three, each time beginning with another."""
    names = ["floor", *_METHODS]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(options.runs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            result = _once(name, files, caches, options.work)
            runs[name].append(result.to_dict())
            tell(f"end_to_end {options.size}: {caches}, run {turn + 1}, {name}: {result.seconds:.2f} s")
    return runs


def _once(name: str, files: Family, caches: str, work: Path) -> ProcessResult:
    floor = ["sh", "-c", merging.floor("ram", files, _copy(work))]
    command = floor if name == "floor" else merging.command(name, files, _out(work))
    _prepare(files, caches, work)
    result = run(command)
    _clear(work)
    return result


def _stages(files: Family, caches: str, options: Options) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {method: [] for method in _METHODS}
    for turn in range(options.runs):
        for method in _METHODS:
            _prepare(files, caches, options.work)
            runs[method].append(_steps(method, files, _out(options.work)))
            _clear(options.work)
            tell(f"end_to_end {options.size}: steps, {caches}, run {turn + 1}, {method}: {runs[method][-1]}")
    return runs


def _steps(method: str, files: Family, out: Path) -> dict[str, float]:
    """Seconds of each step of a merge in a process of its own, and in all."""
    agents = [f"{name}={folder}" for name, folder in files.agents.items()]
    start = time.monotonic()
    result = run([sys.executable, "-m", "benchmarks.stages", method, str(out), str(files.base), *agents])
    end = time.monotonic()
    times: dict[str, Any] = json.loads(result.output)
    merging_pass = times["stages"]["merging"]
    first = times["stages"].get("counting", merging_pass)
    starts = [start, times["imported"], first["begun"], merging_pass["begun"], merging_pass["ended"], times["merged"]]
    steps = {step: after - before for step, before, after in zip(_STEPS, starts, [*starts[1:], end], strict=True)}
    steps |= {
        "first_block": first["first_block"] - first["begun"],
        "total": end - start,
        "record": times["record"],
        "user": result.user,
        "system": result.system,
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


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size the times, the bars and the steps."""
    return "\n\n".join(_render_size(results.data) for results in by_size.values())


def _render_size(data: Mapping[str, Any]) -> str:
    size = data["size"]
    commands = "\n".join(f"    {command}" for command in data["commands"].values())
    rows, goals = [], []
    for caches, runs in data["caches"].items():
        floor = [one["seconds"] for one in runs["floor"]]
        for name, ones in runs.items():
            durations = [one["seconds"] for one in ones]
            disk = spread([one["disk_read"] / 1e9 for one in ones])
            ratio = ratios(durations, floor)
            rows.append((caches, name, spread(durations).text(), "-" if name == "floor" else ratio.text(), disk.text()))
            if (caches, name) in _BARS:
                text = f"{size}, {caches} caches: {name} over the floor"
                goals.append(Bar(f"end_to_end.{size}.{caches}.{name}", text, ratio, _BARS[caches, name]))
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
        bars(goals),
        f"#### Where the time goes: Qwen2.5-{size}",
        _stage_table(data["stages"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _doubts(data: Mapping[str, Any]) -> str:
    """Signs of wrong caches: bytes that had to come from the disk, or did not."""
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


SECTION = Section("end_to_end", "End to end", has_sizes=True, measure=measure, render=render)
