"""Merges of float8 checkpoints next to the same merges from bfloat16 and from their expansion in float32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family, float8, float32
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

_METHODS = ("ram", "ram+")
_BAR = 1.3


def measure(options: Options) -> dict[str, Any]:
    """The same merge from every storage in turns, with warm caches."""
    plain = family(options.size, options.work)
    storages = {"bfloat16": plain, "float8": float8(plain)}
    storages |= {
        "float32": float32(storages["float8"]),
        # the base in bfloat16, as it is where only agents are served and trained in float8
        "float8 agents": Family(plain.base, storages["float8"].agents),
    }
    commands = _commands(storages, options.work)
    return {
        "size": options.size,
        "bytes": {name: files.nbytes for name, files in storages.items()},
        "read": {name: _planned_bytes(files) for name, files in storages.items()},
        "commands": {name: command_line(command) for name, (_, command) in commands.items()},
        "taken": _in_turns(commands, options),
    }


def _planned_bytes(files: Family) -> dict[str, int]:
    """Bytes that merges read, as plans say."""
    return {method: json.loads(run(merging.plan(method, files)).output)["bytes_read"] for method in _METHODS}


def _commands(storages: Mapping[str, Family], work: Path) -> dict[str, tuple[Family, list[str]]]:
    commands = {
        f"{method}, {name}": (files, [*merging.command(method, files, work / "merged"), "--dtype", "bfloat16"])
        for method in _METHODS
        for name, files in storages.items()
    }
    files = storages["float8"]
    commands["ram+, float8, like base"] = (
        files,
        [*merging.command("ram+", files, work / "merged"), "--dtype", "like base"],
    )
    return commands


def _in_turns(commands: Mapping[str, tuple[Family, list[str]]], options: Options) -> dict[str, list[dict[str, Any]]]:
    names = list(commands)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(options.runs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            files, command = commands[name]
            machine.make_warm(files.weights)
            result = run(command, watch=True)
            runs[name].append(result.to_dict())
            machine.remove(options.work / "merged")
            tell(f"quantized {options.size}: run {turn + 1}, {name}: {result.seconds:.2f} s")
    return runs


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table, and bars."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    size = data["size"]
    rows, goals = [], []
    for name, ones in data["taken"].items():
        method, storage = name.split(", ", 1)
        durations, read = [one["seconds"] for one in ones], data["read"][storage.removesuffix(", like base")][method]
        over = {other: ratios(durations, _seconds(data, f"{method}, {other}")) for other in ("bfloat16", "float32")}
        memory = spread([one["anonymous"] / 1e6 for one in ones]).text(0)
        rows.append(
            (name, spread(durations).text(), *[each.text() for each in over.values()], f"{read / 1e9:.2f}", memory)
        )
        if storage in ("float8", "float8 agents"):
            goals += [
                Bar(f"quantized.{size}.{name}.{other}", f"{size}: {name}, over {other}", ratio, _BAR)
                for other, ratio in over.items()
            ]
    text = (
        "Whole processes with warm caches, in turns. The matrices of all layers are stored in float8 with scales of "
        "128 x 128 blocks, embeddings and norms in bfloat16; float32 is what these codes and scales say. The output is "
        "bfloat16, or quantized like the base."
    )
    head = ("merge", "seconds", "over bfloat16", "over float32", "read, GB", "MB")
    return [f"### Qwen2.5-{size}", text, table(head, rows), bars(goals)]


def _seconds(data: Mapping[str, Any], name: str) -> list[float]:
    return [one["seconds"] for one in data["taken"][name]]


SECTION = Section("quantized", "Quantized checkpoints", has_sizes=True, measure=measure, render=render, fewest=3)
