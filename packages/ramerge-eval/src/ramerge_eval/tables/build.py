"""Builds a table of all models: rows, ranks, differences from the base, and notes; selects models and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import pandas as pd

from ramerge import EvaluationError
from ramerge_eval.samples import Model, TaskName
from ramerge_eval.tables import layouts, roles, scores
from ramerge_eval.tables.layouts import Layout, TableColumn
from ramerge_eval.tables.roles import GivenRoles, Roles
from ramerge_eval.tables.scores import Line, Table

_SECTIONS = {"base": "Base and task models", "agent": "Base and task models", "merged": "Merged models"}


def build(
    results: Sequence[Model],
    layout: str = layouts.MAIN,
    *,
    models: Sequence[str] = (),
    explicit_roles: GivenRoles | None = None,
    reference: bool = False,
    seed: int = 0,
) -> Table:
    """Build the table of models and benchmarks of `ramerge table`.

    Scores are in per cent: the sum of a metric's numerators over the sum of its denominators. Averages are means over
    columns, each column with the same weight, as in the paper. Intervals are 95 % percentile bootstrap intervals.

    Args:
        layout: see `layouts.layout_of`.
        models: the models to show, in this order, after base models and agents; all if empty.
        explicit_roles: base, agents and merges, as far as merge records and names do not tell.
        reference: whether to add the rows of the paper's table.

    Raises:
        EvaluationError: no results, an unknown table or model, or none of the table's columns was run.
    """
    if not results:
        raise EvaluationError("there are no results to show")
    members = selection(results, models)
    plan = layouts.layout_of(layout, members)
    require_columns(plan, members)
    who = roles.roles_of(
        members, explicit_roles or GivenRoles(), list(dict.fromkeys(column.suite for column in plan.columns))
    )
    families = list(dict.fromkeys(who.families[model.name] for model in members))
    order = list(_SECTIONS)
    in_order = sorted(
        members, key=lambda model: (families.index(who.families[model.name]), order.index(who.role(model.name)))
    )
    rows: list[tuple[Line, Sequence[Line]]] = []
    for model in in_order:
        family, role = who.families[model.name], who.role(model.name)
        section = _section(role, family if len(families) > 1 else None)
        row = {"row": model.name, "section": section, "role": role, "family": family or ""}
        rows.append((row, scores.cells(model, plan.columns, seed)))
    cells = _with_ranks(scores.cell_frame(rows + (_quotations(plan) if reference else [])), plan.columns, who)
    notes = [*_notes(in_order, plan, cells, who)]
    if reference:
        notes += [
            "The paper's models are of 3B and 7B parameters and ran on whole benchmarks; see its sections 5 and B.",
            f"Rows marked (paper) are quoted from {layouts.source(plan.name)}; averages by domain are made from their "
            "cells.",
            *(f"On the paper's table: {text}" for text in layouts.paper_table(plan.name)["inconsistencies"]),
        ]
    if plan.differences:  # to the base of their family, of quoted ones to the quoted base
        keys = ["family", "quoted", "place"]
        bases = cells[cells.role == "base"].drop_duplicates(keys).set_index(keys).value.rename("of_base")
        of_base = cells.join(bases, on=keys).of_base
        cells = cells.assign(difference=(cells.value - of_base).where(cells.role != "base"))
    return Table(plan.title, "Model", plan.columns, cells, tuple(notes))


def selection(results: Sequence[Model], names: Sequence[str]) -> list[Model]:
    """Return the models with these names, or all; raise `EvaluationError` if a name has no results."""
    by_name = {model.name: model for model in results}
    if unknown := [name for name in names if name not in by_name]:
        raise EvaluationError(f"no results of {', '.join(map(repr, unknown))}; there are {', '.join(by_name)}")
    return [by_name[name] for name in names] if names else list(results)


def require_columns(layout: Layout, results: Sequence[Model]) -> None:
    """Raise `EvaluationError` if no model was run on any column of a table."""
    run = {
        (*task, metric)
        for model in results
        for task, samples in model.tasks.items()
        for metric in (*samples.metrics, *([] if samples.metrics else [""]))
    }
    if not any((column.suite, column.task, column.metric) in run for column in layout.columns):
        names = ", ".join(sorted({f"{suite}/{task}" for suite, task, _ in run})) or "nothing"
        raise EvaluationError(f"none of the columns of {layout.name} was run; the results have {names}")


def _section(role: str, family: str | None) -> str:
    return f"{f'{family}: ' if family else ''}{_SECTIONS[role]}"


def _quotations(plan: Layout) -> list[tuple[Line, Sequence[Line]]]:
    """Return the rows of a table that the paper printed."""
    rows: list[tuple[Line, Sequence[Line]]] = []
    for paper_row in layouts.paper_table(plan.name)["rows"]:
        values = dict(zip((column for column in plan.columns if column.task), paper_row["values"], strict=True))
        values |= {
            column: fmean(values[each] for each in column.over) if column.suite else paper_row.get("average")
            for column in plan.columns
            if column.over
        }
        family = paper_row.get("family")
        section = f"{_section(paper_row['role'], family)} ({layouts.source(plan.name)})"
        row = {"row": f"{paper_row['name']} (paper)", "role": paper_row["role"], "family": family or "", "quoted": True}
        rows.append((row | {"section": section}, [scores.cell(values[column]) for column in plan.columns]))
    return rows


def _with_ranks(cells: pd.DataFrame, columns: Sequence[TableColumn], who: Roles) -> pd.DataFrame:
    """Add each cell's rank among the merges of its base, and whether it beats the specialist.

    Values are rounded as shown, so that equal figures share a rank.
    """
    values = pd.Series(
        [round(value, columns[place].decimals) for value, place in zip(cells.value, cells.place, strict=True)],
        dtype="float64",
    )
    is_merge = (cells.role == "merged") & ~cells.quoted
    among = values.where(is_merge).groupby([cells.family, cells.place])
    ranks = among.rank("dense", ascending=False).where(among.transform("nunique") > 1)  # where all are equal, none is
    of_row = dict(zip(zip(cells.row, cells.place, strict=True), values, strict=True))
    to_beat = [
        of_row.get((who.specialist(family or None, (columns[place].suite, columns[place].task)), place), float("nan"))
        for family, place in zip(cells.family, cells.place, strict=True)
    ]
    return cells.assign(rank=ranks.where(ranks <= 2).fillna(0).astype("int64"), beats=is_merge & (values > to_beat))


# --- sentences below a table ------------------------------------------------------------------------------------------


def _notes(models: Sequence[Model], plan: Layout, cells: pd.DataFrame, who: Roles) -> Iterator[str]:
    averages = any(column.over for column in plan.columns)
    yield "Scores in per cent." + (" Avg is the mean over the columns." if averages else "")
    yield from refusals(plan)
    if any(column.titles[-1] == "UT" for column in plan.columns):
        yield "UT is the metric accumulated; the paper does not say which figure its UT is."
    if 0 < sum(model.name in who.merges for model in models) < len(models):
        suites = list(dict.fromkeys(c.suite for c in plan.columns if c.suite not in ("", layouts.GENERAL)))
        by_suite = {suite: name for (_, suite), name in who.specialists.items() if suite in suites}
        if by_suite:
            yield f"Specialists: {', '.join(f'{name} ({suite})' for suite, name in by_suite.items())}."
        if absent := [suite for suite in suites if suite not in by_suite]:
            yield f"No specialist is known for {', '.join(absent)}."
    if plan.differences:
        with_base = {who.families[model.name] for model in models if who.role(model.name) == "base"}
        if names := [model.name for model in models if who.families[model.name] not in with_base]:
            yield f"No base model to compare with in this table: {', '.join(names)}."
    yield from run_notes(models, plan.columns)
    if cells.value.isna().any():
        yield "–: not run, failed, or nothing to score; averages over rows with gaps are left out."


def refusals(plan: Layout) -> Iterator[str]:
    """Yield notes on why averages leave out tasks in which gibberish scores, or what these count if averages include
    them.
    """
    tasks = [column.task for column in plan.columns if column.task in layouts.REFUSALS]
    if tasks:
        how = "has them" if plan.name not in (layouts.MAIN, layouts.ALL) else "leaves them out"
        yield (
            f"BFCL counts every answer that is no call as right in {' and '.join(tasks)}, so that a model which "
            f"answers rubbish scores 100 there; Avg {how}."
        )


def failures(models: Sequence[Model], tasks: Sequence[TaskName]) -> Iterator[str]:
    """Yield notes on models without a score in a task because samples failed, each with a reason."""
    for model in models:
        for task in tasks:
            if task in model.tasks and (failure := model.tasks[task].failure):
                yield f"No score of {model.name} in {'/'.join(task)}: {failure}."


def run_notes(models: Sequence[Model], columns: Sequence[TableColumn]) -> Iterator[str]:
    """Yield notes on differences between the runs of a table: samples, failures, settings."""
    tasks = list(dict.fromkeys((column.suite, column.task) for column in columns if column.task))
    if any(suite == layouts.AGREEMENT for suite, _ in tasks):
        yield (
            "Agreement is no skill: it is the probability that a model gives to the agents' own replies, the geometric "
            "mean over the tokens of a reply, averaged over replies; Avg leaves it out."
        )
    counts = {
        task: max(sizes) for task in tasks if (sizes := [len(m.tasks[task].keys) for m in models if task in m.tasks])
    }
    parts = [f"{'/'.join(task)} {count:,}" for task, count in counts.items()]
    yield f"Samples: {', '.join(parts)}."
    figures: dict[str, Callable[[Model, TaskName], int]] = {
        "Fewer samples than others": lambda model, task: counts[task] - len(model.tasks[task].keys),
        "Not finished": lambda model, task: model.tasks[task].item_count - len(model.tasks[task].keys),
        "Cut off at the limit of tokens": lambda model, task: model.tasks[task].cut,
    }
    for what, figure in figures.items():
        texts = [
            f"{model.name} {number:,} in {'/'.join(task)}"
            for model in models
            for task in tasks
            if task in model.tasks and (number := figure(model, task)) > 0
        ]
        if texts:
            yield f"{what}: {', '.join(texts)}."
    yield from failures(models, tasks)
    for task in tasks:
        settings = {model.name: model.settings.get(task, {}) for model in models if task in model.tasks}
        for key in dict.fromkeys(key for record in settings.values() for key in record):
            having: dict[str, list[str]] = {}
            for name, record in settings.items():
                having.setdefault(repr(record[key]) if key in record else "not recorded", []).append(name)
            if len(having) > 1:
                which = "; ".join(f"{value} for {', '.join(names)}" for value, names in having.items())
                yield f"Different settings of {'/'.join(task)}: {key} is {which}."
