"""Scores of models in a table's columns, averages among them, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from zlib import crc32

import numpy as np

from ramerge.evaluation import intervals
from ramerge.evaluation.intervals import Floats
from ramerge.evaluation.logs import Model, Samples
from ramerge.evaluation.tables.layouts import REFUSALS, Layout
from ramerge.evaluation.tables.model import Cell, TableColumn

AVERAGE = "Avg"
AVERAGE_OF_CALLS = "Avg of calls"

PER_CENT = np.array([100.0, 1.0])
"""Times a numerator and a denominator."""


def with_averages(layout: Layout, domains: bool) -> tuple[TableColumn, ...]:
    """A layout's columns, an average behind each domain if there are several, and those over all columns at the end."""
    if not layout.average:
        return layout.columns
    suites = list(dict.fromkeys(column.suite for column in layout.columns))
    without = frozenset[str]() if layout.all_count else REFUSALS
    found: list[TableColumn] = []
    for suite in suites:
        own = [column for column in layout.columns if column.suite == suite]
        found += own
        if domains and len(suites) > 1:
            found += _average_over(own, TableColumn((own[0].titles[0], AVERAGE), suite, without=without))
    found += _average_over(layout.columns, TableColumn((AVERAGE,), without=without))
    if layout.all_count and any(column.task in REFUSALS for column in layout.columns):
        found += _average_over(layout.columns, TableColumn((AVERAGE_OF_CALLS,), without=REFUSALS))
    return tuple(found)


def _average_over(columns: Sequence[TableColumn], average: TableColumn) -> list[TableColumn]:
    """The average, if it is over more than one column."""
    return [average] if len(members(average, columns)) > 1 else []


def members(average: TableColumn, columns: Sequence[TableColumn]) -> list[TableColumn]:
    """The columns that an average is over."""
    return [
        column
        for column in columns
        if column.task and average.suite in ("", column.suite) and column.task not in average.without
    ]


def cells(model: Model, columns: Sequence[TableColumn], seed: int) -> list[Cell]:
    """A model's cells. An average has no value unless all of its columns have one."""
    scores = {column: _score(model, column, seed) for column in columns if column.task}
    averaged = len(scores) < len(columns)
    draws = drawn([model], list(scores), seed) if averaged else {}
    return [scores[column] if column.task else _average(scores, draws, members(column, columns)) for column in columns]


def drawn(models: Sequence[Model], columns: Sequence[TableColumn], seed: int) -> dict[TableColumn, Floats]:
    """Bootstrap replicates in per cent, of shape (resamples, models), for each column that all models have.

    The models have the same items. Tasks are drawn independently of each other; all metrics and models of a task share
    its draws.
    """
    by_task: dict[tuple[str, str], list[TableColumn]] = {}
    for column in columns:
        tasks = [model.tasks.get((column.suite, column.task)) for model in models]
        if all(samples and column.metric in samples.metrics and len(samples.keys) > 1 for samples in tasks):
            by_task.setdefault((column.suite, column.task), []).append(column)
    found: dict[TableColumn, Floats] = {}
    for name, own in by_task.items():
        stacked = [PER_CENT * model.tasks[name].metrics[column.metric] for column in own for model in models]
        task = crc32("/".join(name).encode(errors="backslashreplace"))
        values = intervals.replicates(np.stack(stacked, axis=1), seed=(seed, task))
        found |= {
            column: values[:, start : start + len(models)]
            for column, start in zip(own, range(0, len(stacked), len(models)), strict=True)
        }
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


def _score(model: Model, column: TableColumn, seed: int) -> Cell:
    samples = model.tasks.get((column.suite, column.task))
    if samples is None or column.metric not in samples.metrics:
        return Cell()
    interval = intervals.interval(PER_CENT * samples.metrics[column.metric], seed=seed)
    return Cell(samples.value(column.metric), interval, len(samples.keys), len(samples.failures))


def _average(
    scores: Mapping[TableColumn, Cell], draws: Mapping[TableColumn, Floats], over: Sequence[TableColumn]
) -> Cell:
    values = [scores[column].value for column in over]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Cell()
    complete = all(column in draws for column in over)
    interval = intervals.percentiles(np.mean([draws[column][:, 0] for column in over], axis=0)) if complete else None
    return Cell(fmean(known), interval)
