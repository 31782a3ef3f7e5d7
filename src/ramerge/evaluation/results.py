"""The folder of results: what each model said and scored, a JSON line for each sample, and what it all adds up to.

    RESULTS/summary.json                     scores of all models, with intervals
    RESULTS/<model>/model.json               which model, how it was asked, versions, its merge record
    RESULTS/<model>/<suite>/<task>.jsonl     a line for each sample

A line is written whole or, by a process that died over it, torn; a torn last line is dropped when the file is opened
again. Where two lines have one key, the later one counts: a failed sample that was asked again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramerge.evaluation import bounds, samples
from ramerge.foundation.errors import EvaluationError, OutputError, reason
from ramerge.foundation.files import write_file
from ramerge.foundation.jsontext import check
from ramerge.foundation.text import clean, shown

SCHEMA = "ramerge.evaluation/1"
MODEL_FILE = "model.json"
_OTHER_FOLDER = "{}: name another folder of results, or remove this one"
SUMMARY_FILE = "summary.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True)
class Line:
    """What a run needs of a sample that is written."""

    metrics: Mapping[str, tuple[float, float]]
    failure: str | None
    failed_requests: int = 0


@dataclass
class TaskFile:
    """One task's samples, open for writing."""

    path: Path
    done: dict[str, Line] = field(default_factory=dict)
    _descriptor: int = -1

    def append(self, sample: Mapping[str, Any]) -> Line:
        """Write a sample at the end, in one piece.

        Raises:
            OutputError: it cannot be written.
        """
        data = _encoded(sample)
        start = os.fstat(self._descriptor).st_size
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, start)  # nothing may come to stand behind half a line
            raise OutputError(f"{self.path}: cannot be written: {reason(error)}") from error
        line = self.done[sample["key"]] = _line(sample)
        return line


def _encoded(sample: Mapping[str, Any]) -> bytes:
    """A line of JSON; what a checker found and JSON cannot hold, or no one would read back, goes in as text."""
    try:
        data = _line_of(sample)
    except (TypeError, ValueError, RecursionError):
        data = _line_of({**sample, "parsed": _described(sample["parsed"]), "details": None})
    if len(data) > samples.MOST_BYTES:
        left_out = f"left out: {len(data):,} bytes"
        data = _line_of({**sample, "parsed": _described(sample["parsed"]), "details": None, "calls": left_out})
    return data


def _described(value: object) -> str:
    try:
        return repr(value)[:1000]
    except (ValueError, RecursionError) as error:  # a number of too many digits, a list in itself
        return f"{type(value).__name__} that cannot be shown ({shown(error)})"


def _line_of(sample: Mapping[str, Any]) -> bytes:
    """Raises `ValueError` where it could not be read again."""
    line = clean(json.dumps(sample, ensure_ascii=False, default=str)).encode()
    check(line, bounds.RESULT)
    return line + b"\n"


def check_name(name: str) -> str:
    """A model's name, which is also that of its folder.

    Raises:
        EvaluationError: it cannot name a folder of results.
    """
    if not _NAME.fullmatch(name) or name == SUMMARY_FILE:
        raise EvaluationError(
            f"model name {name!r}: names a folder of results, so it must begin with a letter or digit and have at most "
            "a hundred letters, digits and ._+-; --model NAME=... or --served-name NAME=SERVED gives it another"
        )
    return name


def check_root(root: Path, names: Sequence[str]) -> None:
    """Refuse a folder where results cannot be or should not be, before anything runs.

    Raises:
        EvaluationError: it is part of a checkpoint, or what is there already cannot be read.
    """
    for folder in (root, *(root / name for name in names)):
        if any(folder.glob("*.safetensors")):
            raise EvaluationError(f"{folder}: is the folder of a model; name another folder for results")
    if any(root.glob(f"*/{MODEL_FILE}")):
        samples.read(root)


@contextmanager
def model_folder(root: Path, about: Mapping[str, Any]) -> Iterator[Path]:
    """A model's folder, which no other process writes to meanwhile.

    Args:
        about: what `model.json` is to hold. Its name, identity and the settings and versions of every suite must be
            those of the results that are there already; suites that are there and are not asked for now are kept.

    Raises:
        EvaluationError: another process writes there, or what is there was made in another way.
        OutputError: nothing can be written there.
    """
    folder = root / check_name(about["name"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {reason(error)}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EvaluationError(f"{folder}: another evaluation writes there") from error
        write_file(folder / MODEL_FILE, json.dumps(_joined(folder, about), indent=2, ensure_ascii=False) + "\n")
        yield folder
    finally:
        os.close(descriptor)


def _joined(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """`model.json` of earlier runs with what this one adds."""
    if not (folder / MODEL_FILE).exists():
        return dict(about)
    before = samples.read_description(folder / MODEL_FILE)
    suites = before.get("suites", {})
    problems = []
    if before.get("identity") != about["identity"]:
        problems.append(
            f"{folder}: holds results of another model ({shown(before.get('model') or before.get('served_name'))})"
        )
    for name, suite in about["suites"].items():
        for part, now in suite.items() if name in suites else ():
            problems += _changes(folder, name, suites[name].get(part) or {}, now)
    if problems and _has_answers(list(folder.glob("*/*.jsonl"))):
        raise EvaluationError([*problems, _OTHER_FOLDER.format(folder)])
    return dict(about) if problems else {**before, **about, "suites": {**suites, **about["suites"]}}


def _has_answers(files: Sequence[Path]) -> bool:
    """Whether there is a sample that did not fail. Without one there is nothing to be mixed, and the files go."""
    if any(sample.get("failure") is None for path in files for sample in samples.checked(samples.lines(path))):
        return True
    for path in files:
        path.unlink()
    return False


def note_task(folder: Path, suite: str, task: str, about: Mapping[str, Any]) -> None:
    """Keep in `model.json` what a task is made from, and the greatest number of its items that was asked for.

    Raises:
        EvaluationError: samples are there that were made from something else.
    """
    name = f"{suite}/{task}"
    description = samples.read_description(folder / MODEL_FILE)
    tasks = description.setdefault("tasks", {})
    before = tasks.get(name, {"items": 0})
    problems = [
        problem
        for part in ("data", "about")
        if part in before
        for problem in _changes(folder, name, before[part], about[part])
    ]
    if problems and _has_answers([path for path in [folder / suite / f"{task}.jsonl"] if path.exists()]):
        raise EvaluationError([*problems, _OTHER_FOLDER.format(folder)])
    tasks[name] = {**about, "items": max(before["items"], about["items"])}
    write_file(folder / MODEL_FILE, json.dumps(description, indent=2, ensure_ascii=False) + "\n")


def _changes(folder: Path, what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{folder}: {what} was run with {shown(key)} = {_value(then.get(key))}, and now with {_value(now.get(key))}"
        for key in {**then, **now}
        if then.get(key) != now.get(key)
    ]


def _value(value: object) -> str:
    return shown(json.dumps(value, ensure_ascii=False))


@contextmanager
def task_file(folder: Path, suite: str, task: str) -> Iterator[TaskFile]:
    """A task's samples in a model's folder, those of earlier runs read.

    Raises:
        EvaluationError: the file holds something else.
        OutputError: it cannot be written.
    """
    path = folder / suite / f"{task}.jsonl"
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {reason(error)}") from error
    try:
        os.ftruncate(descriptor, _whole_lines(path))
        yield TaskFile(path, _done(path), descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole_lines(path: Path) -> int:
    """Bytes up to the last newline."""
    size = path.stat().st_size
    with path.open("rb") as file:
        end = size
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def _done(path: Path) -> dict[str, Line]:
    return {sample["key"]: _line(sample) for sample in samples.checked(samples.lines(path))}


def _line(sample: Mapping[str, Any]) -> Line:
    return Line(sample["metrics"], sample.get("failure"), sample.get("failed_requests", 0))
