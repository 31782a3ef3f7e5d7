"""Two models side by side: paired bootstrap tests, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from ramerge.evaluation import intervals
from ramerge.evaluation.intervals import Difference, Floats
from ramerge.evaluation.logs import Model
from ramerge.evaluation.tables import layouts, notes, scores
from ramerge.evaluation.tables.build import require_columns, selected
from ramerge.evaluation.tables.model import Cell, Row, Table, TableColumn
from ramerge.foundation.errors import EvaluationError

Pair = tuple[Model, Model]


def compare(
    results: Sequence[Model],
    first: str,
    second: str,
    layout: str = layouts.MAIN,
    *,
    ut: str = "accumulated",
    domain_averages: bool = True,
    seed: int = 0,
) -> Table:
    """The paired bootstrap test between two models in the columns of a table; see `intervals.p_value`.

    Only items that both have count, so scores can differ from those in other tables; so do averages, which are over
    columns that both have, and are left out where a column is missing.

    Returns:
        A row for each column with both scores, the first's less the second's, its 95 % interval, p, and the items.

    Raises:
        EvaluationError: as `build`; a model compared with itself; or two models without a common item.
    """
    if first == second:
        raise EvaluationError(f"{first!r} cannot be compared with itself")
    models = selected(results, [first, second])
    plan = layouts.find(layout, models, ut)
    require_columns(plan, models)
    _refuse_other_data(models, plan.columns)
    pair = scores.common(*models)
    columns = scores.with_averages(plan, domain_averages)
    drawn = scores.drawn(pair, plan.columns, seed)
    rows = []
    for column in columns:
        over = [column] if column.task else scores.members(column, columns)
        values = [_value(model, over) for model in pair]
        if all(each in drawn for each in over) and values[0] is not None and values[1] is not None:
            found = _test(pair, column, seed) if column.task else _averaged(values[0] - values[1], over, drawn)
            rows.append(_row(column, pair, values, found))
    if not rows:
        raise EvaluationError(f"{first!r} and {second!r} have no two items in common in a column of {plan.name}")
    titles = (first, second, "Difference", "from", "to")
    shape = (
        *(TableColumn((title,)) for title in titles),
        TableColumn(("p",), decimals=4),
        TableColumn(("Items",), decimals=0),
    )
    remarks = [
        f"Difference is {first} less {second}, in points of per cent, over the items that both have; from and to bound "
        "its 95 % interval.",
        f"p: two-sided paired bootstrap test, {intervals.RESAMPLES:,} resamples (Koehn 2004), not corrected for the "
        "number of rows.",
        *notes.averages(columns),
        *_left_out(models, pair[0], plan.columns),
        *notes.run_notes(pair, [column for column in plan.columns if column in drawn]),
    ]
    return Table(f"{first} and {second}: {plan.title}", "Benchmark", shape, tuple(rows), tuple(remarks))


def _refuse_other_data(models: Sequence[Model], columns: Sequence[TableColumn]) -> None:
    """Items of two data sets may have the same keys, and are no pairs."""
    first, second = models
    tasks = dict.fromkeys((column.suite, column.task) for column in columns if column.task)
    problems = [
        f"{'/'.join(task)}: {first.name} and {second.name} were asked from different data"
        for task in tasks
        if task in first.tasks
        and task in second.tasks
        and first.settings.get(task, {}).get("data") != second.settings.get(task, {}).get("data")
    ]
    if problems:
        raise EvaluationError(problems)


def _value(model: Model, over: Sequence[TableColumn]) -> float | None:
    """The mean over columns, if the model has all of them."""
    tasks = [(column.suite, column.task) for column in over]
    if not all(task in model.tasks for task in tasks):
        return None
    values = [model.tasks[task].value(column.metric) for task, column in zip(tasks, over, strict=True)]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _test(pair: Pair, column: TableColumn, seed: int) -> Difference | None:
    """Of one metric; the same in every table that has it."""
    first, second = (scores.PER_CENT * model.tasks[column.suite, column.task].metrics[column.metric] for model in pair)
    return intervals.paired(first, second, seed=seed)


def _averaged(value: float, over: Sequence[TableColumn], drawn: Mapping[TableColumn, Floats]) -> Difference:
    replicates = np.mean([drawn[column] for column in over], axis=0)
    return intervals.difference(value, replicates[:, 0] - replicates[:, 1])


def _row(column: TableColumn, pair: Pair, values: Sequence[float | None], found: Difference | None) -> Row:
    assert found is not None, "there are two items and both models have a value"
    items = float(len(pair[0].tasks[column.suite, column.task].keys)) if column.task else None
    figures = (*values, found.value, found.low, found.high, found.p, items)
    return Row(column.title, "", tuple(Cell(figure) for figure in figures))


def _left_out(models: Sequence[Model], matched: Model, columns: Sequence[TableColumn]) -> list[str]:
    """Who has items that the other has not."""
    texts = []
    for task in dict.fromkeys((column.suite, column.task) for column in columns):
        both = len(matched.tasks[task].keys) if task in matched.tasks else 0
        for model in models:
            unmatched = len(model.tasks[task].keys) - both if task in model.tasks else 0
            if unmatched:
                texts.append(f"{unmatched:,} of {model.name} in {'/'.join(task)}")
    return [f"Left out, because the other has not got them: {', '.join(texts)}."] if texts else []
