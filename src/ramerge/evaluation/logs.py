"""What the logs of Inspect say of models: the scored samples of each, task by task.

`ramerge eval` puts logs into LOGS/MODEL; those of `inspect eval` count too, under the name that the endpoint has for
the model. Of several logs with the same samples of a model, the latest counts, sample by sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from inspect_ai.log import (
    EvalLog,
    EvalSampleSummary,
    list_eval_logs,
    read_eval_log,
    read_eval_log_sample_summaries,
)
from inspect_ai.scorer import Score, value_to_float
from numpy.typing import NDArray

from ramerge.evaluation import intervals
from ramerge.evaluation.tasks.bridge import CUT, RATIOS, SUBSET
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.text import shown

TaskName = tuple[str, str]
"""A benchmark, or the package of a task, and the subset or task."""

Pair = tuple[float, float]
OURS = "ramerge"
_HOW_TO_ASK = {"max_retries", "max_connections", "timeout", "attempt_timeout"}
_to_float = value_to_float()


@dataclass(frozen=True)
class Samples:
    """The samples of one model in one task.

    Attributes:
        keys: of the items, sorted.
        metrics: by name, an array of (samples, 2): numerators and denominators in the order of the keys.
        failures: of samples without a usable answer, by key: why there is none.
        problems: of samples whose answer the checker could not understand, by key: why.
        cut: keys of samples with an answer that ended at the limit of tokens.
        asked: items that the log is for.
        tokens: written by the model, of all samples together.
        seconds: that all samples took together.
    """

    keys: tuple[str, ...]
    metrics: Mapping[str, NDArray[np.float64]]
    failures: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    cut: frozenset[str] = frozenset()
    asked: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def value(self, metric: str) -> float | None:
        """In per cent; None where no sample has it, or none counts in it."""
        ratio = intervals.ratio(self.metrics[metric]) if metric in self.metrics else None
        return None if ratio is None else 100 * ratio

    @property
    def main(self) -> str:
        """The first metric, which stands for the task."""
        return next(iter(self.metrics))


@dataclass(frozen=True)
class Model:
    """One model's results.

    Attributes:
        model: folder or hub id; None where only the name of a served model is known.
        record: the `ramerge.json` of a merge made by ramerge.
        settings: of each task: its parameters and its generation.
    """

    name: str
    model: str | None
    record: Mapping[str, Any] | None
    tasks: Mapping[TaskName, Samples]
    settings: Mapping[TaskName, Mapping[str, Any]] = field(default_factory=dict)


def read(folder: Path) -> list[Model]:
    """All models in a folder of logs, by name.

    Raises:
        EvaluationError: there are none, or a log cannot be read.
    """
    if not folder.is_dir():
        raise EvaluationError(f"{folder}: is not a folder of logs")
    found: dict[str, _GatheredSamples] = {}
    for info in sorted(list_eval_logs(str(folder), recursive=True), key=lambda info: info.name):
        log, summaries = _read(info.name)
        about = about_model(log)
        found.setdefault(about["name"], _GatheredSamples(about)).take(log, summaries)
    if not found:
        raise EvaluationError(f"{folder}: holds no logs of Inspect (.eval); ramerge eval writes them")
    return [found[name].model() for name in sorted(found)]


def about_model(log: EvalLog) -> dict[str, Any]:
    """What `ramerge eval` noted of the model; of other logs its name."""
    about = (log.eval.metadata or {}).get(OURS)
    if isinstance(about, dict) and isinstance(about.get("name"), str):
        return about
    return {"name": log.eval.model.rpartition("/")[2], "model": None, "record": None}


def _read(location: str) -> tuple[EvalLog, list[EvalSampleSummary]]:
    try:
        return read_eval_log(location, header_only=True), read_eval_log_sample_summaries(location)
    except Exception as error:  # a broken archive, half a header: each has types of its own
        raise EvaluationError(f"{location}: cannot be read as a log of Inspect ({shown(error)})") from error


@dataclass
class _GatheredSamples:
    """A model's samples, from all of its logs."""

    about: dict[str, Any]
    samples: dict[TaskName, dict[str, EvalSampleSummary]] = field(default_factory=dict)
    asked: dict[TaskName, int] = field(default_factory=dict)
    settings: dict[TaskName, dict[str, Any]] = field(default_factory=dict)

    def take(self, log: EvalLog, summaries: list[EvalSampleSummary]) -> None:
        """Add a log that is later than those before."""
        self.about = about_model(log)
        for sample in summaries:
            name = _task_name(log, sample)
            key = f"{sample.id}" if sample.epoch == 1 else f"{sample.id} ({sample.epoch})"
            before = self.samples.setdefault(name, {}).get(key)
            if before is None or sample.error is None or before.error is not None:
                self.samples[name][key] = sample
            self.settings[name] = _settings(log)
        for name in {_task_name(log, sample) for sample in summaries}:
            ids = log.eval.dataset.sample_ids or []
            ours = [each for each in ids if name[0] in _own(log) and str(each).startswith(f"{name[1]}/")] or ids
            self.asked[name] = len(ours) * (log.eval.config.epochs or 1)

    def model(self) -> Model:
        tasks = {name: _samples(found, self.asked[name]) for name, found in self.samples.items()}
        kept = {name: samples for name, samples in tasks.items() if samples.metrics}
        return Model(self.about["name"], self.about.get("model"), self.about.get("record"), kept, self.settings)


def _settings(log: EvalLog) -> dict[str, Any]:
    """Parameters of the task, and the generation."""
    effective = (log.eval.metadata or {}).get("ramerge_settings") or {}
    generation = log.plan.config.model_dump(exclude_none=True, exclude=_HOW_TO_ASK)
    return {**effective, **(log.eval.task_args or {}), **generation}


def _own(log: EvalLog) -> list[str]:
    package, _, name = log.eval.task.partition("/")
    return [name] if package == OURS else []


def _task_name(log: EvalLog, sample: EvalSampleSummary) -> TaskName:
    package, _, name = log.eval.task.rpartition("/")
    subset = (sample.metadata or {}).get(SUBSET)
    return (name, str(subset)) if package == OURS and subset else (package or "task", name)


def _samples(found: Mapping[str, EvalSampleSummary], asked: int) -> Samples:
    keys = tuple(sorted(found))
    scored = {key: _pairs(found[key]) for key in keys}
    names = list(dict.fromkeys(name for pairs in scored.values() for name in pairs))
    failures = {key: shown(found[key].error)[:500] for key in keys if found[key].error}
    weightless: dict[str, Pair] = dict.fromkeys(names, (0.0, 1.0))  # failed, and no scorer has seen it
    rows = [scored[key] or weightless for key in keys]
    return Samples(
        keys=keys,
        metrics={name: np.array([row.get(name, (0.0, 0.0)) for row in rows], dtype=np.float64) for name in names},
        failures=failures,
        problems={key: text for key in keys if key not in failures and (text := _problem(found[key]))},
        cut=frozenset(key for key in keys if any(score.get(CUT) for score in _about(found[key]))),
        asked=max(asked, len(keys)),
        tokens=sum(usage.output_tokens for sample in found.values() for usage in sample.model_usage.values()),
        seconds=sum(sample.working_time or 0.0 for sample in found.values()),
    )


def _pairs(sample: EvalSampleSummary) -> dict[str, Pair]:
    """A sample's share in each metric: ours are ratios, others the numbers that their scorers give."""
    pairs: dict[str, Pair] = {}
    several = len(sample.scores or {}) > 1
    for scorer, score in (sample.scores or {}).items():
        ratios = (score.metadata or {}).get(RATIOS)
        if isinstance(ratios, dict):
            pairs |= {name: (float(pair[0]), float(pair[1])) for name, pair in ratios.items()}
        else:
            pairs |= {
                (f"{scorer}/{name}" if several else name).strip("/"): pair for name, pair in _numbers(scorer, score)
            }
    return pairs


def _numbers(scorer: str, score: Score) -> Iterator[tuple[str, Pair]]:
    values = score.value if isinstance(score.value, dict) else {"" if score.value is None else scorer: score.value}
    for name, value in values.items():
        if value is not None and not isinstance(value, list | dict):
            yield name.rpartition("/")[2], (_to_float(value), 1.0)


def _problem(sample: EvalSampleSummary) -> str | None:
    ours = [score for score in (sample.scores or {}).values() if RATIOS in (score.metadata or {})]
    return next((shown(score.explanation) for score in ours if score.explanation), None)


def _about(sample: EvalSampleSummary) -> list[Mapping[str, Any]]:
    return [score.metadata or {} for score in (sample.scores or {}).values()]
