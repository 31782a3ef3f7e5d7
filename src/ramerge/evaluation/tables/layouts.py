"""Which columns a table has: those of the paper's tables (arXiv 2601.13572), or all that was run.

Its HotpotQA lengths are numbers of documents (50 are about 7K tokens, each doubling twice as many).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ramerge.evaluation.logs import Model
from ramerge.foundation.errors import EvaluationError

MAIN, ALL = "main", "all"
AVERAGE = "Avg"
GENERAL = "ifeval"
"""What no agent is trained for, so that it has no specialist."""

REFUSALS = frozenset({"irrelevance", "live_irrelevance"})
"""Tasks in which BFCL counts every answer that is no call as right, so that rubbish scores 100 %."""

DOMAINS = {
    "coding": "Coding",
    "tool": "Tool use",
    "memory": "Memory",
    "ifeval": "Instructions",
    "math": "Mathematics",
    "search": "Search",
    "rewards": "Rewards",
}
"""Suites in the order of the tables, with their titles."""

_MAIN_METRICS = {
    "coding": "acc",
    "tool": "accuracy",
    "memory": "sub_em",
    "ifeval": "prompt_strict",
    "search": "em",
    "rewards": "reward",
}


@dataclass(frozen=True)
class TableColumn:
    """A column: what it shows, its titles from the widest group down, and for an average the columns it is over."""

    titles: tuple[str, ...]
    suite: str = ""
    task: str = ""
    metric: str = ""
    decimals: int = 2
    over: tuple[TableColumn, ...] = ()

    @property
    def title(self) -> str:
        """All titles in one line."""
        return " ".join(filter(None, self.titles))


@dataclass(frozen=True)
class Layout:
    """What a table shows; `differences` is whether scores come with their difference to the base model."""

    name: str
    title: str
    columns: tuple[TableColumn, ...]
    differences: bool = False


def _columns(suite: str, groups: dict[str, dict[str, str]]) -> tuple[TableColumn, ...]:
    """The main metric of tasks, by group and title."""
    return tuple(
        TableColumn((DOMAINS[suite], group, title), suite, task, _MAIN_METRICS[suite])
        for group, tasks in groups.items()
        for title, task in tasks.items()
    )


def _coding(benchmarks: Sequence[str], metrics: dict[str, str]) -> tuple[TableColumn, ...]:
    """LiveBench and others; the paper does not say what its UT counts, and `accumulated` fits it."""
    return tuple(
        TableColumn((DOMAINS["coding"], benchmark, title), "coding", benchmark.lower(), metric)
        for benchmark in benchmarks
        for title, metric in metrics.items()
    )


_PASSES = {"ACC": "acc", "UT": "accumulated"}
_BEST_OF = {"BoN ACC": "bon_acc", "BoN UT": "bon_accumulated"}
_LIVE = ("Multiple", "Parallel", "Relevance", "Simple", "Parallel_multiple", "Irrelevance")
_NON_LIVE = {
    "Multiple": "multiple",
    "Irrelevance": "irrelevance",
    "S_java": "simple_java",
    "S_javascript": "simple_javascript",
    "Parallel_multiple": "parallel_multiple",
    "Parallel": "parallel",
    "S_python": "simple_python",
}
_PARALLEL = {
    "Live": {"Para": "live_parallel", "P_Mul": "live_parallel_multiple"},
    "Non-Live": {"Para": "parallel", "P_Mul": "parallel_multiple"},
}
_HOTPOTQA = {f"{7 << step}K": f"hotpotqa_{50 << step}" for step in range(8)}
_SQUAD = {f"{8 << step}K": f"squad_{8 << step}k" for step in range(5)}

_CODING = _coding(("LiveBench", "LiveCodeBench"), _PASSES)
_TOOL = _columns("tool", _PARALLEL)
_MEMORY = _columns(
    "memory",
    {
        "HotpotQA": {title: _HOTPOTQA[title] for title in ("7K", "14K")},
        "SQuAD": {title: _SQUAD[title] for title in ("32K", "64K")},
    },
)
_IFEVAL = tuple(
    TableColumn((DOMAINS["ifeval"], level, strictness), "ifeval", "ifeval", f"{level}_{strictness}".lower())
    for level in ("Instruction", "Prompt")
    for strictness in ("Loose", "Strict")
)
_BENCHMARKS = ("LiveBench", "LiveCodeBench", "MBPP", "CodeContests")
_PAPER = {
    "table1": ("Coding, tool use and memory", _CODING + _TOOL + _MEMORY),
    "table3": ("Instruction following (IFEval)", _IFEVAL),
    "table4": ("Coding and tool use", _CODING + _TOOL),
    "table5": ("Tool use and memory", _TOOL + _MEMORY),
    "table6": ("Coding and memory", _CODING + _MEMORY),
    "table7": ("Coding", _coding(_BENCHMARKS, _PASSES | _BEST_OF)),
    "table8": (
        "Tool use (BFCL)",
        _columns("tool", {"Live": {title: f"live_{title.lower()}" for title in _LIVE}, "Non-Live": _NON_LIVE}),
    ),
    "table9": ("Memory for long contexts (RULER)", _columns("memory", {"SQuAD": _SQUAD, "HotpotQA": _HOTPOTQA})),
    "table10": ("Coding, tool use and memory, with WUDI", _CODING + _TOOL + _MEMORY),
}


def names() -> list[str]:
    """The layouts, the default one first."""
    return [MAIN, ALL, *_PAPER]


def find(name: str, results: Sequence[Model]) -> Layout:
    """A layout by its name. `main` has the main metric of every task that was run, `all` every metric.

    Raises:
        EvaluationError: there is none of that name, or nothing was scored.
    """
    if name in (MAIN, ALL):
        return _everything(name, results)
    if name not in _PAPER:
        raise EvaluationError(f"there is no table {name!r}; there are {', '.join(names())}")
    title, columns = _PAPER[name]
    if name == "table3":  # its columns have no common scale
        return Layout(name, title, columns, differences=True)
    return Layout(name, title, _with_averages(columns))


def _with_averages(columns: Sequence[TableColumn], leave_out: frozenset[str] = frozenset()) -> tuple[TableColumn, ...]:
    """An average behind each domain, if there are several, and one over all columns at the end."""
    suites = list(dict.fromkeys(column.suite for column in columns))
    found: list[TableColumn] = []
    for suite in suites:
        own = [column for column in columns if column.suite == suite]
        found += own
        if len(suites) > 1:
            found += _average((own[0].titles[0], AVERAGE), suite, own, leave_out)
    return (*found, *_average((AVERAGE,), "", columns, leave_out))


def _average(
    titles: tuple[str, ...], suite: str, columns: Sequence[TableColumn], leave_out: frozenset[str]
) -> list[TableColumn]:
    over = tuple(column for column in columns if column.task not in leave_out)
    return [TableColumn(titles, suite, over=over)] if len(over) > 1 else []


def _everything(name: str, results: Sequence[Model]) -> Layout:
    run: dict[tuple[str, str], list[str]] = {}
    for model in results:
        for task, samples in model.tasks.items():
            run.setdefault(task, list(samples.metrics))
    if not run:
        raise EvaluationError("the results hold no scored sample")
    every = name == ALL
    columns = [
        TableColumn((DOMAINS.get(suite, suite), task, metric if every else ""), suite, task, metric)
        for suite, task in sorted(run, key=_order)
        for metric in (run[suite, task] if every else [_main(suite, run[suite, task])])
    ]
    if every:
        return Layout(name, "All tasks, every metric", tuple(columns))
    return Layout(name, "All tasks, main metrics", _with_averages(columns, REFUSALS))


def _main(suite: str, metrics: Sequence[str]) -> str:
    known = _MAIN_METRICS.get(suite, metrics[0])
    return known if known in metrics else metrics[0]


def _order(name: tuple[str, str]) -> tuple[int, str, list[tuple[int, str]]]:
    """Domains in their order, and numbers in the names of tasks by their size."""
    suite, task = name
    known = list(DOMAINS)
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", task)]
    return known.index(suite) if suite in known else len(known), suite, parts
