"""A table of two models side by side: paired bootstrap tests, column by column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ramerge import EvaluationError
from ramerge.scoring import intervals
from ramerge.scoring.intervals import Floats
from ramerge_eval.samples import Model, TaskName
from ramerge_eval.tables import build, layouts, scores
from ramerge_eval.tables.layouts import TableColumn
from ramerge_eval.tables.scores import Line, Table


def compare(results: Sequence[Model], first: str, second: str, layout: str = layouts.MAIN, *, seed: int = 0) -> Table:
    """Build the table of the paired bootstrap test between two models, for `ramerge table --compare`.

    Only items that both models have count, so scores can differ from those in other tables. Averages are over columns
    that both models have, and are left out if a column is missing.

    Raises:
        EvaluationError: as `build`; a model compared with itself; or two models without a common item.
    """
    if first == second:
        raise EvaluationError(f"{first!r} cannot be compared with itself")
    models = build.selection(results, [first, second])
    plan = layouts.layout_of(layout, models)
    build.require_columns(plan, models)
    columns = [column for column in plan.columns if column.task]
    tasks = list(dict.fromkeys((column.suite, column.task) for column in columns))
    # items of two data sets may have the same keys, and are no pairs
    if problems := [
        f"{'/'.join(task)}: {first} and {second} were asked from different data"
        for task in tasks
        if all(task in model.tasks for model in models)
        and _files(models[0].settings.get(task, {})) != _files(models[1].settings.get(task, {}))
    ]:
        raise EvaluationError(problems)
    pair = scores.common(*models)
    failures = {task for model in pair for task, samples in model.tasks.items() if samples.failures}
    draws = scores.replicates(pair, columns, seed)
    rows = [
        ({"row": column.title}, cells) for column in plan.columns if (cells := _cells(column, pair, draws, failures))
    ]
    if not rows:
        raise EvaluationError(f"{first!r} and {second!r} have no two items in common in a column of {plan.name}")
    titles = {first: 2, second: 2, "Difference": 2, "from": 2, "to": 2, "p": 4, "Items": 0}
    notes = [
        f"Difference is {first} less {second}, in points of per cent, over the items that both have; from and to bound "
        "its 95 % interval.",
        f"p: two-sided paired bootstrap test, {intervals.RESAMPLES:,} resamples (Koehn 2004), not corrected for the "
        "number of rows.",
        *build.refusals(plan),
        *_left_out(models, pair, tasks),
        *build.run_notes(
            pair, [column for column in columns if column in draws or (column.suite, column.task) in failures]
        ),
    ]
    headings = tuple(TableColumn((title,), decimals=decimals) for title, decimals in titles.items())
    return Table(f"{first} and {second}: {plan.title}", "Benchmark", headings, scores.cell_frame(rows), tuple(notes))


def _files(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the files that a task was given, without the model's own."""
    return {
        key: value
        for key, value in settings.items()
        if isinstance(value, str) and value.startswith("/") and key != "tokenizer"
    }


def _cells(
    column: TableColumn, pair: Sequence[Model], draws: Mapping[TableColumn, Floats], failures: Collection[TaskName]
) -> list[Line]:
    over = column.over or (column,)
    values = [scores.mean(model, over) for model in pair]
    if (column.suite, column.task) in failures:
        return [scores.cell(each) for each in (*values, *[None] * 5)]
    if values[0] is None or values[1] is None or not all(each in draws for each in over):
        return []
    replicates = np.mean([draws[each] for each in over], axis=0)
    difference = intervals.difference(values[0] - values[1], replicates[:, 0] - replicates[:, 1])
    items = float(len(pair[0].tasks[column.suite, column.task].keys)) if column.task else None
    return [
        scores.cell(each) for each in (*values, difference.value, difference.low, difference.high, difference.p, items)
    ]


def _left_out(models: Sequence[Model], pair: Sequence[Model], tasks: Sequence[tuple[str, str]]) -> list[str]:
    """Return notes on items that only one of the two models has."""
    texts = []
    for task in tasks:
        both = len(pair[0].tasks[task].keys) if task in pair[0].tasks else 0
        for model in models:
            unmatched = len(model.tasks[task].keys) - both if task in model.tasks else 0
            if unmatched:
                texts.append(f"{unmatched:,} of {model.name} in {'/'.join(task)}")
    return [f"Left out, because the other has not got them: {', '.join(texts)}."] if texts else []
