"""Time that stored machine code saves at the start of a command, compared with numba's own cache and with neither."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.startup import demo_agents
from benchmarks.timing import Spread, run, script, spread, tell

_SIZES = {"tiny": "tiny agents", "0.1B": "0.1B"}
_COMMANDS = ("merge ram", "merge ram+", "merge ties", "analyze")
_OWN, _NUMBA, _NONE = "kept", "numba", "none"
_TITLES = {_OWN: "machine code kept", _NUMBA: "numba's cache", _NONE: "compiled at each start"}
# What the code that keeps machine code must save, to be worth its lines.
_LEAST_SAVING = 0.3


def measure(options: Options) -> dict[str, Any]:
    """Whole processes in turns, after one of each that fills the caches: processor time and wall time."""
    runs: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    out = options.work / "merged"
    for size in _SIZES:
        files = demo_agents(options.work) if size == "tiny" else family(size, options.work)
        runs[size] = {name: {way: [] for way in _TITLES} for name in _COMMANDS}
        for turn in range(-1, options.runs):
            for name in _COMMANDS:
                arguments = (
                    merging.analysis(files, len(files.agents))
                    if name == "analyze"
                    else merging.command(name.removeprefix("merge "), files, out)
                )[1:]
                for way in _TITLES:
                    program = [sys.executable, "-m", "benchmarks.numba_cache"] if way == _NUMBA else [script("ramerge")]
                    cache = "/dev/null/none" if way == _NONE else str((options.work / f"cache-{way}").resolve())
                    result = run([*program, *arguments], settings={"RAMERGE_CACHE": cache})
                    if turn >= 0:
                        runs[size][name][way].append({"cpu": result.user + result.system, "wall": result.seconds})
                        tell(
                            f"machine code: run {turn + 1}, {size}, {name}, {way}: {result.user + result.system:.2f} s"
                        )
    machine.remove(out)
    return {"taken": runs}


def render(by_size: Mapping[str, RawResults]) -> str:
    """Tables of processor time and wall time, and the bar."""
    runs = by_size[""].data["taken"]
    text = (
        "Seconds of whole processes whose caches were filled before, taken in turns: with machine code that ramerge "
        "keeps, with numba's own cache (`cache=True` on the same kernels, `numba_cache.py`), and with no cache."
    )
    parts = [text]
    for measure_, title in (("cpu", "processor time"), ("wall", "wall time")):
        rows = [
            (f"{_SIZES[size]}, {name}", *[_spread(ways[way], measure_).text() for way in _TITLES])
            for size, names in runs.items()
            for name, ways in names.items()
        ]
        parts.append(table((title, *_TITLES.values()), rows))
    goals = [
        Bar(
            f"machine_code.{size}.{name}",
            f"{_SIZES[size]}, {name}: processor time that is saved against numba's cache",
            _saving(ways),
            _LEAST_SAVING,
            at_least=True,
            unit="s",
        )
        for size, names in runs.items()
        for name, ways in names.items()
    ]
    return "\n\n".join([*parts, bars(goals)])


def _spread(runs: list[dict[str, float]], measure_: str) -> Spread:
    return spread([run[measure_] for run in runs])


def _saving(ways: Mapping[str, list[dict[str, float]]]) -> Spread:
    """Processor seconds saved, pair by pair."""
    return spread([numba["cpu"] - own["cpu"] for numba, own in zip(ways[_NUMBA], ways[_OWN], strict=True)])


SECTION = Section("machine_code", "Machine code of kernels", has_sizes=False, measure=measure, render=render)
