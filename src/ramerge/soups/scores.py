"""Scores of the checkpoints of a run, from logs of `ramerge eval`; choice of checkpoints that are good at different
tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from ramerge import RecipeError
from ramerge.scoring.evaluation import feature
from ramerge.soups.checkpoints import RunCheckpoint, last_number

TaskScores = Mapping[str, float]

_RELEVANCE = 0.5
"""The weight of a good score in `most_relevant`, against being good at other tasks."""


def scores_in(logs: Path, checkpoints: Sequence[RunCheckpoint]) -> dict[str, dict[str, float]]:
    """Read the scores of a run's checkpoints from a folder of logs, in per cent, by name and task.

    A model in the logs is matched to a checkpoint by folder, by name, or by the last number in its name as the step.
    """
    read = feature("scores_in_logs", "--scores needs")
    by_name: dict[str, dict[str, float]] = {}
    for model in read(logs):
        scores = {"/".join(task): samples.value(samples.main) for task, samples in model.tasks.items()}
        known_scores = {task: score for task, score in scores.items() if score is not None}
        for one in checkpoints:
            is_it = model.model is not None and Path(model.model).absolute() == Path(one.model).absolute()
            if is_it or model.name == one.name or last_number(model.name) == one.step:
                by_name.setdefault(one.name, known_scores)
    tasks = {task for known_scores in by_name.values() for task in known_scores}
    problems = [
        f"{logs}: has no scores of {one.name}{f' for {missing[0]}' if one.name in by_name else ''}; evaluate it with "
        f"ramerge eval --model {one.name}={one.model}"
        for one in checkpoints
        if (missing := sorted(tasks - by_name.get(one.name, {}).keys())) or one.name not in by_name
    ]
    if problems:
        raise RecipeError(problems)
    return by_name


def means(scores: Mapping[str, TaskScores]) -> dict[str, float]:
    """Return the mean score of each checkpoint over tasks, as a fraction of 1, for the strategy `scored`."""
    return {name: fmean(by_task.values()) / 100 for name, by_task in scores.items()}


def most_relevant(scores: Mapping[str, TaskScores], count: int) -> list[str]:
    """Choose `count` checkpoints that score well on different tasks, by maximal marginal relevance.

    Scores are standardized for each task. The relevance of a checkpoint is its mean score; the similarity of two
    checkpoints is the cosine of their scores' deviations from these means. The best is chosen first; then, repeatedly,
    the checkpoint with the largest (relevance - largest similarity to a chosen checkpoint) / 2
    (Carbonell and Goldstein 1998).
    """
    standard = _standardize_scores(scores)
    relevance = {name: fmean(values) for name, values in standard.items()}
    apart = {name: [value - relevance[name] for value in values] for name, values in standard.items()}
    chosen_names: list[str] = []
    while len(chosen_names) < min(count, len(scores)):

        def worth(name: str) -> float:
            alike = max((_cosine_similarity(apart[name], apart[other]) for other in chosen_names), default=0.0)
            return _RELEVANCE * relevance[name] - (1 - _RELEVANCE) * alike

        chosen_names.append(max((name for name in scores if name not in chosen_names), key=worth))
    return [name for name in scores if name in chosen_names]


def _standardize_scores(scores: Mapping[str, TaskScores]) -> dict[str, list[float]]:
    tasks = sorted({task for by_task in scores.values() for task in by_task})
    result: dict[str, list[float]] = {name: [] for name in scores}
    for task in tasks:
        values = [by_task[task] for by_task in scores.values()]
        middle, width = fmean(values), pstdev(values) or 1.0
        for name, value in zip(scores, values, strict=True):
            result[name].append((value - middle) / width)
    return result


def _cosine_similarity(first: Sequence[float], second: Sequence[float]) -> float:
    length = (sum(a * a for a in first) * sum(b * b for b in second)) ** 0.5
    return sum(a * b for a, b in zip(first, second, strict=True)) / length if length else 0.0
