"""A table of merges, for `ramerge table`: how much of each agent's skill they retain.

For a task with a specialist (the agent trained for it), the *retention* of a merge is its score divided by the
specialist's. Over all such tasks that both were run on, the table has:

    mean         the arithmetic mean
    composite    the geometric mean: other skills cannot make up for a lost skill
    worst        the smallest, with its task
    imbalance    the standard deviation
    untrained    mean difference to the base model, in points, over tasks that no agent was trained for
    tokens       written tokens per sample, relative to each task's specialist

Intervals are percentile bootstraps: items are drawn for merge and specialist together, task by task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ramerge import EvaluationError
from ramerge.scoring.intervals import Floats
from ramerge_eval.samples import Model, TaskName
from ramerge_eval.tables import roles, scores
from ramerge_eval.tables.build import failures
from ramerge_eval.tables.layouts import AGREEMENT, RETENTION, TableColumn
from ramerge_eval.tables.roles import GivenRoles, Roles
from ramerge_eval.tables.scores import Line, Table

NAME = "merging"


def _composite(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.log(values).mean(axis=1)))


_FIGURES: dict[str, Callable[[Floats], Floats]] = {
    "Mean": lambda values: np.asarray(values.mean(axis=1)),
    "Composite": _composite,
    "Worst": lambda values: np.asarray(values.min(axis=1)),
    "Imbalance": lambda values: np.asarray(values.std(axis=1)),
}
"""Figures over retentions, shape (draws, tasks)."""


class RetainedScore(NamedTuple):
    """The retention of a merge in one task: its value, its bootstrap replicates, and its relative tokens."""

    value: float
    draws: Floats | None
    tokens: float | None


def retention(results: Sequence[Model], explicit_roles: GivenRoles | None = None, *, seed: int = 0) -> Table:
    """Build the table of retention: a row for each merge; `explicit_roles` override roles from records and names.

    Raises:
        EvaluationError: no model is known to be a merge, or no task has a specialist.
    """
    results = [
        replace(model, tasks={task: samples for task, samples in model.tasks.items() if task[0] != AGREEMENT})
        for model in results
    ]
    task_names = dict.fromkeys(task for model in results for task in model.tasks)
    who = roles.roles_of(
        results, explicit_roles or GivenRoles(), list(dict.fromkeys(suite for suite, _ in task_names)), task_names
    )
    models = {model.name: model for model in results}
    merges = [model for model in results if model.name in who.merges]
    if not merges:
        raise EvaluationError("no model is known to be a merge; name those that have no merge record with --merged")
    by_merge = {merge.name: _retention_by_task(merge, models, who, seed) for merge in merges}
    failures_of = {merge.name: _failures(merge, models, who) for merge in merges}
    tasks = list(dict.fromkeys(task for each in (*by_merge.values(), *failures_of.values()) for task in each))
    if not tasks:
        raise EvaluationError(
            "no task has a specialist that was scored too; say which agent was trained for which, such as "
            "--specialist tool=NAME"
        )
    columns = (
        *(TableColumn((RETENTION, "/".join(task)), decimals=1) for task in tasks),
        *(TableColumn(("Over all", title), decimals=1) for title in _FIGURES),
        TableColumn(("Untrained", "Points")),
        TableColumn(("Tokens", "Ratio")),
    )
    rows = []
    for merge in merges:
        scores_by_task = by_merge[merge.name]
        ratios = [each.tokens for each in scores_by_task.values() if each.tokens is not None]
        more = [_untrained(merge, models, who), scores.cell(float(np.mean(ratios)) if ratios else None)]
        rows.append(
            ({"row": merge.name}, [*_cells(scores_by_task, tasks, is_whole=not failures_of[merge.name]), *more])
        )
    notes = [
        "Retention: the merge's score over that of the task's specialist, in per cent, over the items that both have. "
        "Composite is the geometric mean, imbalance the standard deviation.",
        "Untrained: mean difference to the base in tasks without a specialist. Tokens: written a sample, over the "
        "specialist's.",
        f"Specialists: {', '.join(f'{name} ({suite})' for (_, suite), name in who.specialists.items())}.",
    ]
    for name, scores_by_task in by_merge.items():
        if scores_by_task:
            task = min(scores_by_task, key=lambda task: scores_by_task[task].value)
            notes.append(f"Worst task of {name}: {'/'.join(task)} ({100 * scores_by_task[task].value:.1f} %).")
    notes += failures(results, list(task_names))
    return Table("What merges have kept", "Model", columns, scores.cell_frame(rows), tuple(notes))


def _retention_by_task(
    merge: Model, models: Mapping[str, Model], who: Roles, seed: int
) -> dict[TaskName, RetainedScore]:
    by_task = {}
    for task, samples in merge.tasks.items():
        name = who.specialist(who.families[merge.name], task)
        if name is None or task not in models[name].tasks:
            continue
        pair = scores.common(merge, models[name])
        column = TableColumn((), *task, samples.main)
        values = [scores.mean(model, [column]) for model in pair]
        if samples.failures or models[name].tasks[task].failures or values[0] is None or not values[1]:
            continue
        ratios = None
        if column in (draws := scores.replicates(pair, [column], seed)):
            ours, its = draws[column].T
            ratios = np.divide(ours, its, out=np.full(len(ours), np.nan), where=its > 0)
        specialist = models[name].tasks[task]
        theirs = specialist.tokens / len(specialist.keys)
        tokens = samples.tokens / len(samples.keys) / theirs if theirs else None
        by_task[task] = RetainedScore(values[0] / values[1], ratios, tokens)
    return by_task


def _failures(merge: Model, models: Mapping[str, Model], who: Roles) -> list[TaskName]:
    """Return the tasks without a retention of a merge, because its samples or the specialist's failed."""
    return [
        task
        for task, samples in merge.tasks.items()
        if (name := who.specialist(who.families[merge.name], task)) is not None
        and task in models[name].tasks
        and (samples.failures or models[name].tasks[task].failures)
    ]


def _cells(
    scores_by_task: Mapping[TaskName, RetainedScore], tasks: Sequence[TaskName], *, is_whole: bool
) -> list[Line]:
    """The row of a merge: each task's retention, and the figures over all tasks, unless samples of a task failed."""
    by_task = [
        _cell(scores_by_task[task].value, scores_by_task[task].draws) if task in scores_by_task else {}
        for task in tasks
    ]
    if not scores_by_task or not is_whole:
        return [*by_task, *[{}] * len(_FIGURES)]
    values = np.array([[each.value for each in scores_by_task.values()]])
    draws = [each.draws for each in scores_by_task.values() if each.draws is not None]
    replicates = np.stack(draws, axis=1) if len(draws) == len(scores_by_task) else None
    return by_task + [
        _cell(float(figure(values)[0]), None if replicates is None else figure(replicates))
        for figure in _FIGURES.values()
    ]


def _cell(value: float, draws: Floats | None) -> Line:
    return scores.cell(100 * value, None if draws is None else 100 * draws)


def _untrained(merge: Model, models: Mapping[str, Model], who: Roles) -> Line:
    """Return the cell `untrained`: points above the base in tasks that no agent was trained for."""
    family = who.families[merge.name]
    gains = []
    if base := models.get(family or ""):
        for task, samples in merge.tasks.items():
            column = TableColumn((), *task, samples.main)
            values = [scores.mean(model, [column]) for model in (merge, base)]
            if who.specialist(family, task) is not None or task not in base.tasks:
                continue
            if samples.failures or base.tasks[task].failures:
                return {}
            if values[0] is not None and values[1] is not None:
                gains.append(values[0] - values[1])
    return scores.cell(float(np.mean(gains)) if gains else None)
