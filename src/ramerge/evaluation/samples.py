"""What a run of `ramerge eval` left: the scored samples of each model, task by task.

RESULTS/MODEL/model.json            name, model, record, suites with their settings and versions
RESULTS/MODEL/SUITE/TASK.jsonl      a line a sample: key, metrics (name → numerator, denominator), failure
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.evaluation import bootstrap, bounds
from ramerge.evaluation.data import refuse
from ramerge.foundation.errors import EvaluationError, reason
from ramerge.foundation.text import shown

TaskName = tuple[str, str]
"""A suite and a task."""

Lines = Iterable[tuple[str, Mapping[str, Any]]]
"""Samples as they were written, each with where it stands."""

MOST_BYTES = 32_000_000
"""Of a line, and of a `model.json`."""

_MOST_METRICS = 100
_LONGEST_NAME = 200
_LARGEST = 1e100
"""Numbers above it are no scores, and their sums might overflow."""


@dataclass(frozen=True)
class Samples:
    """The scored samples of one model in one task.

    Attributes:
        keys: of the items, sorted.
        metrics: by name, an array of (samples, 2): numerators and denominators in the order of the keys.
        failures: of samples without a usable answer, by key: why there is none.
        problems: of samples whose answer the checker could not understand, by key: why.
        cut: keys of samples with an answer that ended at the limit of tokens.
        failed_requests: also in samples that did without them.
        seconds, prompt_tokens, completion_tokens: of all samples together.
    """

    keys: tuple[str, ...]
    metrics: Mapping[str, NDArray[np.float64]]
    failures: Mapping[str, str]
    problems: Mapping[str, str] = field(default_factory=dict)
    cut: frozenset[str] = frozenset()
    failed_requests: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def value(self, metric: str) -> float | None:
        """In per cent; None where no sample has it, or none counts in it."""
        ratio = bootstrap.ratio(self.metrics[metric]) if metric in self.metrics else None
        return None if ratio is None else 100 * ratio


@dataclass(frozen=True)
class Model:
    """One model's results.

    Attributes:
        model: folder or hub id; None where only the name of a served model is known.
        record: the `ramerge.json` of a merge made by ramerge.
        suites: settings and versions by suite.
        description: all of `model.json`.
    """

    name: str
    model: str | None
    record: Mapping[str, Any] | None
    suites: Mapping[str, Mapping[str, Any]]
    tasks: Mapping[TaskName, Samples]
    description: Mapping[str, Any] = field(default_factory=dict)

    def asked(self, name: TaskName) -> int:
        """The number of items that were asked for, 0 where it is not known."""
        return int(self.description.get("tasks", {}).get("/".join(name), {}).get("items", 0))

    def data(self, name: TaskName) -> Mapping[str, Any]:
        """Digests of what a task was made from, where they are known."""
        task = self.description.get("tasks", {}).get("/".join(name), {})
        return dict(task.get("data") or {})


def read(folder: Path) -> list[Model]:
    """All models in a folder of results, by name.

    Raises:
        EvaluationError: there are none, or files are broken; every one that is.
    """
    if not folder.is_dir():
        raise EvaluationError(f"{folder}: is not a folder of results")
    problems: list[str] = []
    models = []
    described = sorted(folder.glob("*/model.json"))
    for path in described:
        try:
            models.append(_read_model(path))
        except EvaluationError as error:
            problems += error.problems
    undescribed = {path.parent.parent for path in folder.glob("*/*/*.jsonl")} - {path.parent for path in described}
    problems += [f"{path}: holds samples but no model.json" for path in sorted(undescribed)]
    twice = {model.name for model in models if [other.name for other in models].count(model.name) > 1}
    problems += [f"{folder}: {name!r} is the name of more than one model" for name in sorted(twice)]
    if problems:
        raise EvaluationError(problems)
    if not models:
        raise EvaluationError(f"{folder}: holds no results (no MODEL/model.json); ramerge eval writes them")
    return models


def model(description: Mapping[str, Any], tasks: Mapping[TaskName, Lines]) -> Model:
    """A model's results from plain values: the content of `model.json`, and the lines of its tasks.

    Tasks without a sample are left out.

    Raises:
        EvaluationError: values that are not what they should be; every task with its problems.
    """
    problems = list(_description_problems(description))
    found: dict[TaskName, Samples] = {}
    for name, lines in tasks.items():
        try:
            samples = gather(lines)
        except EvaluationError as error:
            problems += error.problems
        else:
            if samples.keys:
                found[name] = samples
    if problems:
        raise EvaluationError(problems)
    return Model(
        description["name"],
        description.get("model"),
        description.get("record"),
        description.get("suites", {}),
        found,
        description,
    )


def gather(lines: Lines) -> Samples:
    """Samples out of lines. Of several lines with one key the last counts: a failed sample was asked again.

    Raises:
        EvaluationError: lines without a key or with metrics that are none, or samples with different metrics; the
            first ten.
    """
    last: dict[str, tuple[str, Mapping[str, Any]]] = {}
    problems = []
    for where, line in lines:
        if problem := _line_problem(line):
            problems.append(f"{where}: {problem}")
        else:
            last[line["key"]] = where, line
    names = list(next(iter(last.values()))[1]["metrics"]) if last else []
    for where, line in last.values():
        if set(line["metrics"]) != set(names):
            own, others = shown(", ".join(line["metrics"])), shown(", ".join(names))
            problems.append(f"{where}: has the metrics {own}, others have {others}")
    refuse(problems)
    keys = tuple(sorted(last))
    metrics = {name: np.array([last[key][1]["metrics"][name] for key in keys], dtype=np.float64) for name in names}
    samples = [last[key][1] for key in keys]
    return Samples(
        keys,
        metrics,
        failures={sample["key"]: sample["failure"] for sample in samples if sample.get("failure") is not None},
        problems={sample["key"]: sample["problem"] for sample in samples if sample.get("problem") is not None},
        cut=frozenset(sample["key"] for sample in samples if sample.get("cut")),
        failed_requests=sum(sample.get("failed_requests", 0) for sample in samples),
        seconds=sum(sample.get("seconds", 0.0) for sample in samples),
        prompt_tokens=sum(sample.get("prompt_tokens", 0) for sample in samples),
        completion_tokens=sum(sample.get("completion_tokens", 0) for sample in samples),
    )


def _read_model(path: Path) -> Model:
    description = read_description(path)
    files = sorted(path.parent.glob("*/*.jsonl"))
    return model(description, {(file.parent.name, file.stem): lines(file) for file in files})


def lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A file's lines, one after the other, without a last one that a run has not finished."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_BYTES + 1), b""), 1):
                if len(line) > MOST_BYTES:
                    raise EvaluationError(f"{path}, line {number}: has more than {MOST_BYTES:,} bytes")
                if not line.strip():
                    continue
                try:
                    yield f"{path}, line {number}", bounds.read_json(line, bounds.RESULT)
                except ValueError as error:
                    if line.endswith(b"\n"):
                        raise EvaluationError(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise EvaluationError(f"{path}: {reason(error)}") from error


def checked(written: Lines) -> Iterator[Mapping[str, Any]]:
    """Samples, each looked at.

    Raises:
        EvaluationError: one is none, at the first.
    """
    for where, line in written:
        if problem := _line_problem(line):
            raise EvaluationError(f"{where}: {problem}")
        yield line


def read_description(path: Path) -> dict[str, Any]:
    """A `model.json`.

    Raises:
        EvaluationError: it cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise EvaluationError(f"{path}: has more than {MOST_BYTES:,} bytes")
        description = bounds.read_json(text, bounds.RESULT)
    except OSError as error:
        raise EvaluationError(f"{path}: {reason(error)}") from error
    except ValueError as error:
        raise EvaluationError(f"{path}: {error}") from error
    if problems := [f"{path}: {problem}" for problem in _description_problems(description)]:
        raise EvaluationError(problems)
    found: dict[str, Any] = description
    return found


def _description_problems(description: Any) -> Iterator[str]:
    if not isinstance(description, dict):
        yield "must be an object with name, model, record and suites"
        return
    if not isinstance(name := description.get("name"), str) or not 0 < len(name) <= _LONGEST_NAME:
        yield f"name: must be a text of at most {_LONGEST_NAME} characters"
    for key, kind in (("model", str), ("record", dict)):
        if not isinstance(description.get(key), kind | None):
            yield f"{key}: must be {kind.__name__} or null"
    if isinstance(record := description.get("record"), dict) and not is_merge_record(record):
        yield "record: must be the ramerge.json of a merge, with base and statistics of the agents"
    yield from _parts_problems(description, "suites", ("settings", "versions"))
    yield from _parts_problems(description, "tasks", ("data", "about"))
    for name, task in _objects(description.get("tasks")).items():
        if type(task.get("items")) is not int:
            yield f"tasks, {shown(name, 40)}: items must be a number"


def _parts_problems(description: Mapping[str, Any], part: str, fields: Sequence[str]) -> Iterator[str]:
    """Whether a part holds objects whose fields are objects."""
    values = description.get(part, {})
    if not isinstance(values, dict) or not all(isinstance(value, dict) for value in values.values()):
        yield f"{part}: must be an object of objects"
    for name, value in _objects(values).items():
        wrong = [key for key in fields if not isinstance(value.get(key, {}), dict)]
        yield from (f"{part}, {shown(name, 40)}, {key}: must be an object" for key in wrong)


def _objects(values: Any) -> dict[str, dict[str, Any]]:
    return (
        {name: value for name, value in values.items() if isinstance(value, dict)} if isinstance(values, dict) else {}
    )


def is_merge_record(record: Mapping[str, Any]) -> bool:
    """Whether it has what is shown of a merge: base, parameters, and names and models of its agents."""
    statistics = record.get("statistics")
    agents = statistics.get("agents") if isinstance(statistics, dict) else None
    return (
        isinstance(record.get("base"), str | None)
        and isinstance(record.get("parameters", {}), dict)
        and isinstance(agents, list)
        and all(isinstance(agent, dict) for agent in agents)
        and all(isinstance(agent.get(key), str) for agent in agents for key in ("name", "model"))
    )


def _line_problem(line: Any) -> str | None:
    if not isinstance(line, dict) or not isinstance(line.get("key"), str):
        return "must be an object with a key"
    metrics = line.get("metrics")
    if not isinstance(metrics, dict) or not 0 < len(metrics) <= _MOST_METRICS:
        return f"metrics: must be an object with one to {_MOST_METRICS} metrics"
    for name, pair in metrics.items():
        if len(name) > _LONGEST_NAME:
            return f"metrics, {shown(name, 40)}: names have at most {_LONGEST_NAME} characters"
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not _is_ratio(*pair):
            return f"metrics, {name}: must be a numerator and a denominator, not {shown(pair, 100)}"
    for key in ("failure", "problem"):
        if not isinstance(line.get(key), str | None):
            return f"{key}: must be a sentence or null"
    for key in ("failed_requests", "seconds", "prompt_tokens", "completion_tokens"):
        if not _is_number(line.get(key, 0)):
            return f"{key}: must be a number"
    return None


def _is_ratio(numerator: Any, denominator: Any) -> bool:
    """Whether they are numbers whose quotient is one."""
    return _is_number(numerator) and _is_number(denominator) and (denominator == 0 or denominator > 1 / _LARGEST)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
