"""`ramerge analyze` next to reading all inputs once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

_COLD_BAR, _WARM_BAR, _MEMORY_BAR = 1.3, 0.6, 400
_AGENTS = (2, 3, 5, 8)


def measure(options: Options) -> dict[str, Any]:
    """`cat` and `analyze` in turns, cold and warm; then warm with more agents."""
    files = family(options.size, options.work)
    obstacle = machine.cannot_drop_caches()
    caches = ["warm"] if obstacle else ["cold", "warm"]
    return {
        "size": options.size,
        "bytes": files.nbytes,
        "cold_refused": obstacle,
        "commands": {"cat": _floor(files), "analyze": command_line(merging.analysis(files, len(files.agents)))},
        "taken": {state: _in_turns(files, state, options) for state in caches},
        "agents": {str(n): _with(files, n, options) for n in _AGENTS},
    }


def _floor(files: Family) -> str:
    return f"cat {' '.join(map(str, files.weights))} > /dev/null"


def _in_turns(files: Family, state: str, options: Options) -> dict[str, list[dict[str, Any]]]:
    commands = {"cat": ["sh", "-c", _floor(files)], "analyze": merging.analysis(files, len(files.agents))}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            if state == "cold":
                machine.make_cold()
            else:
                machine.make_warm(files.weights)
            runs[name].append(run(command, watch=name != "cat").to_dict())
            tell(f"analysis {options.size}: {state}, run {turn + 1}, {name}: {runs[name][-1]['seconds']:.2f} s")
    return runs


def _with(files: Family, agents: int, options: Options) -> list[float]:
    machine.make_warm(files.weights)
    return [round(run(merging.analysis(files, agents)).seconds, 4) for _ in range(options.runs)]


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size times, memory, the growth with agents, and bars."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data) if part)


def _parts(data: Mapping[str, Any]) -> list[str]:
    size, gigabytes = data["size"], data["bytes"] / 1e9
    rows, goals = [], []
    for state, runs in data["taken"].items():
        durations = {name: [one["seconds"] for one in ones] for name, ones in runs.items()}
        ratio = ratios(durations["analyze"], durations["cat"])
        memory = spread([one["anonymous"] / 1e6 for one in runs["analyze"]])
        rows.append(
            (state, spread(durations["cat"]).text(), spread(durations["analyze"]).text(), ratio.text(), memory.text(0))
        )
        if state == "cold":
            goals.append(Bar(f"analysis.{size}.cold", f"{size}, cold caches: analyze over cat", ratio, _COLD_BAR))
        else:
            per = spread([one / gigabytes for one in durations["analyze"]])
            text = f"{size}, warm caches: seconds a gigabyte of input"
            goals.append(Bar(f"analysis.{size}.warm", text, per, _WARM_BAR, unit="s"))
        text = f"{size}, {state} caches: memory without mapped files"
        goals.append(Bar(f"analysis.{size}.memory", text, memory, _MEMORY_BAR, digits=0, unit="MB"))
    agents = [
        (
            n,
            f"{gigabytes * (1 + int(n)) / 4:.2f}",
            spread(ones).text(),
            _per_gigabyte(ones, gigabytes * (1 + int(n)) / 4),
        )
        for n, ones in data["agents"].items()
    ]
    return [
        f"### Qwen2.5-{size}",
        f"{gigabytes:.2f} GB of inputs, three agents; everything that `ramerge analyze` reports.",
        "\n".join(f"    {command}" for command in data["commands"].values()),
        f"Cold caches were not measured: {data['cold_refused']}." if data["cold_refused"] else "",
        table(("caches", "cat, s", "analyze, s", "ratio", "MB"), rows),
        "With more agents, warm; the three folders are given again under other names:",
        table(("agents", "GB of inputs", "seconds", "seconds a gigabyte"), agents),
        bars(goals),
    ]


def _per_gigabyte(durations: list[float], gigabytes: float) -> str:
    return spread([one / gigabytes for one in durations]).text()


SECTION = Section("analysis", "Analysis", has_sizes=True, measure=measure, render=render, fewest=3)
