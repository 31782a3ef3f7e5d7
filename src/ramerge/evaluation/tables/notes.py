"""What a reader must know to read a table: sentences below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ramerge.evaluation.logs import Model, TaskName
from ramerge.evaluation.tables import layouts, paper
from ramerge.evaluation.tables.marks import Entry
from ramerge.evaluation.tables.model import Row, TableColumn
from ramerge.evaluation.tables.roles import Roles

_MOST_NAMES = 2


def measured(
    models: Sequence[Model], columns: Sequence[TableColumn], rows: Sequence[Row], who: Roles, ut: str
) -> Iterator[str]:
    """Notes on measured rows."""
    yield "Scores in per cent." + (
        " Avg is the mean over the columns." if any(not column.task for column in columns) else ""
    )
    yield from averages(columns)
    if any(column.titles[-1] == "UT" for column in columns):
        yield f"UT is the metric {ut}; the paper does not say which figure its UT is."
    if 0 < sum(model.name in who.merged for model in models) < len(models):
        yield from _specialists(columns, who)
    yield from run_notes(models, columns)
    if any(cell.value is None for row in rows for cell in row.cells):
        yield "– is what was not run or has nothing to count; averages over rows with gaps are left out."


def averages(columns: Sequence[TableColumn]) -> Iterator[str]:
    """What averages leave out, and why."""
    tasks = [column.task for column in columns if column.task in layouts.REFUSALS]
    over = [column for column in columns if not column.task]
    leaving = list(dict.fromkeys(column.titles[-1] for column in over if column.without))
    if tasks and leaving:
        yield (
            f"{leaving[0]} leaves out {' and '.join(tasks)}: BFCL counts every answer that is no call as right there, "
            "so that a model which answers rubbish scores 100."
            + (" Avg is over all columns, as in the paper." if any(not column.without for column in over) else "")
        )


def run_notes(models: Sequence[Model], columns: Sequence[TableColumn]) -> Iterator[str]:
    """What differs between runs: samples, failures, settings, versions."""
    tasks = list(dict.fromkeys((column.suite, column.task) for column in columns if column.task))
    yield from _counts(models, tasks)
    yield from _failures(models, tasks)
    yield from _each(
        models, tasks, "Not finished", lambda model, task: model.tasks[task].asked - len(model.tasks[task].keys)
    )
    yield from _each(models, tasks, "Cut off at the limit of tokens", lambda model, task: len(model.tasks[task].cut))
    for task in tasks:
        ran = {model.name: model.settings.get(task, {}) for model in models if task in model.tasks}
        yield from _unequal("/".join(task), "settings", ran)


def without_base(entries: Sequence[Entry]) -> Iterator[str]:
    """Measured rows that have no difference to a base model, because it is not in the table."""
    with_base = {entry.family for entry in entries if entry.is_base and not entry.quoted}
    if names := [entry.name for entry in entries if not entry.quoted and entry.family not in with_base]:
        yield f"No base model to compare with in this table: {', '.join(names)}."


def quoted(table: str) -> Iterator[str]:
    """Notes on the paper's rows."""
    yield "The paper's models are of 3B and 7B parameters and ran on whole benchmarks; see its sections 5 and B."
    yield f"Rows marked (paper) are quoted from {paper.source(table)}; averages by domain are made from their cells."
    yield from (f"On the paper's table: {text}" for text in paper.inconsistencies(table))


def _specialists(columns: Sequence[TableColumn], who: Roles) -> Iterator[str]:
    suites = list(dict.fromkeys(column.suite for column in columns if column.suite not in ("", layouts.GENERAL)))
    named = [(suite, name) for (_, suite), name in who.specialists.items() if suite in suites]
    if named:
        yield f"Specialists: {', '.join(f'{name} ({suite})' for suite, name in named)}."
    if absent := [suite for suite in suites if suite not in {suite for suite, _ in named}]:
        yield f"No specialist is known for {', '.join(absent)}."


def _counts(models: Sequence[Model], tasks: Iterable[TaskName]) -> Iterator[str]:
    """How many samples there are, and who has another number of them."""
    usual, unlike = [], []
    for task in tasks:
        counts = {model.name: len(model.tasks[task].keys) for model in models if task in model.tasks}
        if not counts:
            continue
        most = max(counts.values())
        usual.append(f"{'/'.join(task)} {most:,}")
        unlike += [f"{name} has {count:,} of {'/'.join(task)}" for name, count in counts.items() if count < most]
    yield f"Samples: {', '.join(usual)}."
    if unlike:
        yield f"Fewer samples than others: {', '.join(unlike)}."


def _failures(models: Sequence[Model], tasks: Sequence[TaskName]) -> Iterator[str]:
    failures = [
        f"{model.name} {len(samples.failures):,} of {len(samples.keys):,} in {'/'.join(task)}"
        for model in models
        for task in tasks
        if (samples := model.tasks.get(task)) and samples.failures
    ]
    if failures:
        yield f"Failed samples: {', '.join(failures)}."


def _each(
    models: Sequence[Model], tasks: Sequence[TaskName], what: str, count: Callable[[Model, TaskName], int]
) -> Iterator[str]:
    """A sentence on the models and tasks where there is something to count."""
    found = [
        f"{model.name} {number:,} of {model.tasks[task].asked:,} in {'/'.join(task)}"
        for model in models
        for task in tasks
        if task in model.tasks and (number := count(model, task)) > 0
    ]
    if found:
        yield f"{what}: {', '.join(found)}."


def _unequal(suite: str, what: str, values: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Settings or versions of a suite that are not the same for all models."""
    for key in dict.fromkeys(key for recorded in values.values() for key in recorded):
        models: dict[str, list[str]] = {}
        for name, recorded in values.items():
            models.setdefault(repr(recorded[key]) if key in recorded else "not recorded", []).append(name)
        if len(models) > 1:
            groups = sorted(models.items(), key=lambda group: len(group[1]))
            which = [f"{value} for {', '.join(names)}" for value, names in groups[:-1]]
            usual, names = groups[-1]
            which.append(f"{usual} for {'the others' if len(names) > _MOST_NAMES else ', '.join(names)}")
            yield f"Different {what} of {suite}: {key} is {'; '.join(which)}."
