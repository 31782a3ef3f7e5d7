"""A sweep next to the merges that it saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

_METHOD = "ram+"
_KEY = "parameters.r"
_VALUES = ("0", "0.05", "0.1", "0.15", "0.2")
_BAR = 0.5


def measure(options: Options) -> dict[str, Any]:
    """One sweep, and a merge for each of its points, in turns with warm caches."""
    files, out = family(options.size, options.work), options.work / "merged"
    sweep = merging.sweep(_METHOD, files, out, f"{_KEY}={','.join(_VALUES)}")
    outs = {value: options.work / f"merged-{value}" for value in _VALUES}
    merges = [merging.command(_METHOD, files, place, [f"{_KEY}={value}"]) for value, place in outs.items()]
    runs: dict[str, list[float]] = {"sweep": [], "merges": []}
    for turn in range(options.runs):
        for name, commands in (("sweep", [sweep]), ("merges", merges)):
            machine.make_warm(files.weights)
            runs[name].append(round(sum(run(command).seconds for command in commands), 4))
            for place in (out, *outs.values()):
                machine.remove(place)
            tell(f"sweep {options.size}: run {turn + 1}, {name}: {runs[name][-1]:.2f} s")
    return {
        "size": options.size,
        "commands": [command_line(sweep), *map(command_line, merges)],
        "taken": runs,
    }


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table, and the bar."""
    rows, goals = [], []
    for size, results in by_size.items():
        runs = results.data["taken"]
        ratio = ratios(runs["sweep"], runs["merges"])
        rows.append((size, spread(runs["sweep"]).text(), spread(runs["merges"]).text(), ratio.text()))
        goals.append(Bar(f"sweep.{size}", f"{size}: a sweep of 5 points over 5 merges", ratio, _BAR))
    commands = "\n".join(f"    {command}" for command in next(iter(by_size.values())).data["commands"])
    text = (
        "The first command is compared with all others together, with warm caches and outputs on disk; the inputs "
        "stay in the page cache from one merge to the next as far as memory allows."
    )
    return "\n\n".join([text, commands, table(("size", "sweep, s", "5 merges, s", "ratio"), rows), bars(goals)])


SECTION = Section("sweep", "Sweeps", has_sizes=True, measure=measure, render=render, fewest=3)
