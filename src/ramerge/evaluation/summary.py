"""What a folder of results adds up to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from numpy.typing import NDArray

from ramerge.evaluation import bootstrap
from ramerge.evaluation.results import SCHEMA, SUMMARY_FILE
from ramerge.evaluation.samples import Model, Samples, read
from ramerge.foundation.files import write_file

_MOST_REASONS = 5


class MetricSummary(TypedDict):
    """A metric of a task: `score`, and `low` and `high` of its interval, shares of one; None where there is none."""

    score: float | None
    low: float | None
    high: float | None


class _TaskSources(TypedDict, total=False):
    data: dict[str, str]
    about: dict[str, str]


class TaskSummary(_TaskSources):
    """What a model scored in a task.

    Keys:
        samples: how many there are, those of failed requests included, which score nothing.
        complete: whether all items that were asked for are there.
        failed, failures: samples without a usable answer, and how many for which reason; the five most frequent.
        failed_requests: also in samples that did without them.
        unreadable, problems: samples whose answer the checker could not read, likewise.
        cut: samples with an answer that ended at the limit of tokens.
        metrics: by name, the main one first.
        seconds, prompt_tokens, completion_tokens: of all samples together.
        data, about: digests of the data, and what else decides the scores; absent where it is not known.
    """

    samples: int
    complete: bool
    failed: int
    failed_requests: int
    failures: dict[str, int]
    unreadable: int
    problems: dict[str, int]
    cut: int
    metrics: dict[str, MetricSummary]
    seconds: float
    prompt_tokens: int
    completion_tokens: int


class _ModelDescription(TypedDict, total=False):
    model: str | None
    served_name: str
    identity: str
    record: dict[str, Any] | None
    ramerge: str
    suites: dict[str, dict[str, Any]]


class ModelSummary(_ModelDescription):
    """A model's tasks by `SUITE/TASK`, in the order of asking, beside what `model.json` says of it."""

    tasks: dict[str, TaskSummary]


class EvaluationSummary(TypedDict):
    """The content of `summary.json`: the models by name, and how intervals are made."""

    schema: str
    interval: dict[str, Any]
    models: dict[str, ModelSummary]


def summarize(root: Path) -> EvaluationSummary:
    """Scores, counts and failures of every model and task, with 95 % bootstrap intervals.

    Raises:
        EvaluationError: the folder holds no results, or what is no result.
    """
    return {
        "schema": SCHEMA,
        "interval": {
            "method": "percentile bootstrap",
            "level": bootstrap.LEVEL,
            "resamples": bootstrap.RESAMPLES,
        },
        "models": {model.name: _model(model) for model in read(root)},
    }


def write_summary(root: Path) -> EvaluationSummary:
    """Likewise, and into the folder.

    Raises:
        OutputError: it cannot be written.
    """
    summary = summarize(root)
    write_file(root / SUMMARY_FILE, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


def _model(model: Model) -> ModelSummary:
    asked = {name: task.get("items") for name, task in model.description.get("tasks", {}).items()}
    found = {f"{suite}/{task}": samples for (suite, task), samples in model.tasks.items()}
    tasks = {name: found[name] for name in {**asked, **found} if name in found}  # in the order of asking
    about = {key: value for key, value in model.description.items() if key not in ("name", "tasks")}
    made = model.description.get("tasks", {})
    scored = {name: {**_task(samples, asked.get(name)), **_made(made.get(name, {}))} for name, samples in tasks.items()}
    return cast(ModelSummary, {**about, "tasks": scored})


def _made(task: Mapping[str, Any]) -> dict[str, Any]:
    return {key: task[key] for key in ("data", "about") if key in task}


def _task(samples: Samples, asked: int | None) -> TaskSummary:
    """Scores in the order of the task's metrics."""
    return {
        "samples": len(samples.keys),
        "complete": asked is not None and len(samples.keys) >= asked,
        "failed": len(samples.failures),
        "failed_requests": samples.failed_requests,
        "failures": dict(Counter(samples.failures.values()).most_common(_MOST_REASONS)),
        "unreadable": len(samples.problems),
        "problems": dict(Counter(samples.problems.values()).most_common(_MOST_REASONS)),
        "cut": len(samples.cut),
        "metrics": {name: _metric(pairs) for name, pairs in samples.metrics.items()},
        "seconds": round(samples.seconds, 2),
        "prompt_tokens": samples.prompt_tokens,
        "completion_tokens": samples.completion_tokens,
    }


def _metric(pairs: NDArray[Any]) -> MetricSummary:
    low, high = bootstrap.interval(pairs) or (None, None)
    return {"score": bootstrap.ratio(pairs), "low": low, "high": high}
