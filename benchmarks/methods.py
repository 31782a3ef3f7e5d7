"""Every method on the same files next to its floor (figure 9 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family, importances
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

# Over the floor.
_OVER_FLOOR = {"task_arithmetic": 1.5, "linear": 1.5, "dare": 1.5, "fisher": 1.5, "ties": 1.8, "dare_ties": 2.0}
_BARRED_SIZE = "0.5B"


def measure(options: Options) -> dict[str, Any]:
    """All methods and their floors in turns."""
    files = importances(family(options.size, options.work))
    return {
        "size": options.size,
        "bytes": files.nbytes,
        "fisher_bytes": files.nbytes + sum(path.stat().st_size for path in files.importance_weights),
        "commands": {method: command_line(merging.command(method, files, _out(options))) for method in merging.METHODS},
        "taken": _in_turns(files, options),
    }


def _out(options: Options) -> Path:
    return options.work / "merged"


def _copy(options: Options) -> Path:
    return options.work / "copy.safetensors"


def _in_turns(files: Family, options: Options) -> dict[str, list[dict[str, Any]]]:
    """Floors and methods, each turn beginning with another. Fisher reads more, and has a floor of its own."""
    commands = {
        "floor": ["sh", "-c", merging.floor("ram", files, _copy(options))],
        "floor of fisher": ["sh", "-c", merging.floor("fisher", files, _copy(options))],
        **{method: merging.command(method, files, _out(options)) for method in merging.METHODS},
    }
    names = list(commands)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(options.runs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            machine.make_warm(merging.inputs("fisher" if "fisher" in name else name, files))
            result = run(commands[name], watch="floor" not in name)
            runs[name].append(result.to_dict())
            machine.remove(_out(options))
            machine.remove(_copy(options))
            tell(f"methods {options.size}: run {turn + 1}, {name}: {result.seconds:.2f} s")
    return runs


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table, and bars."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data) if part)


def _parts(data: Mapping[str, Any]) -> list[str]:
    size = data["size"]
    return [
        f"### Qwen2.5-{size}",
        f"Whole processes were timed alternately, with warm caches and {data['bytes'] / 1e9:.2f} GB of inputs. Fisher "
        f"also reads three sets of importances, {data['fisher_bytes'] / 1e9:.2f} GB in all, and its floor reads them "
        "too. Memory is RssAnon + RssShmem, polled every 10 ms; VmHWM includes mapped files.",
        _commands(data["commands"]),
        table(("method", "seconds", "over the floor", "MB", "VmHWM, MB"), _rows(data)),
        bars(_floor_bars(data)) if size == _BARRED_SIZE else "",
    ]


def _commands(commands: Mapping[str, str]) -> str:
    return "\n".join(f"    {command}" for command in commands.values())


def _rows(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, ones in data["taken"].items():
        duration = spread([one["seconds"] for one in ones]).text()
        if "floor" in name:
            rows.append((name, duration, "-", "-", "-"))
            continue
        memory = [spread([one[kind] / 1e6 for one in ones]).text(0) for kind in ("anonymous", "peak")]
        rows.append((f"`{name}`", duration, ratios(*_over_floor(data, name)).text(), *memory))
    return rows


def _over_floor(data: Mapping[str, Any], method: str) -> tuple[list[float], list[float]]:
    floor = data["taken"]["floor of fisher" if method == "fisher" else "floor"]
    return [one["seconds"] for one in data["taken"][method]], [one["seconds"] for one in floor]


def _floor_bars(data: Mapping[str, Any]) -> list[Bar]:
    size = data["size"]
    return [
        Bar(
            f"methods.{size}.{method}",
            f"{size}, warm caches: {method} over its floor",
            ratios(*_over_floor(data, method)),
            limit,
        )
        for method, limit in _OVER_FLOOR.items()
    ]


SECTION = Section("methods", "Methods", has_sizes=True, measure=measure, render=render, fewest=3)
