"""What a folder of results adds up to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ramerge.evaluation import bootstrap
from ramerge.evaluation.results import SCHEMA, SUMMARY_FILE
from ramerge.evaluation.samples import Model, Samples, read
from ramerge.foundation.files import write_file

_MOST_REASONS = 5


def summarize(root: Path) -> dict[str, Any]:
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


def write_summary(root: Path) -> dict[str, Any]:
    """Likewise, and into the folder.

    Raises:
        OutputError: it cannot be written.
    """
    summary = summarize(root)
    write_file(root / SUMMARY_FILE, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


def _model(model: Model) -> dict[str, Any]:
    asked = {name: task.get("items") for name, task in model.description.get("tasks", {}).items()}
    found = {f"{suite}/{task}": samples for (suite, task), samples in model.tasks.items()}
    tasks = {name: found[name] for name in {**asked, **found} if name in found}  # in the order of asking
    about = {key: value for key, value in model.description.items() if key not in ("name", "tasks")}
    made = model.description.get("tasks", {})
    return {
        **about,
        "tasks": {name: _task(samples, asked.get(name)) | _made(made.get(name, {})) for name, samples in tasks.items()},
    }


def _made(task: Mapping[str, Any]) -> dict[str, Any]:
    return {key: task[key] for key in ("data", "about") if key in task}


def _task(samples: Samples, asked: int | None) -> dict[str, Any]:
    """Scores in the order of the task's metrics.

    `samples` count failed ones, which score nothing; `complete` says whether all items that were asked for are there.
    """
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


def _metric(pairs: NDArray[Any]) -> dict[str, float | None]:
    low, high = bootstrap.interval(pairs) or (None, None)
    return {"score": bootstrap.ratio(pairs), "low": low, "high": high}
