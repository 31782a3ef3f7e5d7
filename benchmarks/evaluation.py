"""How many samples a second `ramerge eval` gets through where the model answers at once, and how many programs."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import long_context
from benchmarks.report import Bar, Options, Section, Stored, bars, table
from benchmarks.stand_in import standing_in
from benchmarks.timing import beside, run, shown, spread, tell

_SAMPLES_A_SECOND = 300
_PROGRAMS_A_SECOND = 40
_PROGRAMS = 400
_PROGRAM = "numbers = map(int, input().split())\nprint(sum(numbers))\n"


@dataclass(frozen=True)
class Case:
    """A task as it is run: its subsets, how the model answers, and further words of the command."""

    task: str
    subsets: str
    answer: str
    then: str | None = None
    words: Sequence[str] = ()
    data: Sequence[str] = ()


_CASES = {
    "tool": Case("tool", "all", "[calculate_sum(numbers=[1, 2, 3])]"),
    "ifeval": Case("ifeval", "", "Two words, and then some more of them.", data=["ifeval"]),
    "gsm8k": Case("math", "gsm8k", "Three and four make seven.\n#### 7", data=["gsm8k"]),
    "math500": Case(
        "math", "math500", "Half of it is $\\boxed{\\frac{1}{2}}$. I hope it is correct.", data=["math500"]
    ),
    "search": Case(
        "search", "nq", "<search> word17 word4 </search>", "<answer> word4 </answer>", data=["nq", "documents"]
    ),
    "memory, MemAgent": Case(
        "memory",
        "hotpotqa_50",
        "Therefore, the answer is unknown.",
        words=["--task-set", "memory.samples=1000"],
        data=["hotpotqa"],
    ),
}


def measure(options: Options) -> dict[str, Any]:
    """Whole commands with all items and with one, whose difference is what items take; and the sandbox by itself."""
    data, tokenizer = _data(options.work)
    taken: dict[str, Any] = {}
    for name, case in _CASES.items():
        with standing_in(case.answer, case.then or case.answer) as url:
            command = _command(case, url, data, tokenizer)
            taken[name] = [_measured(command, options.work / "evaluated") for _ in range(options.runs)]
        tell(f"evaluation: {name}: {_rates(taken[name])[-1]:.0f} samples/s")
        shown_command = shown(_command(case, "URL", data, tokenizer))
        taken[name] = {"command": shown_command, "runs": taken[name]}
    programs = [asyncio.run(_programs()) for _ in range(options.runs)]
    tell(f"evaluation: {programs[-1]['rate']:.0f} programs/s")
    return {"suites": taken, "programs": programs}


def _command(case: Case, url: str, data: Mapping[str, Path], tokenizer: Path) -> list[str]:
    given = [word for name in case.data for word in ("--data", f"{name}={data[name]}")]
    subsets = ["--task-set", f"{case.task}.subsets={case.subsets}"] if case.subsets else []
    tokens = ["--task-set", f"memory.tokenizer={tokenizer}"] if case.task == "memory" else []
    return [
        *(
            beside("ramerge"),
            "eval",
            "--endpoint",
            url,
            "--served-name",
            "stand-in",
            "--task",
            f"ramerge/{case.task}",
        ),
        *("--task-set", "max_connections=64", *subsets, *tokens, *given, *case.words, "--quiet", "--json"),
    ]


def _measured(command: list[str], out: Path) -> dict[str, float]:
    """Samples of a whole run and its seconds, and those of a run of one sample a task."""
    first = _run([*command, "--limit", "1"], out)
    whole = _run(command, out)
    return {**whole, "first": first["samples"], "start": first["seconds"]}


def _run(command: list[str], out: Path) -> dict[str, float]:
    shutil.rmtree(out, ignore_errors=True)
    finished = run([*command, str(out)])
    tasks = json.loads(finished.output)["stand-in"].values()
    assert not any(task["failed"] for task in tasks)
    return {"samples": sum(task["samples"] for task in tasks), "seconds": finished.seconds}


async def _programs() -> dict[str, Any]:
    """Programs in sandboxes, each with its own input."""
    from ramerge.evaluation.sandbox import execution

    way = execution.opened()
    began = time.perf_counter()
    outcomes = await asyncio.gather(*[execution.run(way, _PROGRAM, f"{n} 1") for n in range(_PROGRAMS)])
    seconds = time.perf_counter() - began
    assert [outcome.stdout for outcome in outcomes] == [f"{n + 1}\n" for n in range(_PROGRAMS)]
    return {"programs": _PROGRAMS, "isolation": f"bubblewrap {way.version}", "rate": _PROGRAMS / seconds}


def _data(work: Path) -> tuple[dict[str, Path], Path]:
    """Made-up benchmark files, of sizes that take longer than starting does."""
    folder = work / "evaluation"
    folder.mkdir(parents=True, exist_ok=True)
    random.seed(0)
    records: dict[str, list[dict[str, Any]]] = {
        "gsm8k": [_gsm8k(n) for n in range(3000)],
        "math500": [{"problem": f"What is $\\frac{{{n}}}{{{n + 3}}}$?", **_math500(n)} for n in range(3000)],
        "ifeval": [_ifeval(n) for n in range(3000)],
        "nq": [{"question": f"who wrote {_words(6)}", "answer": [_words(2)]} for _ in range(3000)],
        "documents": [{"title": _words(2), "text": _words(100)} for _ in range(10_000)],
    }
    paths = {name: folder / f"{name}.jsonl" for name in records}
    for name, path in paths.items():
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records[name]))
    hotpotqa, tokenizer = long_context.made_up(work)
    return paths | {"hotpotqa": hotpotqa}, tokenizer


def _words(count: int) -> str:
    return " ".join(f"word{random.randrange(5000)}" for _ in range(count))


def _gsm8k(n: int) -> dict[str, Any]:
    return {"question": f"Ann has {n} pears and buys {_words(20)} 3 more. How many?", "answer": f"Sum.\n#### {n + 3}"}


def _math500(n: int) -> dict[str, Any]:
    answer = f"\\frac{{{n}}}{{{n + 3}}}"
    return {
        "solution": f"It is $\\boxed{{{answer}}}$.",
        "answer": answer,
        "subject": "x",
        "level": 1,
        "unique_id": f"{n}",
    }


def _ifeval(n: int) -> dict[str, Any]:
    ids = ["length_constraints:number_words", "punctuation:no_comma", "change_case:english_lowercase"][: 1 + n % 3]
    arguments = {"length_constraints:number_words": {"relation": "at least", "num_words": 20}}
    kwargs = [arguments.get(each, {}) for each in ids]
    return {"key": n, "prompt": f"Write about {_words(10)}.", "instruction_id_list": ids, "kwargs": kwargs}


def _rates(runs: Sequence[Mapping[str, float]]) -> list[float]:
    """Samples a second of each run, without the median time of a run that has only started."""
    start = spread([each["start"] for each in runs]).median
    return [(each["samples"] - each["first"]) / (each["seconds"] - start) for each in runs]


def render(by_size: Mapping[str, Stored]) -> str:
    """A table of rates, and the bars."""
    data = by_size[""].data
    rows, held = [], []
    for name, measured in data["suites"].items():
        runs = measured["runs"]
        rate = spread(_rates(runs))
        whole, start = (spread([each[key] for each in runs]) for key in ("seconds", "start"))
        rows.append((name, f"{runs[0]['samples']:,.0f}", whole.text(), start.text(), rate.text(0)))
        held.append(Bar(f"evaluation.{name}", f"{name}, samples a second", rate, _SAMPLES_A_SECOND, True, 0))
    rate = spread([each["rate"] for each in data["programs"]])
    programs, isolation = data["programs"][0]["programs"], data["programs"][0]["isolation"]
    held.append(Bar("evaluation.programs", "sandboxed programs a second", rate, _PROGRAMS_A_SECOND, True, 0))
    text = (
        "Whole commands on made-up data against a server, on the same machine, that says the same at "
        "once. The rate leaves out the median time of a run of one sample a task: imports, reading data. "
        f"Programs: {programs} small Python programs through {isolation}, each in a sandbox of its own."
    )
    head = ("task", "samples", "whole command, s", "with one sample, s", "samples a second")
    return "\n\n".join([text, table(head, rows), bars(held)])


SECTION = Section("evaluation", "Evaluation", sized=False, measure=measure, render=render)
