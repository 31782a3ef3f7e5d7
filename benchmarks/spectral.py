"""Spectral methods: whole merges next to what plans promise, and single matrices next to fusion_bench."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, run, spread, tell
from benchmarks.wudi import shapes_of

METHODS = ("wudi", "swudi", "tsvm", "iso_c", "resmerge", "psa")
PEER = "fusion-bench==0.2.33"
PEERS = ("tsvm", "iso_c")
_MOST_RUNS = 3
_SLOWEST = 60.0


def measure(options: Options) -> dict[str, Any]:
    """Merges in turns; then each shape of matrix with both tools, in processes of their own."""
    runs = min(options.runs, _MOST_RUNS)
    files, out = family(options.size, options.work), options.work / "merged"
    commands = {method: merging.command(method, files, out) for method in METHODS}
    merges: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    plans = {method: _excerpt(json.loads(run(merging.plan(method, files)).output)) for method in METHODS}
    for turn in range(runs):
        for method, command in commands.items():
            machine.make_warm(files.weights)
            merges[method].append(run(command, watch=True).to_dict())
            machine.remove(out)
            tell(f"spectral {options.size}: run {turn + 1}, {method}: {merges[method][-1]['seconds']:.1f} s")
    return {
        "size": options.size,
        "commands": {method: command_line(command) for method, command in commands.items()},
        "planned": plans,
        "merges": merges,
        "shapes": shapes_of(options.size),
        "layers": _layers(options, _unpacked(options.work / "fusion-bench"), runs),
    }


def _excerpt(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {"bytes": plan["peak_memory_bytes"], "workers": plan["workers"]}


def _unpacked(folder: Path) -> Path:
    """The folder of the peer's wheel, fetched if it is not there; of what it depends on, only torch is used."""
    if not folder.exists():
        tell(f"fetching {PEER}")
        run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), PEER])
    return folder


def _layers(options: Options, folder: Path, runs: int) -> dict[str, dict[str, dict[str, list[dict[str, Any]]]]]:
    """Seconds by method, shape and tool."""
    by_method: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    for method in PEERS:
        for shape in shapes_of(options.size):
            both: dict[str, list[dict[str, Any]]] = {"ramerge": [], "fusion_bench": []}
            for _turn in range(runs):
                for tool, ones in both.items():
                    program = [sys.executable, "-m", "benchmarks.spectral_layer", tool, method, *shape.split(" x ")]
                    ones.append(json.loads(run([*program, str(folder)]).output))
            by_method.setdefault(method, {})[shape] = both
            tell(f"spectral {options.size}: {method}, {shape}")
    return by_method


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table of merges, and one of matrices."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    workers = {plan["workers"] for plan in data["planned"].values()}
    return [
        f"### Merges: Qwen2.5-{data['size']}",
        "Whole processes were timed alternately, with warm caches. *Planned* is the upper bound of memory that "
        f"`ramerge plan` gives. There were {max(workers)} workers, each with one thread of BLAS.",
        "\n".join(f"    {command}" for command in data["commands"].values()),
        table(("method", "seconds", "MB", "planned, MB"), [_merge_row(data, method) for method in METHODS]),
        bars([_bar(data)]),
        "### Matrices next to fusion_bench",
        f"One matrix on one thread, three agents, with {PEER} on torch. fusion_bench decomposes the matrix itself in "
        "float32, ramerge its Gram matrix in float64. *All* is the sum over the model's matrices.",
        table(("method", "matrix", "in the model", "ramerge, s", "fusion_bench, s"), _layer_rows(data)),
    ]


def _merge_row(data: Mapping[str, Any], method: str) -> tuple[str, ...]:
    ones, plan = data["merges"][method], data["planned"][method]
    return (
        f"`{method}`",
        spread([one["seconds"] for one in ones]).text(1),
        spread([one["anonymous"] / 1e6 for one in ones]).text(0),
        f"{plan['bytes'] / 1e6:,.0f}",
    )


def _bar(data: Mapping[str, Any]) -> Bar:
    size = data["size"]
    duration = spread([one["seconds"] for one in data["merges"]["swudi"]])
    return Bar(f"spectral.{size}.swudi", f"{size}, warm caches: swudi, in seconds", duration, _SLOWEST)


def _layer_rows(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for method, by_shape in data["layers"].items():
        sums = {"ramerge": 0.0, "fusion_bench": 0.0}
        for shape, both in by_shape.items():
            durations = {tool: spread([one["seconds"] for one in ones]) for tool, ones in both.items()}
            for tool, one in durations.items():
                sums[tool] += data["shapes"][shape] * one.median
            times = str(data["shapes"][shape])
            rows.append((f"`{method}`", shape, times, durations["ramerge"].text(), durations["fusion_bench"].text()))
        rows.append((f"`{method}`", "all", "", f"{sums['ramerge']:.0f}", f"{sums['fusion_bench']:.0f}"))
    return rows


SECTION = Section("spectral", "Spectral methods", has_sizes=True, measure=measure, render=render, fewest=1)
