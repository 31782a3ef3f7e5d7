"""From results to a table: rows, ranks, differences to the base, and the notes below."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ramerge.evaluation.logs import Model, TaskName
from ramerge.evaluation.tables import layouts, paper, roles, scores
from ramerge.evaluation.tables.layouts import Layout, TableColumn
from ramerge.evaluation.tables.roles import GivenRoles, Roles
from ramerge.evaluation.tables.scores import Cell, Row, Table
from ramerge.foundation.errors import EvaluationError


def build(
    results: Sequence[Model],
    layout: str = layouts.MAIN,
    *,
    models: Sequence[str] = (),
    given: GivenRoles | None = None,
    reference: bool = False,
    seed: int = 0,
) -> Table:
    """A table of models and benchmarks.

    Scores are in per cent: the sum of a metric's numerators over the sum of its denominators. Averages are means over
    columns, each column with the same weight, as in the paper. Intervals are 95 % percentile bootstrap intervals.

    Args:
        results: the models. The table has base models first, then agents, then merges.
        layout: `table1` and `table3` to `table10` have the columns of the paper's tables; `main` has the main metric of
            every task that was run, `all` every metric.
        models: those to show, in this order; all if empty.
        given: who is base, agent and merge, where merge records and names do not say it.
        reference: whether the rows of the paper's table are added.
        seed: of the intervals.

    Raises:
        EvaluationError: no results, an unknown table or model, or none of the table's columns was run.
    """
    if not results:
        raise EvaluationError("there are no results to show")
    chosen = selected(results, models)
    plan = layouts.find(layout, chosen)
    require_columns(plan, chosen)
    who = roles.find(chosen, given or GivenRoles(), list(dict.fromkeys(column.suite for column in plan.columns)))
    families = list(dict.fromkeys(who.families[model.name] for model in chosen))
    ordered = sorted(chosen, key=lambda model: (families.index(who.families[model.name]), who.order(model.name)))
    rows = [_measured(model, plan, who, seed, several=len(families) > 1) for model in ordered]
    rows = _ranked(rows, plan.columns, who)
    if reference:
        rows += [_quoted(row, plan) for row in paper.rows(plan.name)]
    rows = _with_differences(rows) if plan.differences else rows
    notes = [*_notes(ordered, plan, rows, who), *(_about_paper(plan.name) if reference else ())]
    return Table(plan.title, "Model", plan.columns, tuple(rows), tuple(notes))


def selected(results: Sequence[Model], names: Sequence[str]) -> list[Model]:
    """Models by name, or all.

    Raises:
        EvaluationError: there are no results of a name.
    """
    known = {model.name: model for model in results}
    if unknown := [name for name in names if name not in known]:
        raise EvaluationError(f"no results of {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(results)


def require_columns(layout: Layout, results: Sequence[Model]) -> None:
    """Raises `EvaluationError` where no model was run on any of a layout's columns."""
    run = {(*task, metric) for model in results for task, samples in model.tasks.items() for metric in samples.metrics}
    if not any((column.suite, column.task, column.metric) in run for column in layout.columns):
        found = ", ".join(sorted({f"{suite}/{task}" for suite, task, _ in run})) or "nothing"
        raise EvaluationError(f"none of the columns of {layout.name} was run; the results have {found}")


def _measured(model: Model, plan: Layout, who: Roles, seed: int, *, several: bool) -> Row:
    merged, family = model.name in who.merged, who.families[model.name]
    return Row(
        model.name,
        _section(merged, family if several else None),
        scores.cells(model, plan.columns, seed),
        merged=merged,
        is_base=who.bases.get(model.name) == model.name,
        family=family,
    )


def _quoted(row: paper.Quoted, plan: Layout) -> Row:
    values = dict(zip((column for column in plan.columns if column.task), row.values, strict=True))
    cells = [
        Cell(values[column] if column.task else row.average)
        if column.task or not column.suite
        else Cell(fmean(values[each] for each in column.over))
        for column in plan.columns
    ]
    merged = row.role == "merged"
    section = f"{_section(merged, row.family)} ({paper.source(plan.name)})"
    return Row(f"{row.name} (paper)", section, tuple(cells), True, merged, row.role == "base", row.family)


def _section(merged: bool, family: str | None) -> str:
    return f"{f'{family}: ' if family else ''}{'Merged models' if merged else 'Base and task models'}"


def _ranked(rows: Sequence[Row], columns: Sequence[TableColumn], who: Roles) -> list[Row]:
    """Rows whose cells know their rank among the merges of their base, and whether they beat the specialist.

    Values count as they are shown, so that equal figures share a rank.
    """
    measured = {row.name: row for row in rows}

    def ranked(row: Row, place: int, column: TableColumn) -> Cell:
        cell, value = row.cells[place], _shown(row, place, column)
        if not row.merged or value is None:
            return cell
        others = {_shown(each, place, column) for each in rows if each.merged and each.family == row.family} - {None}
        best = sorted((each for each in others if each is not None), reverse=True)[:2]
        specialist = measured.get(who.specialists.get((row.family, column.suite), ""))
        to_beat = _shown(specialist, place, column) if specialist else None
        rank = best.index(value) + 1 if value in best and len(best) > 1 else 0  # where all are equal, none is best
        return replace(cell, rank=rank, beats=to_beat is not None and value > to_beat)

    return [
        replace(row, cells=tuple(ranked(row, place, column) for place, column in enumerate(columns))) for row in rows
    ]


def _shown(row: Row, place: int, column: TableColumn) -> float | None:
    value = row.cells[place].value
    return None if value is None else round(value, column.decimals)


def _with_differences(rows: Sequence[Row]) -> list[Row]:
    bases = {(row.family, row.quoted): row for row in rows if row.is_base}
    return [
        row
        if row.is_base or (row.family, row.quoted) not in bases
        else replace(row, cells=tuple(map(_difference, row.cells, bases[row.family, row.quoted].cells)))
        for row in rows
    ]


def _difference(cell: Cell, base: Cell) -> Cell:
    return cell if cell.value is None or base.value is None else replace(cell, difference=cell.value - base.value)


# --- sentences below a table ------------------------------------------------------------------------------------------


def _notes(models: Sequence[Model], plan: Layout, rows: Sequence[Row], who: Roles) -> Iterator[str]:
    averages = any(column.over for column in plan.columns)
    yield "Scores in per cent." + (" Avg is the mean over the columns." if averages else "")
    yield from refusals(plan)
    if any(column.titles[-1] == "UT" for column in plan.columns):
        yield "UT is the metric accumulated; the paper does not say which figure its UT is."
    if 0 < sum(model.name in who.merged for model in models) < len(models):
        yield from _specialists(plan.columns, who)
    if plan.differences:
        yield from _without_base(rows)
    yield from run_notes(models, plan.columns)
    if any(cell.value is None for row in rows for cell in row.cells):
        yield "– is what was not run or has nothing to count; averages over rows with gaps are left out."


def refusals(plan: Layout) -> Iterator[str]:
    """Why averages leave out tasks in which rubbish is right, or what they count where they do not."""
    tasks = [column.task for column in plan.columns if column.task in layouts.REFUSALS]
    if tasks:
        how = "has them" if plan.name not in (layouts.MAIN, layouts.ALL) else "leaves them out"
        yield (
            f"BFCL counts every answer that is no call as right in {' and '.join(tasks)}, so that a model which "
            f"answers rubbish scores 100 there; Avg {how}."
        )


def _without_base(rows: Sequence[Row]) -> Iterator[str]:
    with_base = {row.family for row in rows if row.is_base and not row.quoted}
    if names := [row.name for row in rows if not row.quoted and row.family not in with_base]:
        yield f"No base model to compare with in this table: {', '.join(names)}."


def _about_paper(table: str) -> Iterator[str]:
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


def run_notes(models: Sequence[Model], columns: Sequence[TableColumn]) -> Iterator[str]:
    """What differs between runs: samples, failures, settings."""
    tasks = list(dict.fromkeys((column.suite, column.task) for column in columns if column.task))
    counts = {
        task: max(found) for task in tasks if (found := [len(m.tasks[task].keys) for m in models if task in m.tasks])
    }
    listed = [f"{'/'.join(task)} {count:,}" for task, count in counts.items()]
    yield f"Samples: {', '.join(listed)}."
    figures: dict[str, Callable[[Model, TaskName], int]] = {
        "Fewer samples than others": lambda model, task: counts[task] - len(model.tasks[task].keys),
        "Failed samples": lambda model, task: len(model.tasks[task].failures),
        "Not finished": lambda model, task: model.tasks[task].asked - len(model.tasks[task].keys),
        "Cut off at the limit of tokens": lambda model, task: len(model.tasks[task].cut),
    }
    for what, figure in figures.items():
        noted = [
            f"{model.name} {number:,} in {'/'.join(task)}"
            for model in models
            for task in tasks
            if task in model.tasks and (number := figure(model, task)) > 0
        ]
        if noted:
            yield f"{what}: {', '.join(noted)}."
    for task in tasks:
        ran = {model.name: model.settings.get(task, {}) for model in models if task in model.tasks}
        yield from _unequal("/".join(task), ran)


def _unequal(task: str, settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Settings of a task that are not the same for all models."""
    for key in dict.fromkeys(key for recorded in settings.values() for key in recorded):
        models: dict[str, list[str]] = {}
        for name, recorded in settings.items():
            models.setdefault(repr(recorded[key]) if key in recorded else "not recorded", []).append(name)
        if len(models) > 1:
            which = "; ".join(f"{value} for {', '.join(names)}" for value, names in models.items())
            yield f"Different settings of {task}: {key} is {which}."
