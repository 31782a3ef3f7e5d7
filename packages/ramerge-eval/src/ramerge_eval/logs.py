"""Reads logs of Inspect as scored samples of each model, task by task; reads a model's description from a log.

`ramerge eval` writes logs to LOGS/MODEL. Logs of `inspect eval` count too, under the endpoint's name for the model. If
several logs have the same samples of a model, the latest counts, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from inspect_ai.log import EvalLog, EvalSampleSummary, list_eval_logs, read_eval_log, read_eval_log_sample_summaries
from inspect_ai.scorer import value_to_float

from ramerge import EvaluationError
from ramerge.sdk.text import shown
from ramerge_eval.samples import Model, Samples, TaskName
from ramerge_eval.tasks.common import CUT, RATIOS, SUBSET

Pair = tuple[float, float]
OURS = "ramerge"
_HOW_TO_ASK = {"max_retries", "max_connections", "timeout", "attempt_timeout"}
_to_float = value_to_float()


def read(folder: Path) -> list[Model]:
    """Read the scores of all models in a folder of logs, by name.

    Raises:
        EvaluationError: there are no scores, or a log cannot be read.
    """
    if not folder.is_dir():
        text = "is a file" if folder.exists() else "no such folder"
        raise EvaluationError(f"{folder}: {text}; give the folder of logs that `ramerge eval` writes")
    logs = [path for path in folder.rglob("*") if path.suffix in (".eval", ".json")]
    if strange := [path for path in logs if not path.is_file() and not path.is_dir()]:
        raise EvaluationError(f"{path}: is not a regular file, so it is no log; remove it" for path in strange)
    by_model: dict[str, dict[TaskName, dict[str, EvalSampleSummary]]] = {}
    latest: dict[str, EvalLog] = {}
    of_task: dict[tuple[str, TaskName], EvalLog] = {}
    for info in sorted(list_eval_logs(str(folder), recursive=True), key=lambda info: info.name):
        try:
            log, summaries = read_eval_log(info.name, header_only=True), read_eval_log_sample_summaries(info.name)
        except Exception as error:  # a broken archive, half a header: each has types of its own
            raise EvaluationError(f"{info.name}: cannot be read as a log of Inspect ({shown(error)})") from error
        name = about_model(log)["name"]
        latest[name] = log
        for sample in summaries:
            package, _, task_name = log.eval.task.rpartition("/")
            subset = (sample.metadata or {}).get(SUBSET)
            is_ours = package == OURS and subset
            task = (task_name, str(subset)) if is_ours else (package or "task", task_name)
            of_task[name, task] = log
            samples = by_model.setdefault(name, {}).setdefault(task, {})
            key = f"{sample.id}" if sample.epoch == 1 else f"{sample.id} ({sample.epoch})"
            if key not in samples or sample.error is None or samples[key].error is not None:
                samples[key] = sample
    if not latest:
        raise EvaluationError(f"{folder}: holds no logs of Inspect (.eval); ramerge eval writes them")
    models = []
    for name, log in sorted(latest.items()):
        about = about_model(log)
        tasks = {task: _samples(samples, of_task[name, task], task) for task, samples in by_model.get(name, {}).items()}
        tasks = {task: samples for task, samples in tasks.items() if samples.metrics or samples.failures}
        # of each task its parameters, and the generation
        settings = {
            task: (log.eval.task_args or {}) | log.plan.config.model_dump(exclude_none=True, exclude=_HOW_TO_ASK)
            for task, log in ((task, of_task[name, task]) for task in tasks)
        }
        models.append(Model(name, about.get("model"), about.get("record"), tasks, settings))
    return models


def about_model(log: EvalLog) -> dict[str, Any]:
    """Return the description of the model that `run` has logged; for other logs, only its name."""
    about = (log.eval.metadata or {}).get(OURS)
    if isinstance(about, dict) and isinstance(about.get("name"), str):
        return about
    return {"name": log.eval.model.rpartition("/")[2]}


def _samples(summaries: Mapping[str, EvalSampleSummary], log: EvalLog, task: TaskName) -> Samples:
    ids = [str(each) for each in log.eval.dataset.sample_ids or []]
    own_ids = [each for each in ids if each.startswith(f"{task[1]}/")] or ids  # ours begin with the subset
    keys = tuple(sorted(summaries))
    pairs_by_key = {key: _pairs(summaries[key]) for key in keys}
    names = list(dict.fromkeys(name for pairs in pairs_by_key.values() for name in pairs))
    weightless: dict[str, Pair] = dict.fromkeys(names, (0.0, 1.0))  # failed, and no scorer has seen it
    rows = [pairs_by_key[key] or weightless for key in keys]
    about = [[score.metadata or {} for score in (sample.scores or {}).values()] for sample in summaries.values()]
    return Samples(
        keys=keys,
        metrics={name: np.array([row.get(name, (0.0, 0.0)) for row in rows], dtype=np.float64) for name in names},
        failures={key: shown(summaries[key].error)[:500] for key in keys if summaries[key].error},
        cut=sum(any(metadata.get(CUT) for metadata in each) for each in about),
        item_count=max(len(own_ids) * (log.eval.config.epochs or 1), len(keys)),
        tokens=sum(usage.output_tokens for sample in summaries.values() for usage in sample.model_usage.values()),
    )


def _pairs(sample: EvalSampleSummary) -> dict[str, Pair]:
    """Return the value pairs of a sample in each metric: ramerge's metrics are ratios, others the scorers' numbers."""
    pairs: dict[str, Pair] = {}
    several = len(sample.scores or {}) > 1
    for scorer, score in (sample.scores or {}).items():
        ratios = (score.metadata or {}).get(RATIOS)
        if isinstance(ratios, dict):
            pairs |= {name: (float(pair[0]), float(pair[1])) for name, pair in ratios.items()}
            continue
        values = score.value if isinstance(score.value, dict) else {"" if score.value is None else scorer: score.value}
        for name, value in values.items():
            if value is not None and not isinstance(value, list | dict):
                last = name.rpartition("/")[2]
                pairs[(f"{scorer}/{last}" if several else last).strip("/")] = _to_float(value), 1.0
    return pairs
