"""`Table`, and the cells that all tables share: scores of models in columns, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd

from ramerge.scoring import intervals
from ramerge.scoring.intervals import Floats
from ramerge_eval.samples import Model, Samples
from ramerge_eval.tables.layouts import TableColumn

_PER_CENT = np.array([100.0, 1.0])  # times a numerator and a denominator
_FIELDS = {
    **{"line": "int64", "row": "object", "section": "object", "role": "object", "family": "object", "quoted": "bool"},
    **{"place": "int64", "value": "float64", "low": "float64", "high": "float64", "samples": "Int64"},
    **{"failed": "Int64", "failure": "object", "difference": "float64", "rank": "int64", "beats": "bool"},
}
_DEFAULTS = {"section": "", "failure": "", "quoted": False, "rank": 0, "beats": False}

Line = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table as data: its cells, the title of its column of names, and notes below it.

    `cells` has a line for each cell, row by row. `line` and `place` number rows and columns, `row` is the model's name,
    `role` base, agent or merged, and `family` its base model; `quoted` rows come from the paper. `value` is a score in
    per cent, or another number; `low` and `high` are the ends of its 95 % bootstrap interval. `samples` is the number
    of samples, `failed` the number without a usable answer, in which case there is no value, and `failure` the reason
    of one failure. `difference` is the difference from the base model, `rank` 1 or 2 for the best and second best
    merge, and `beats` whether a merge is above the specialist of the domain.
    """

    title: str
    first: str
    columns: tuple[TableColumn, ...]
    cells: pd.DataFrame
    notes: tuple[str, ...] = ()


def cell_frame(rows: Iterable[tuple[Line, Sequence[Line]]]) -> pd.DataFrame:
    """Make the data frame of a table's cells, from rows of common values and cells."""
    lines = [
        {**_DEFAULTS, **row, "line": number, "place": place, **cell}
        for number, (row, cells) in enumerate(rows)
        for place, cell in enumerate(cells)
    ]
    return pd.DataFrame(lines, columns=list(_FIELDS), dtype=object).astype(_FIELDS)


def cell(value: float | None, draws: Floats | None = None) -> Line:
    """Return a cell: a number, with its interval if there are replicates."""
    if draws is None or np.isnan(draws).all():
        return {"value": value}
    low, high = intervals.percentiles(draws)
    return {"value": value, "low": low, "high": high}


def cells(model: Model, columns: Sequence[TableColumn], seed: int) -> list[Line]:
    """Return the cells of a model. An average has no value unless all of its columns have one."""
    by_column = replicates([model], [column for column in columns if column.task], seed)
    row = []
    for column in columns:
        over = column.over or (column,)
        value = mean(model, over)
        draws = [by_column[each][:, 0] for each in over if each in by_column]
        here = cell(value, np.mean(draws, axis=0) if value is not None and len(draws) == len(over) else None)
        samples = model.tasks.get((column.suite, column.task))
        if samples is not None and (value is not None or samples.failures):
            here |= {"samples": len(samples.keys), "failed": len(samples.failures), "failure": samples.failure}
        row.append(here)
    return row


def mean(model: Model, columns: Sequence[TableColumn]) -> float | None:
    """Return the mean of a model over columns in per cent; None if a column has no value."""
    per_column = [model.tasks.get((column.suite, column.task)) for column in columns]
    values = [samples and samples.value(column.metric) for samples, column in zip(per_column, columns, strict=True)]
    numbers = [value for value in values if isinstance(value, float)]
    return fmean(numbers) if len(numbers) == len(values) else None


def replicates(models: Sequence[Model], columns: Sequence[TableColumn], seed: int) -> dict[TableColumn, Floats]:
    """Return bootstrap replicates in per cent, shape (resamples, models), for each column that all models have.

    The models must have the same items. Tasks are drawn independently; all metrics and models of a task share its
    draws.
    """
    by_task: dict[tuple[str, str], list[TableColumn]] = {}
    for column in columns:
        tasks = [model.tasks.get((column.suite, column.task)) for model in models]
        if all(samples and samples.value(column.metric) is not None and len(samples.keys) > 1 for samples in tasks):
            by_task.setdefault((column.suite, column.task), []).append(column)
    by_column: dict[TableColumn, Floats] = {}
    for name, own in by_task.items():
        pairs = [_PER_CENT * model.tasks[name].metrics[column.metric] for column in own for model in models]
        task = crc32("/".join(name).encode(errors="backslashreplace"))
        values = intervals.replicates(np.stack(pairs, axis=1), seed=(seed, task))
        for place, column in enumerate(own):
            by_column[column] = values[:, place * len(models) : (place + 1) * len(models)]
    return by_column


def common(first: Model, second: Model) -> tuple[Model, Model]:
    """Restrict two models to the tasks, and in these to the items, that both have."""
    common_keys = {
        name: sorted({*samples.keys} & {*second.tasks[name].keys})
        for name, samples in first.tasks.items()
        if name in second.tasks
    }
    pair: list[Model] = []
    for model in (first, second):
        tasks = {}
        for name, keys in common_keys.items():
            if keys:
                samples = model.tasks[name]
                mask = np.isin(samples.keys, keys)
                metrics = {metric: pairs[mask] for metric, pairs in samples.metrics.items()}
                failures = {key: text for key, text in samples.failures.items() if key in keys}
                tasks[name] = Samples(tuple(keys), metrics, failures, item_count=len(keys))
        pair.append(replace(model, tasks=tasks))
    return pair[0], pair[1]
