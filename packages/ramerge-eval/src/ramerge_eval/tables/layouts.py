"""The columns of each table: those of the paper's tables (arXiv 2601.13572), or all that was run; the paper's rows.

The columns and rows of the paper's tables are in `paper.json`. Its HotpotQA lengths are numbers of documents (50 are
about 7K tokens; each further length doubles). The paper does not define UT of coding; `accumulated` fits it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ramerge import EvaluationError
from ramerge_eval.samples import Model

MAIN, ALL = "main", "all"
AVERAGE = "Avg"
GENERAL = "ifeval"
"""A suite without a specialist, because no agent is trained for it."""

RETENTION = "Retention"
"""The title above the columns of retentions."""

REFUSALS = frozenset({"irrelevance", "live_irrelevance"})
"""Tasks in which BFCL counts every answer that is not a call as right, so that gibberish scores 100 %."""

AGREEMENT = "agreement"
"""The suite that measures no skill, but how likely the agents' replies are under a model. Averages and retentions omit
it.
"""

DOMAINS = {
    "coding": "Coding",
    "tool": "Tool use",
    "memory": "Memory",
    "ifeval": "Instructions",
    "math": "Mathematics",
    "search": "Search",
    "rewards": "Rewards",
    AGREEMENT: "Agreement",
}
"""Suites in the order of the tables, with their titles."""

_WITH_DIFFERENCES = "table3"  # its columns have no common scale, so that differences take the place of averages


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: its titles, widest group first, and for an average, the columns that it averages."""

    titles: tuple[str, ...]
    suite: str = ""
    task: str = ""
    metric: str = ""
    decimals: int = 2
    over: tuple[TableColumn, ...] = ()

    @property
    def title(self) -> str:
        """All titles of the column in one line."""
        return " ".join(filter(None, self.titles))


@dataclass(frozen=True)
class Layout:
    """The layout of a table: its columns; `differences`: whether scores come with differences from the base model."""

    name: str
    title: str
    columns: tuple[TableColumn, ...]
    differences: bool = False


def names() -> list[str]:
    """Return the names of layouts, the default first."""
    return [MAIN, ALL, *_paper()["tables"]]


def layout_of(name: str, results: Sequence[Model]) -> Layout:
    """Return a layout by name: `main` has each task's main metric, `all` every metric; other names are the paper's
    tables.

    Raises:
        EvaluationError: there is no such layout, or nothing was scored.
    """
    if name in (MAIN, ALL):
        run: dict[tuple[str, str], list[str]] = {}
        for model in results:
            for each, samples in model.tasks.items():
                run[each] = run.get(each) or list(samples.metrics)
        if not run:
            raise EvaluationError("the results hold no scored sample")
        every = name == ALL
        columns = [
            TableColumn((DOMAINS.get(suite, suite), task, metric if every else ""), suite, task, metric)
            for suite, task in sorted(run, key=_order)
            for metric in (run[suite, task] or [""])[: None if every else 1]  # no sample of any model was scored
        ]
        if every:
            return Layout(name, "All tasks, every metric", tuple(columns))
        return Layout(name, "All tasks, main metrics", _with_averages(columns, REFUSALS))
    if name not in names():
        raise EvaluationError(f"there is no table {name!r}; there are {', '.join(names())}")
    table = paper_table(name)
    columns = []
    for title, what in table["columns"].items():
        suite, task, metric = what.split("/")
        group, _, leaf = title.partition(" ")
        columns.append(TableColumn((DOMAINS[suite], group, leaf), suite, task, metric))
    differences = name == _WITH_DIFFERENCES
    return Layout(name, table["title"], tuple(columns) if differences else _with_averages(columns), differences)


def paper_table(table: str) -> dict[str, Any]:
    """Return a table of the paper: its columns, its `rows`, and its `inconsistencies`, figures that contradict each
    other.

    A row has name, role (base, agent or merged), values in per cent, and, if the table has them, the average and the
    family (the base model).

    Raises:
        EvaluationError: the paper has no such table.
    """
    tables = _paper()["tables"]
    if table not in tables:
        raise EvaluationError(f"the paper has no rows for the table {table!r}; it has {', '.join(tables)}")
    return dict(tables[table])


def source(table: str) -> str:
    """Return a sentence on the source of the rows of a table of the paper."""
    return f"arXiv {_paper()['source']['arxiv']}, {table.replace('table', 'table ')}"


@cache
def _paper() -> dict[str, Any]:
    return dict(json.loads(files("ramerge_eval").joinpath("paper.json").read_text(encoding="utf-8")))


def _order(name: tuple[str, str]) -> tuple[int, str, list[tuple[int, str]]]:
    """Return a sort key: domains in their fixed order, and numbers in the names of tasks by size."""
    suite, task = name
    suites = list(DOMAINS)
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", task)]
    return suites.index(suite) if suite in suites else len(suites), suite, parts


def _with_averages(columns: Sequence[TableColumn], leave_out: frozenset[str] = frozenset()) -> tuple[TableColumn, ...]:
    """Add an average after each domain, if there are several, and an average over all columns at the end."""
    suites = list(dict.fromkeys(column.suite for column in columns))
    all_columns: list[TableColumn] = []
    for suite in suites:
        own = [column for column in columns if column.suite == suite]
        all_columns += own
        if len(suites) > 1:
            all_columns += _average((own[0].titles[0], AVERAGE), suite, own, leave_out)
    skills = [column for column in columns if column.suite != AGREEMENT]
    return (*all_columns, *_average((AVERAGE,), "", skills, leave_out))


def _average(
    titles: tuple[str, ...], suite: str, columns: Sequence[TableColumn], leave_out: frozenset[str]
) -> list[TableColumn]:
    over = tuple(column for column in columns if column.task not in leave_out)
    return [TableColumn(titles, suite, over=over)] if len(over) > 1 else []
