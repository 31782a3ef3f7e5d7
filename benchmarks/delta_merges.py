"""Making and applying deltas, and merging from them, next to whole checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, Section, Stored, bars, table
from benchmarks.timing import ratios, run, shown, spread, tell

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
    refused = machine.cannot_drop_caches()
    _compile(options.work)
    states = ["warm"] if refused else ["cold", "warm"]
    found = {}
    for title, density in _FAMILIES.items():
        whole = family(options.size, options.work, dict.fromkeys(("a", "b", "c"), density), f"-{density:g}")
        packed = _packed(whole)
        read = {
            kind: {method: json.loads(run(merging.plan(method, files)).output)["bytes_read"] for method in _METHODS}
            for kind, files in (("whole", whole), ("deltas", packed))
        }
        found[title] = {
            "sizes": {"agent": _size(whole.agents["a"]), "delta": _size(packed.agents["a"])},
            "bytes_read": read,
            "commands": {name: shown(command) for name, command in _commands(whole, packed, options.work).items()},
            "taken": {caches: _in_turns(whole, packed, caches, title, options) for caches in states},
        }
    return {"size": options.size, "cold_refused": refused, "found": found}


def _compile(work: Path) -> None:
    """Run every command once on small models, so that no kernel is compiled while it is measured."""
    whole = family("tiny", work, dict.fromkeys(("a", "b", "c"), 0.12), "-0.12")
    for command in _commands(whole, _packed(whole), work).values():
        run(command)


def _packed(files: Family) -> Family:
    """The same with deltas as agents, made if they are not there."""
    made = replace(files, agents={name: folder.with_name(f"{name}-delta") for name, folder in files.agents.items()})
    for name, folder in made.agents.items():
        if not folder.is_dir() or folder.stat().st_mtime < files.agents[name].stat().st_mtime:
            run(merging.delta(files.base, files.agents[name], folder))
    return made


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _commands(whole: Family, packed: Family, work: Path) -> dict[str, list[str]]:
    """By name; what is named `X, floor` and `X, whole` is compared with `X`."""
    base, agent, delta = whole.base, whole.agents["a"], packed.agents["a"]
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
        commands |= {method: merging.command(method, packed, out)}
    return commands | {"analyze, whole": merging.analysis(whole, 3), "analyze": merging.analysis(packed, 3)}


def _in_turns(
    whole: Family, packed: Family, caches: str, title: str, options: Options
) -> dict[str, list[dict[str, Any]]]:
    commands = _commands(whole, packed, options.work)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            machine.remove(options.work / "merged")
            machine.remove(options.work / "copy.safetensors")
            if caches == "cold":
                machine.make_cold()
            else:
                machine.make_warm([*whole.weights, *packed.weights])
            finished = run(command, watch=name in ("delta", "apply"))
            taken[name].append(finished.to_dict())
            tell(f"delta_merges {options.size}: {title}, {caches}, run {turn + 1}, {name}: {finished.seconds:.2f} s")
    return taken


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, Stored]) -> str:
    """For each size and density a table, and the bars."""
    return "\n\n".join(part for stored in by_size.values() for part in _parts(stored.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    parts = [f"### Qwen2.5-{data['size']}"]
    if data["cold_refused"]:
        parts.append(f"Not measured with cold caches: {data['cold_refused']}.")
    found = []
    for title, one in data["found"].items():
        share = one["sizes"]["delta"] / one["sizes"]["agent"]
        parts += [
            f"Three agents that each moved {title} at random places; a delta takes {share:.3f} of the agent's file.",
            "\n".join(f"    {command}" for command in one["commands"].values()),
            table(("caches", "what", "seconds", "seconds of the other", "ratio"), _rows(one["taken"])),
        ]
        found += _found(f"{data['size']}", title, one)
    return [*parts, bars(found)]


def _rows(taken: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for caches, by_name in taken.items():
        for name in by_name:
            if ", " in name:
                continue
            other = next(each for each in by_name if each.startswith(f"{name}, "))
            took, theirs = ([one["seconds"] for one in by_name[each]] for each in (name, other))
            what = f"`{name}` next to the floor" if "floor" in other else f"`{name}` from deltas, next to whole agents"
            rows.append((caches, what, spread(took).text(), spread(theirs).text(), ratios(took, theirs).text()))
    return rows


def _found(size: str, title: str, one: Mapping[str, Any]) -> list[Bar]:
    found = []
    for caches, by_name in one["taken"].items():

        def ratio(name: str, other: str, by_name: Mapping[str, Any] = by_name) -> Any:
            return ratios(*([run["seconds"] for run in by_name[each]] for each in (name, f"{name}, {other}")))

        where = f"{size}, {title} moved, {caches}"
        key = f"delta_merges.{size}.{caches}"
        if title == "12 %":
            for name in ("delta", "apply"):
                memory = spread([run["anonymous"] for run in by_name[name]])
                found.append(Bar(f"{key}.{name}", f"{where}: {name} over the floor", ratio(name, "floor"), _FLOOR))
                found.append(
                    Bar(f"{key}.{name}.memory", f"{where}: {name}, bytes of memory", memory, _MOST_MEMORY, digits=0)
                )
            found.append(
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
                found.append(Bar(f"{key}.{title}.{method}", text, ratio(method, "whole"), _BARS[title]))
    if title == "12 %":
        for method in _METHODS:
            share = one["bytes_read"]["deltas"][method] / one["bytes_read"]["whole"][method]
            text = f"{size}, {title} moved: {method}, bytes read over those of whole agents"
            found.append(Bar(f"delta_merges.{size}.bytes.{method}", text, spread([share]), _BYTES))
    return found


SECTION = Section("delta_merges", "Merging from deltas", sized=True, measure=measure, render=render, fewest=3)
