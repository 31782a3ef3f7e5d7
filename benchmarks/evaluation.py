"""How many samples a second `ramerge eval` gets through where the model answers at once, and how many programs.

`inspect eval` runs the same task in turns: requests, logs and resuming are Inspect's, so the difference is ramerge's.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.stand_in import standing_in
from benchmarks.timing import ProcessResult, command_line, ratios, run, script, spread, tell

_SAMPLES = 2000
_CONNECTIONS = 64
_OF_INSPECT = 0.8
_PROGRAMS_A_SECOND = 40
_PROGRAMS = 400
_PROGRAM = "numbers = map(int, input().split())\nprint(sum(numbers))\n"
_TASK = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def pears() -> Task:
    questions = [f"Ann has {{n}} pears and buys 3 more. How many?" for n in range({_SAMPLES})]
    samples = [Sample(id=n, input=question, target="7") for n, question in enumerate(questions)]
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=match())
"""
_NAMES = ("ramerge eval", "inspect eval")


def measure(options: Options) -> dict[str, Any]:
    """Whole commands with all samples and with one, whose difference is what samples take; and the sandbox."""
    file = options.work / "pears.py"
    file.write_text(_TASK, encoding="utf-8")
    logs = options.work / "evaluated"
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in _NAMES}
    os.environ["STAND_API_KEY"] = "none"  # Inspect wants one
    with standing_in("It is 7", "It is 7") as url:
        for _ in range(options.runs):
            for name, command in _commands(f"{file}@pears", url, logs).items():
                first, whole = (_evaluation([*command, *more], logs) for more in (["--limit", "1"], []))
                processor = whole.user + whole.system - first.user - first.system
                runs[name].append({"start": first.seconds, "seconds": whole.seconds, "processor": processor})
                tell(f"evaluation: {name}: {_rates(runs[name])[-1]:.0f} samples/s")
    programs = [asyncio.run(_programs()) for _ in range(options.runs)]
    tell(f"evaluation: {programs[-1]['rate']:.0f} programs/s")
    commands = {
        name: command_line(command) for name, command in _commands("pears.py@pears", "URL", Path("LOGS")).items()
    }
    return {"runs": runs, "commands": commands, "programs": programs}


def _commands(task: str, url: str, logs: Path) -> dict[str, list[str]]:
    ours = ["eval", str(logs), "--task", task, "--endpoint", url, "--served-name", "stand-in", "--quiet"]
    its = ["eval", task, "--model", "openai-api/stand/stand-in", "--model-base-url", url, "--log-dir", str(logs)]
    words = [
        [script("ramerge"), *ours, "--task-set", f"max_connections={_CONNECTIONS}"],
        [script("inspect"), *its, "--max-connections", str(_CONNECTIONS), "--display", "none"],
    ]
    return dict(zip(_NAMES, words, strict=True))


def _evaluation(command: list[str], logs: Path) -> ProcessResult:
    shutil.rmtree(logs, ignore_errors=True)
    return run(command)


async def _programs() -> dict[str, Any]:
    """Programs in sandboxes, each with its own input."""
    from ramerge_eval.sandbox import execution

    way = execution.open_sandbox()
    start = time.perf_counter()
    outcomes = await asyncio.gather(*[execution.run(way, _PROGRAM, f"{n} 1") for n in range(_PROGRAMS)])
    seconds = time.perf_counter() - start
    assert [outcome.stdout for outcome in outcomes] == [f"{n + 1}\n" for n in range(_PROGRAMS)]
    return {"programs": _PROGRAMS, "isolation": f"bubblewrap {way.version}", "rate": _PROGRAMS / seconds}


def _rates(runs: Sequence[Mapping[str, float]]) -> list[float]:
    """Samples a second of each run, without the time of the run of one sample before it."""
    return [(_SAMPLES - 1) / (each["seconds"] - each["start"]) for each in runs]


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table of rates, and the bars."""
    data = by_size[""].data
    rates = {name: _rates(runs) for name, runs in data["runs"].items()}
    rows = [
        (
            f"`{data['commands'][name].split()[0]} eval`",
            f"{_SAMPLES:,}",
            *(spread([each[key] for each in runs]).text() for key in ("seconds", "start")),
            spread(rates[name]).text(0),
            spread([1000 * each["processor"] / (_SAMPLES - 1) for each in runs]).text(1),
        )
        for name, runs in data["runs"].items()
    ]
    rate = spread([each["rate"] for each in data["programs"]])
    programs, isolation = data["programs"][0]["programs"], data["programs"][0]["isolation"]
    text = (
        f"A task of three lines (`generate()` and `match()`) with {_SAMPLES:,} samples at {_CONNECTIONS} connections, "
        "against a server on the same machine that returns a fixed answer immediately; both commands ran alternately. "
        "The rate excludes the time of a run of one sample: imports, reading data. Requests, logs and resuming are "
        f"Inspect's in both. Programs: {programs} small Python programs through {isolation}, each in its own sandbox."
    )
    head = (
        "command",
        "samples",
        "whole command, s",
        "with one sample, s",
        "samples a second",
        "processor time a sample, ms",
    )
    goals = [
        Bar(
            "evaluation.ratio",
            "samples a second, of those of `inspect eval`",
            ratios(*rates.values()),
            _OF_INSPECT,
            True,
            2,
        ),
        Bar("evaluation.programs", "sandboxed programs a second", rate, _PROGRAMS_A_SECOND, True, 0),
    ]
    return "\n\n".join([text, table(head, rows), bars(goals)])


SECTION = Section("evaluation", "Evaluation", has_sizes=False, measure=measure, render=render)
