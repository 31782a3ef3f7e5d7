"""What merging needs to know beside scores: what of each agent's skill a merge has kept.

For a task with a specialist (the agent trained for it), the *retention* of a merge is its score over the specialist's.
From these follow, over all such tasks that both were run on:

    mean         the arithmetic mean
    composite    the geometric mean: a skill that is lost cannot be made up for by others
    worst        the smallest, with its task
    imbalance    the standard deviation
    untrained    mean difference to the base model, in points, over tasks that no agent was trained for
    tokens       written tokens a sample, over those of each task's specialist

Intervals are percentile bootstraps: items are drawn for merge and specialist together, task by task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ramerge.evaluation import intervals
from ramerge.evaluation.intervals import Floats
from ramerge.evaluation.logs import Model, TaskName
from ramerge.evaluation.tables import roles, scores
from ramerge.evaluation.tables.model import Cell, Row, Table, TableColumn
from ramerge.evaluation.tables.roles import Roles
from ramerge.foundation.errors import EvaluationError

NAME = "merging"


@dataclass(frozen=True)
class RetainedScore:
    """What a merge has kept in one task: its retention, and bootstrap replicates of it."""

    task: TaskName
    value: float
    drawn: Floats | None
    tokens: float | None


def build(results: Sequence[Model], who: Roles, seed: int = 0) -> Table:
    """A row for each merge.

    Raises:
        EvaluationError: no model is known to be a merge, or no task has a specialist.
    """
    models = {model.name: model for model in results}
    merges = [model for model in results if model.name in who.merged]
    if not merges:
        raise EvaluationError("no model is known to be a merge; name those that have no merge record with --merged")
    found = {merge.name: _kept(merge, models, who, seed) for merge in merges}
    tasks = list(dict.fromkeys(kept.task for each in found.values() for kept in each))
    if not tasks:
        raise EvaluationError(
            "no task has a specialist that was scored too; say which agent was trained for which, such as "
            "--specialist tool=NAME"
        )
    columns = (
        *(TableColumn(("Retention", "/".join(task)), decimals=1) for task in tasks),
        *(TableColumn(("Over all", title), decimals=1) for title in ("Mean", "Composite", "Worst", "Imbalance")),
        TableColumn(("Untrained", "Points")),
        TableColumn(("Tokens", "Ratio")),
    )
    rows = [_row(merge, found[merge.name], tasks, models, who) for merge in merges]
    return Table("What merges have kept", "Model", columns, tuple(rows), tuple(_notes(found, who)))


def _kept(merge: Model, models: Mapping[str, Model], who: Roles, seed: int) -> list[RetainedScore]:
    found = []
    for task, samples in merge.tasks.items():
        name = who.specialists.get((who.families.get(merge.name), task[0]))
        if name is None or task not in models[name].tasks:
            continue
        pair = scores.common(merge, models[name])
        column = TableColumn((), task[0], task[1], samples.main)
        values = [model.tasks[task].value(samples.main) if task in model.tasks else None for model in pair]
        if values[0] is None or not values[1]:
            continue
        drawn = scores.drawn(pair, [column], seed).get(column)
        ratios = (
            None
            if drawn is None
            else np.divide(drawn[:, 0], drawn[:, 1], out=np.full(len(drawn), np.nan), where=drawn[:, 1] > 0)
        )
        found.append(RetainedScore(task, values[0] / values[1], ratios, _tokens(samples, models[name].tasks[task])))
    return found


def _tokens(merge: object, specialist: object) -> float | None:
    rates = [each.tokens / len(each.keys) for each in (merge, specialist) if each.keys]  # type: ignore[attr-defined]
    return rates[0] / rates[1] if len(rates) == 2 and rates[1] else None


def _row(
    merge: Model, kept: Sequence[RetainedScore], tasks: Sequence[TaskName], models: Mapping[str, Model], who: Roles
) -> Row:
    by_task = {each.task: each for each in kept}
    cells = [_cell(by_task[task].value, by_task[task].drawn) if task in by_task else Cell() for task in tasks]
    values = np.array([each.value for each in kept])
    draws = [each.drawn for each in kept if each.drawn is not None]
    drawn = np.stack(draws, axis=1) if kept and len(draws) == len(kept) else None
    over = [_over(values, drawn, figure) for figure in (_mean, _composite, _worst, _imbalance)]
    ratios = [each.tokens for each in kept if each.tokens is not None]
    tokens = Cell(float(np.mean(ratios))) if ratios else Cell()
    return Row(merge.name, "", (*cells, *over, _untrained(merge, models, who), tokens))


def _over(values: Floats, drawn: Floats | None, figure: object) -> Cell:
    if not len(values):
        return Cell()
    replicates = None if drawn is None else figure(drawn)  # type: ignore[operator]
    return _cell(float(figure(values[None])[0]), replicates)  # type: ignore[operator]


def _cell(value: float, drawn: Floats | None) -> Cell:
    if drawn is None or np.isnan(drawn).all():
        return Cell(100 * value)
    low, high = intervals.percentiles(100 * drawn)
    return Cell(100 * value, (low, high))


def _mean(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=1))


def _composite(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.log(values).mean(axis=1)))


def _worst(values: Floats) -> Floats:
    return np.asarray(values.min(axis=1))


def _imbalance(values: Floats) -> Floats:
    return np.asarray(values.std(axis=1))


def _untrained(merge: Model, models: Mapping[str, Model], who: Roles) -> Cell:
    """Points above the base in tasks that nobody was trained for."""
    base = models.get(who.bases.get(merge.name) or "")
    if base is None:
        return Cell()
    trained = {suite for family, suite in who.specialists if family == who.families.get(merge.name)}
    gains = []
    for task, samples in merge.tasks.items():
        if task[0] not in trained and task in base.tasks:
            pair = samples.value(samples.main), base.tasks[task].value(samples.main)
            if pair[0] is not None and pair[1] is not None:
                gains.append(pair[0] - pair[1])
    return Cell(float(np.mean(gains))) if gains else Cell()


def _notes(found: Mapping[str, Sequence[RetainedScore]], who: Roles) -> list[str]:
    worst = {name: min(kept, key=lambda each: each.value) for name, kept in found.items() if kept}
    specialists = ", ".join(f"{name} ({suite})" for (_, suite), name in who.specialists.items())
    return [
        "Retention: the merge's score over that of the task's specialist, in per cent, over the items that both have. "
        "Composite is the geometric mean, imbalance the standard deviation.",
        "Untrained: mean difference to the base in tasks without a specialist. Tokens: written a sample, over the "
        "specialist's.",
        f"Specialists: {specialists}.",
        *(f"Worst task of {name}: {'/'.join(kept.task)} ({100 * kept.value:.1f} %)." for name, kept in worst.items()),
    ]


def of_models(
    results: Sequence[Model],
    base: str | None = None,
    specialists: Mapping[str, str] | None = None,
    merged: Sequence[str] = (),
    seed: int = 0,
) -> Table:
    """`build`, with roles from merge records and names, or as the user says."""
    suites = list(dict.fromkeys(task[0] for model in results for task in model.tasks))
    return build(results, roles.find(results, base, specialists or {}, merged, suites), seed)
