"""What keeping kernels' machine code saves at the start of a command, next to numba's own cache and next to neither."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import family
from benchmarks.report import Bar, Options, Section, Stored, bars, table
from benchmarks.startup import demo_agents
from benchmarks.timing import Spread, run, script, spread, tell

_SIZES = {"tiny": "tiny agents", "0.1B": "0.1B"}
_COMMANDS = ("merge ram", "merge ram+", "merge ties", "analyze")
_KEPT, _NUMBA, _NONE = "kept", "numba", "none"
_TITLES = {_KEPT: "machine code kept", _NUMBA: "numba's cache", _NONE: "compiled at each start"}
# What the code that keeps machine code must save, to be worth its lines.
_LEAST_SAVED = 0.3


def measure(options: Options) -> dict[str, Any]:
    """Whole processes in turns, after one of each that fills the caches: processor time and wall time."""
    taken: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    out = options.work / "merged"
    for size in _SIZES:
        files = demo_agents(options.work) if size == "tiny" else family(size, options.work)
        taken[size] = {name: {way: [] for way in _TITLES} for name in _COMMANDS}
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
                    done = run([*program, *arguments], settings={"RAMERGE_CACHE": cache})
                    if turn >= 0:
                        taken[size][name][way].append({"cpu": done.user + done.system, "wall": done.seconds})
                        tell(f"machine code: run {turn + 1}, {size}, {name}, {way}: {done.user + done.system:.2f} s")
    machine.remove(out)
    return {"taken": taken}


def render(by_size: Mapping[str, Stored]) -> str:
    """Tables of processor time and wall time, and the bar."""
    taken = by_size[""].data["taken"]
    text = (
        "Seconds of whole processes whose caches were filled before, taken in turns: with machine code that ramerge "
        "keeps, with numba's own cache (`cache=True` on the same kernels, `numba_cache.py`), and with no cache."
    )
    parts = [text]
    for measure_, title in (("cpu", "processor time"), ("wall", "wall time")):
        rows = [
            (f"{_SIZES[size]}, {name}", *[_spread(ways[way], measure_).text() for way in _TITLES])
            for size, names in taken.items()
            for name, ways in names.items()
        ]
        parts.append(table((title, *_TITLES.values()), rows))
    held = [
        Bar(
            f"machine_code.{size}.{name}",
            f"{_SIZES[size]}, {name}: processor time that is saved against numba's cache",
            _saved(ways),
            _LEAST_SAVED,
            at_least=True,
            unit="s",
        )
        for size, names in taken.items()
        for name, ways in names.items()
    ]
    return "\n\n".join([*parts, bars(held)])


def _spread(runs: list[dict[str, float]], measure_: str) -> Spread:
    return spread([run[measure_] for run in runs])


def _saved(ways: Mapping[str, list[dict[str, float]]]) -> Spread:
    """What is saved, pair by pair."""
    return spread([numba["cpu"] - kept["cpu"] for numba, kept in zip(ways[_NUMBA], ways[_KEPT], strict=True)])


SECTION = Section("machine_code", "Machine code of kernels", sized=False, measure=measure, render=render)
