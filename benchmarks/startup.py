"""How long it takes before anything is merged."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, run, script, spread, tell

_DEMO = Path("src/ramerge/demo/agents")
_BARS = {"version": 0.3, "ram": 3.0, "ram+": 3.0}
_TITLES = {
    "python": "Python alone",
    "numba": "Python and an import of numba",
    "version": "`ramerge --version`",
    "ram": "merge of tiny agents, ram",
    "ram+": "merge of tiny agents, ram+",
}


def measure(options: Options) -> dict[str, Any]:
    """Whole processes with warm caches, the compiled kernels' included, in turns."""
    files, out = demo_agents(options.work), options.work / "merged"
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "numba": [sys.executable, "-c", "import numba"],
        "version": [script("ramerge"), "--version"],
        **{method: merging.command(method, files, out) for method in ("ram", "ram+")},
    }
    for command in commands.values():
        run(command)
    runs: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            machine.remove(out)
            runs[name].append(round(run(command).seconds, 4))
            tell(f"startup: run {turn + 1}, {name}: {runs[name][-1]:.2f} s")
    machine.remove(out)
    return {
        "agents": "the demo's" if files.base.is_relative_to(_DEMO) else "generated",
        "bytes": files.nbytes,
        "commands": {name: command_line(command) for name, command in commands.items()},
        "taken": runs,
    }


def demo_agents(work: Path) -> Family:
    """The agents of `ramerge demo`, or tiny ones where it has none."""
    folders = sorted(path.parent for path in _DEMO.glob("*/model.safetensors"))
    agents = {folder.name: folder for folder in folders if folder.name != "base"}
    return Family(_DEMO / "base", agents) if len(agents) > 1 and _DEMO / "base" in folders else family("tiny", work)


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table of times, and the bars."""
    data = by_size[""].data
    times = {name: spread(runs) for name, runs in data["taken"].items()}
    rows = [(_TITLES[name], f"`{data['commands'][name]}`", duration.text()) for name, duration in times.items()]
    text = (
        f"Seconds of whole processes with warm caches and kernels that were compiled before; the agents are "
        f"{data['agents']}, {data['bytes'] / 1e6:,.1f} MB in all."
    )
    goals = [Bar(f"startup.{name}", _TITLES[name], times[name], limit, unit="s") for name, limit in _BARS.items()]
    return "\n\n".join([text, table(("what", "command", "seconds"), rows), bars(goals)])


SECTION = Section("startup", "Start-up", has_sizes=False, measure=measure, render=render)
