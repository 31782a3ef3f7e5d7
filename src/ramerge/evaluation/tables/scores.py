"""Tables as values, and scores of models in their columns with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from zlib import crc32

import numpy as np

from ramerge.evaluation import intervals
from ramerge.evaluation.intervals import Floats
from ramerge.evaluation.logs import Model, Samples
from ramerge.evaluation.tables.layouts import TableColumn

_PER_CENT = np.array([100.0, 1.0])  # times a numerator and a denominator


@dataclass(frozen=True)
class Cell:
    """A score in per cent, or another number; None where there is none.

    Attributes:
        interval: low and high of the 95 % bootstrap interval.
        samples: how many samples the value is over; None for averages and quoted values.
        failed: how many of them had no usable answer.
        difference: to the row of the base model.
        rank: 1 or 2 for the best and second best of the merged models, otherwise 0.
        beats: whether a merged model is above the specialist of the domain.
    """

    value: float | None = None
    interval: tuple[float, float] | None = None
    samples: int | None = None
    failed: int = 0
    difference: float | None = None
    rank: int = 0
    beats: bool = False


@dataclass(frozen=True)
class Row:
    """A model. `quoted` rows come from a publication; `family` is the base model it comes from."""

    name: str
    section: str
    cells: tuple[Cell, ...]
    quoted: bool = False
    merged: bool = False
    is_base: bool = False
    family: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows stand in order, those of a section together. `first` is the title of the column of names."""

    title: str
    first: str
    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def cells(model: Model, columns: Sequence[TableColumn], seed: int) -> tuple[Cell, ...]:
    """A model's cells. An average has no value unless all of its columns have one."""
    drawn = replicates([model], [column for column in columns if column.task], seed)
    return tuple(_cell(model, column, drawn) for column in columns)


def _cell(model: Model, column: TableColumn, drawn: Mapping[TableColumn, Floats]) -> Cell:
    over = column.over or (column,)
    value = mean(model, over)
    if value is None:
        return Cell()
    interval = None
    if all(each in drawn for each in over):
        interval = intervals.percentiles(np.mean([drawn[each][:, 0] for each in over], axis=0))
    if column.over:
        return Cell(value, interval)
    samples = model.tasks[column.suite, column.task]
    return Cell(value, interval, len(samples.keys), len(samples.failures))


def mean(model: Model, columns: Sequence[TableColumn]) -> float | None:
    """The mean over columns in per cent, if the model has a value in all of them."""
    found = [model.tasks.get((column.suite, column.task)) for column in columns]
    values = [samples and samples.value(column.metric) for samples, column in zip(found, columns, strict=True)]
    known = [value for value in values if isinstance(value, float)]
    return fmean(known) if len(known) == len(values) else None


def replicates(models: Sequence[Model], columns: Sequence[TableColumn], seed: int) -> dict[TableColumn, Floats]:
    """Bootstrap replicates in per cent, of shape (resamples, models), for each column that all models have.

    The models have the same items. Tasks are drawn independently of each other; all metrics and models of a task share
    its draws.
    """
    by_task: dict[tuple[str, str], list[TableColumn]] = {}
    for column in columns:
        tasks = [model.tasks.get((column.suite, column.task)) for model in models]
        if all(samples and samples.value(column.metric) is not None and len(samples.keys) > 1 for samples in tasks):
            by_task.setdefault((column.suite, column.task), []).append(column)
    found: dict[TableColumn, Floats] = {}
    for name, own in by_task.items():
        stacked = [_PER_CENT * model.tasks[name].metrics[column.metric] for column in own for model in models]
        task = crc32("/".join(name).encode(errors="backslashreplace"))
        values = intervals.replicates(np.stack(stacked, axis=1), seed=(seed, task))
        for place, column in enumerate(own):
            found[column] = values[:, place * len(models) : (place + 1) * len(models)]
    return found


def common(first: Model, second: Model) -> tuple[Model, Model]:
    """Both models with the tasks that both have, and of these with the items that both have."""
    shared = {
        name: sorted({*samples.keys} & {*second.tasks[name].keys})
        for name, samples in first.tasks.items()
        if name in second.tasks
    }
    left, right = (
        replace(model, tasks={name: _only(model.tasks[name], keys) for name, keys in shared.items() if keys})
        for model in (first, second)
    )
    return left, right


def _only(samples: Samples, keys: Sequence[str]) -> Samples:
    wanted = set(keys)
    kept = np.array([key in wanted for key in samples.keys])
    metrics = {name: pairs[kept] for name, pairs in samples.metrics.items()}
    failures = {key: text for key, text in samples.failures.items() if key in wanted}
    return Samples(tuple(keys), metrics, failures, asked=len(keys))
