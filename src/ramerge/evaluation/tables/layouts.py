"""Which columns a table has: those of the paper's tables 1 to 9, or all that was run.

Source: arXiv 2601.13572, tables 1 to 9. Its HotpotQA lengths are numbers of documents (50 are about 7K tokens, each
doubling twice as many).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ramerge.evaluation.logs import Model
from ramerge.evaluation.tables.model import TableColumn
from ramerge.foundation.errors import EvaluationError

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

GENERAL = "ifeval"
"""What no agent is trained for, so that it has no specialist."""

REFUSALS = frozenset({"irrelevance", "live_irrelevance"})
"""Tasks in which BFCL counts every answer that is no call as right, so that rubbish scores 100 %."""

MAIN, ALL = "main", "all"
UNIT_TESTS = ("accumulated", "ut", "ut_accumulated")
"""What the columns UT can show. The paper does not say which it means."""

_MAIN_METRICS = {
    "coding": "acc",
    "tool": "accuracy",
    "memory": "sub_em",
    "ifeval": "prompt_strict",
    "search": "em",
    "rewards": "reward",
}


@dataclass(frozen=True)
class Layout:
    """What a table shows.

    Attributes:
        average: whether there are averages; the columns of a layout without them have no common scale.
        all_count: whether averages are over all columns, as the paper's are; then there is one without `REFUSALS` too.
        differences: whether scores come with their difference to the base model.
        ablation: whether it shows only merges, in the order of RAM's `r`.
    """

    name: str
    title: str
    columns: tuple[TableColumn, ...]
    average: bool = True
    all_count: bool = True
    differences: bool = False
    ablation: bool = False


def names() -> list[str]:
    """The layouts, the default one first."""
    return [MAIN, ALL, *_paper("accumulated")]


def find(name: str, results: Sequence[Model], ut: str) -> Layout:
    """A layout by its name. `main` has the main metric of every task that was run, `all` every metric.

    Raises:
        EvaluationError: there is none of that name, or `ut` is no metric of unit tests.
    """
    if ut not in UNIT_TESTS:
        raise EvaluationError(f"the columns UT can show {', '.join(UNIT_TESTS)}, not {ut!r}")
    if name in (MAIN, ALL):
        return _whole(name, results)
    layouts = _paper(ut)
    if name not in layouts:
        raise EvaluationError(f"there is no table {name!r}; there are {', '.join(names())}")
    return layouts[name]


def _paper(ut: str) -> dict[str, Layout]:
    coding = _coding(_BENCHMARKS[:2], (("ACC", "acc"), ("UT", ut)))
    best_of = (("ACC", "acc"), ("UT", ut), ("BoN ACC", "bon_acc"), ("BoN UT", "bon_accumulated"))
    tool = _grouped("tool", {"Live": _LIVE_PARALLEL, "Non-Live": _PARALLEL})
    memory = _grouped("memory", {"HotpotQA": _HOTPOT[:2], "SQuAD": _SQUAD[2:4]})
    layouts = (
        Layout("table1", "Coding, tool use and memory", coding + tool + memory),
        Layout("table2", "Merges by the strength r of RAM's rescaling", coding + tool + memory, ablation=True),
        Layout("table3", "Instruction following (IFEval)", _IFEVAL, average=False, differences=True),
        Layout("table4", "Coding and tool use", coding + tool),
        Layout("table5", "Tool use and memory", tool + memory),
        Layout("table6", "Coding and memory", coding + memory),
        Layout("table7", "Coding", _coding(_BENCHMARKS, best_of)),
        Layout("table8", "Tool use (BFCL)", _grouped("tool", {"Live": _LIVE, "Non-Live": _NON_LIVE})),
        Layout(
            "table9", "Memory for long contexts (RULER)", _grouped("memory", {"SQuAD": _SQUAD, "HotpotQA": _HOTPOT})
        ),
    )
    return {layout.name: layout for layout in layouts}


Titled = tuple[tuple[str, str], ...]
"""Titles of columns with the tasks, or the metrics, they stand for."""

_BENCHMARKS = (
    ("LiveBench", "livebench"),
    ("LiveCodeBench", "livecodebench"),
    ("MBPP", "mbpp"),
    ("CodeContests", "codecontests"),
)
_LIVE_PARALLEL = (("Para", "live_parallel"), ("P_Mul", "live_parallel_multiple"))
_PARALLEL = (("Para", "parallel"), ("P_Mul", "parallel_multiple"))
_LIVE = (
    ("Multiple", "live_multiple"),
    ("Parallel", "live_parallel"),
    ("Relevance", "live_relevance"),
    ("Simple", "live_simple"),
    ("Parallel_multiple", "live_parallel_multiple"),
    ("Irrelevance", "live_irrelevance"),
)
_NON_LIVE = (
    ("Multiple", "multiple"),
    ("Irrelevance", "irrelevance"),
    ("S_java", "simple_java"),
    ("S_javascript", "simple_javascript"),
    ("Parallel_multiple", "parallel_multiple"),
    ("Parallel", "parallel"),
    ("S_python", "simple_python"),
)
_HOTPOT = tuple((f"{7 << step}K", f"hotpotqa_{50 << step}") for step in range(8))
_SQUAD = tuple((f"{8 << step}K", f"squad_{8 << step}k") for step in range(5))
_IFEVAL = tuple(
    TableColumn((DOMAINS["ifeval"], level, strictness), "ifeval", "ifeval", f"{level}_{strictness}".lower())
    for level in ("Instruction", "Prompt")
    for strictness in ("Loose", "Strict")
)


def _coding(benchmarks: Titled, metrics: Titled) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn((DOMAINS["coding"], benchmark, title), "coding", task, metric)
        for benchmark, task in benchmarks
        for title, metric in metrics
    )


def _grouped(suite: str, groups: dict[str, Titled]) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn((DOMAINS[suite], group, title), suite, task, _MAIN_METRICS[suite])
        for group, tasks in groups.items()
        for title, task in tasks
    )


def _whole(name: str, results: Sequence[Model]) -> Layout:
    """All that was run, by suite and task."""
    run: dict[tuple[str, str], list[str]] = {}
    for model in results:
        for task, samples in model.tasks.items():
            run.setdefault(task, list(samples.metrics))
    columns = [
        TableColumn((DOMAINS.get(suite, suite), task, metric if name == ALL else ""), suite, task, metric)
        for suite, task in sorted(run, key=_order)
        for metric in (run[suite, task] if name == ALL else [_main(suite, run[suite, task])])
    ]
    if not columns:
        raise EvaluationError("the results hold no scored sample")
    title = "All tasks, every metric" if name == ALL else "All tasks, main metrics"
    return Layout(name, title, tuple(columns), average=name == MAIN, all_count=False)


def _main(suite: str, metrics: Sequence[str]) -> str:
    """A task's main metric: the suite's, or the first that its samples name."""
    known = _MAIN_METRICS.get(suite, metrics[0])
    return known if known in metrics else metrics[0]


def _order(name: tuple[str, str]) -> tuple[int, str, list[tuple[int, str]]]:
    suite, task = name
    known = list(DOMAINS)
    return known.index(suite) if suite in known else len(known), suite, natural(task)


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in a text by their size."""
    parts: Iterable[str] = re.findall(r"\d+|\D+", text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
