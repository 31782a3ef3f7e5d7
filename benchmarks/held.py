"""Merges whose inputs do not fit the page cache, as those of most real models do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

_BYTES = 1_000_000_000
_BARS = {"ram+": 1.15, "ties": 1.3}
_METHODS = ("ram", "ram+", "ties", "dare_ties")


def measure(options: Options) -> dict[str, Any]:
    """Floor and merges in turns, each with a page cache that is empty and stays small."""
    files = family(options.size, options.work)
    out, copy = options.work / "merged", options.work / "copy.safetensors"
    commands = {
        "floor": ["sh", "-c", merging.floor("ram", files, copy)],
        **{method: merging.command(method, files, out) for method in _METHODS},
    }
    data = {"size": options.size, "bytes": files.nbytes, "commands": {k: command_line(v) for k, v in commands.items()}}
    if obstacle := machine.cannot_drop_caches() or machine.cannot_hold_caches():
        return {**data, "refused": obstacle}
    names = list(commands)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with machine.small_cache(_BYTES) as prefix:
        for turn in range(options.runs):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                machine.make_cold()
                result = run([*prefix, *commands[name]])
                runs[name].append(result.to_dict())
                machine.remove(out)
                machine.remove(copy)
                tell(f"held {options.size}: run {turn + 1}, {name}: {result.seconds:.2f} s")
    return {**data, "taken": runs}


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table and bars."""
    return "\n\n".join(_render_size(results.data) for results in by_size.values())


def _render_size(data: Mapping[str, Any]) -> str:
    size = data["size"]
    if "refused" in data:
        return f"### Qwen2.5-{size}\n\nNot measured: {data['refused']}."
    floor = [one["seconds"] for one in data["taken"]["floor"]]
    rows, goals = [], []
    for name, ones in data["taken"].items():
        durations = [one["seconds"] for one in ones]
        ratio = ratios(durations, floor)
        disk = spread([one["disk_read"] / 1e9 for one in ones]).text()
        rows.append((name, spread(durations).text(), "-" if name == "floor" else ratio.text(), disk))
        if name in _BARS:
            goals.append(Bar(f"held.{size}.{name}", f"{size}, small cache: {name} over the floor", ratio, _BARS[name]))
    return "\n\n".join(
        [
            f"### Qwen2.5-{size}",
            f"Four checkpoints, {data['bytes'] / 1e9:.2f} GB in all. Every command runs in a memory cgroup of "
            f"{_BYTES / 1e9:g} GB, which holds the page cache too, and begins with an empty one.",
            "\n".join(f"    {command}" for command in data["commands"].values()),
            table(("what", "seconds", "over the floor", "read from disk, GB"), rows),
            bars(goals),
        ]
    )


SECTION = Section("held", "Inputs larger than the page cache", has_sizes=True, measure=measure, render=render, fewest=3)
