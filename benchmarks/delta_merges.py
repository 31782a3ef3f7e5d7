"""Making and applying deltas, and merging from them, next to whole checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

# Agents that moved a share of their elements at random places.
_FAMILIES = {"12 %": 0.12, "50 %": 0.5}
_METHODS = ("ram", "ram+", "task_arithmetic")
_MOST_MEMORY = 256e6
_BARS = {"12 %": 0.55, "50 %": 1.0}
_BYTES = 0.40
_ANALYSIS = 0.6
_FLOOR = 1.3


def measure(options: Options) -> dict[str, Any]:
    """For each density: `delta` and `apply` next to the floor; then merges and an analysis of deltas and the same of
    whole checkpoints, in turns."""
    obstacle = machine.cannot_drop_caches()
    _compile(options.work)
    states = ["warm"] if obstacle else ["cold", "warm"]
    figures = {}
    for title, density in _FAMILIES.items():
        whole = family(options.size, options.work, dict.fromkeys(("a", "b", "c"), density), f"-{density:g}")
        deltas = _deltas_of(whole)
        read = {
            kind: {method: json.loads(run(merging.plan(method, files)).output)["bytes_read"] for method in _METHODS}
            for kind, files in (("whole", whole), ("deltas", deltas))
        }
        figures[title] = {
            "sizes": {"agent": _size(whole.agents["a"]), "delta": _size(deltas.agents["a"])},
            "bytes_read": read,
            "commands": {
                name: command_line(command) for name, command in _commands(whole, deltas, options.work).items()
            },
            "taken": {caches: _in_turns(whole, deltas, caches, title, options) for caches in states},
        }
    return {"size": options.size, "cold_refused": obstacle, "found": figures}


def _compile(work: Path) -> None:
    """Run every command once on small models, so that no kernel is compiled while it is measured."""
    whole = family("tiny", work, dict.fromkeys(("a", "b", "c"), 0.12), "-0.12")
    for command in _commands(whole, _deltas_of(whole), work).values():
        run(command)


def _deltas_of(files: Family) -> Family:
    """The same with deltas as agents, made if they are not there."""
    target = replace(files, agents={name: folder.with_name(f"{name}-delta") for name, folder in files.agents.items()})
    for name, folder in target.agents.items():
        if not folder.is_dir() or folder.stat().st_mtime < files.agents[name].stat().st_mtime:
            run(merging.delta(files.base, files.agents[name], folder))
    return target


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _commands(whole: Family, deltas: Family, work: Path) -> dict[str, list[str]]:
    """By name; what is named `X, floor` and `X, whole` is compared with `X`."""
    base, agent, delta = whole.base, whole.agents["a"], deltas.agents["a"]
    out, copy = work / "merged", work / "copy.safetensors"

    def floor(*inputs: Path, like: Path) -> list[str]:
        files = [path for folder in inputs for path in sorted(folder.glob("*.safetensors"))]
        return ["sh", "-c", merging.copying(files, _size(like), copy)]

    commands = {
        "delta, floor": floor(base, agent, like=delta),
        "delta": merging.delta(base, agent, out),
        "apply, floor": floor(base, delta, like=agent),
        "apply": merging.apply(base, delta, out),
    }
    for method in _METHODS:
        commands |= {f"{method}, whole": merging.command(method, whole, out)}
        commands |= {method: merging.command(method, deltas, out)}
    return commands | {"analyze, whole": merging.analysis(whole, 3), "analyze": merging.analysis(deltas, 3)}


def _in_turns(
    whole: Family, deltas: Family, caches: str, title: str, options: Options
) -> dict[str, list[dict[str, Any]]]:
    commands = _commands(whole, deltas, options.work)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            machine.remove(options.work / "merged")
            machine.remove(options.work / "copy.safetensors")
            if caches == "cold":
                machine.make_cold()
            else:
                machine.make_warm([*whole.weights, *deltas.weights])
            result = run(command, watch=name in ("delta", "apply"))
            runs[name].append(result.to_dict())
            tell(f"delta_merges {options.size}: {title}, {caches}, run {turn + 1}, {name}: {result.seconds:.2f} s")
    return runs


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size and density a table, and the bars."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    parts = [f"### Qwen2.5-{data['size']}"]
    if data["cold_refused"]:
        parts.append(f"Not measured with cold caches: {data['cold_refused']}.")
    goals = []
    for title, one in data["found"].items():
        share = one["sizes"]["delta"] / one["sizes"]["agent"]
        parts += [
            f"Three agents that each moved {title} at random places; a delta takes {share:.3f} of the agent's file.",
            "\n".join(f"    {command}" for command in one["commands"].values()),
            table(("caches", "what", "seconds", "seconds of the other", "ratio"), _rows(one["taken"])),
        ]
        goals += _goals(f"{data['size']}", title, one)
    return [*parts, bars(goals)]


def _rows(runs: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for caches, by_name in runs.items():
        for name in by_name:
            if ", " in name:
                continue
            other = next(each for each in by_name if each.startswith(f"{name}, "))
            durations, theirs = ([one["seconds"] for one in by_name[each]] for each in (name, other))
            what = f"`{name}` next to the floor" if "floor" in other else f"`{name}` from deltas, next to whole agents"
            rows.append(
                (caches, what, spread(durations).text(), spread(theirs).text(), ratios(durations, theirs).text())
            )
    return rows


def _goals(size: str, title: str, one: Mapping[str, Any]) -> list[Bar]:
    goals = []
    for caches, by_name in one["taken"].items():

        def ratio(name: str, other: str, by_name: Mapping[str, Any] = by_name) -> Any:
            return ratios(*([run["seconds"] for run in by_name[each]] for each in (name, f"{name}, {other}")))

        where = f"{size}, {title} moved, {caches}"
        key = f"delta_merges.{size}.{caches}"
        if title == "12 %":
            for name in ("delta", "apply"):
                memory = spread([run["anonymous"] for run in by_name[name]])
                goals.append(Bar(f"{key}.{name}", f"{where}: {name} over the floor", ratio(name, "floor"), _FLOOR))
                goals.append(
                    Bar(f"{key}.{name}.memory", f"{where}: {name}, bytes of memory", memory, _MOST_MEMORY, digits=0)
                )
            goals.append(
                Bar(
                    f"{key}.analyze",
                    f"{where}: analyze over that of whole agents",
                    ratio("analyze", "whole"),
                    _ANALYSIS,
                )
            )
        if caches == "cold":
            for method in _METHODS:
                text = f"{where}: {method} from deltas over whole agents"
                goals.append(Bar(f"{key}.{title}.{method}", text, ratio(method, "whole"), _BARS[title]))
    if title == "12 %":
        for method in _METHODS:
            share = one["bytes_read"]["deltas"][method] / one["bytes_read"]["whole"][method]
            text = f"{size}, {title} moved: {method}, bytes read over those of whole agents"
            goals.append(Bar(f"delta_merges.{size}.bytes.{method}", text, spread([share]), _BYTES))
    return goals


SECTION = Section("delta_merges", "Merging from deltas", has_sizes=True, measure=measure, render=render, fewest=3)
