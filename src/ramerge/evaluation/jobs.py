"""From the words of a command line to suites that are ready to run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from ramerge.evaluation.data import all_of
from ramerge.evaluation.suite import Context, Suite, Task
from ramerge.evaluation.suites.table import SUITES, suite_type
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.text import unknown
from ramerge.foundation.yamltext import parse_scalar

_SHOWN = 200
Chosen = list[tuple[Suite[Any], list[Task]]]


def open_suites(names: Sequence[str], tasks: Sequence[str], settings: Sequence[str], context: Context) -> Chosen:
    """Suites with the tasks that are to run, all of them checked.

    Args:
        names: suites, in the order in which they run.
        tasks: `SUITE/TASK`, or `SUITE/all`; a suite that is not mentioned runs its headline tasks.
        settings: `SUITE.KEY=VALUE`, the value in YAML.

    Raises:
        EvaluationError: with everything that is wrong in any suite.
    """
    _refuse_unknown(names)
    problems = [f"suite {name!r}: is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if not names:
        problems.append(f"no suite: --suite with one or more of {', '.join(SUITES)}")
    if problems:
        raise EvaluationError(problems)
    values, problems = _by_suite(settings, names)
    chosen: Chosen = []
    for name in names:
        kind = suite_type(name)
        try:
            suite = kind(kind.settings_type(**values.get(name, {})), context)
        except ValidationError as error:
            problems += _describe(name, error)
            continue
        found, wrong = _tasks(suite, tasks)
        problems += wrong
        chosen.append((suite, found))
    problems += _strangers(tasks, names)
    known = [each for name in SUITES for each in suite_type(name).data]
    problems += [f"--data {name}: {unknown('data set', name, known)}" for name in context.data if name not in known]
    if problems:
        raise EvaluationError(problems)
    all_of(partial(suite.check, [task.name for task in tasks]) for suite, tasks in chosen)
    return chosen


def described(names: Sequence[str] = ()) -> dict[str, Any]:
    """Suites with their tasks, data and settings, all of them or those named.

    Raises:
        EvaluationError: there is no such suite.
    """
    _refuse_unknown(names)
    return {name: _described(name) for name in names or SUITES}


def _described(name: str) -> dict[str, Any]:
    kind = suite_type(name)
    suite = kind(kind.settings_type(), Context())
    fields = kind.settings_type.model_fields
    defaults = suite.settings.model_dump(mode="json")
    return {
        "title": kind.title,
        "tasks": {
            task.name: {"title": task.title, "metrics": list(task.metrics), "headline": task.headline}
            for task in suite.tasks()
        },
        "data": dict(kind.data),
        "settings": {
            key: {
                "default": defaults[key],
                "choices": list(get_args(field.annotation)) if get_origin(field.annotation) is Literal else [],
                "description": field.description or "",
            }
            for key, field in fields.items()
        },
    }


def _refuse_unknown(names: Sequence[str]) -> None:
    if problems := [unknown("suite", name, list(SUITES)) for name in dict.fromkeys(names) if name not in SUITES]:
        raise EvaluationError(problems)


def read_data(pairs: Iterable[str]) -> dict[str, Path]:
    """Files of `--data NAME=PATH`.

    Raises:
        EvaluationError: not of that form, given twice, or not there.
    """
    found: dict[str, Path] = {}
    problems = []
    for text in pairs:
        name, _, path = text.partition("=")
        if not name or not path:
            problems.append(f"--data {text}: must be NAME=PATH, such as --data hotpotqa=./hotpot_dev.json")
        elif name in found:
            problems.append(f"--data {name}: is given twice")
        elif not Path(path).expanduser().exists():
            problems.append(f"--data {text}: there is no such file")
        elif not (Path(path).expanduser().is_file() or Path(path).expanduser().is_dir()):
            problems.append(f"--data {text}: is neither a file nor a folder; a pipe cannot be read twice")
        found[name] = Path(path).expanduser()
    if problems:
        raise EvaluationError(problems)
    return found


def _by_suite(settings: Sequence[str], names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    values: dict[str, dict[str, Any]] = {}
    problems = []
    for text in settings:
        key, _, value = text.partition("=")
        name, _, setting = key.partition(".")
        if not setting or "=" not in text:
            problems.append(f"--set {text}: must be SUITE.KEY=VALUE, such as --set tool.temperature=0.7")
        elif name not in names:
            problems.append(f"--set {text}: {unknown('suite', name, list(names))}")
        else:
            values.setdefault(name, {})[setting] = parse_scalar(value)
    return values, problems


def _describe(name: str, error: ValidationError) -> list[str]:
    fields = list(suite_type(name).settings_type.model_fields)
    return [
        f"--set {name}.{each['loc'][0]}: {unknown('setting', str(each['loc'][0]), fields)}"
        if each["type"] == "extra_forbidden"
        else f"--set {'.'.join([name, *map(str, each['loc'])])}{_input(each)}: {_reason(each)}"
        for each in error.errors()
    ]


def _reason(error: Any) -> str:
    return str(error["msg"]).removeprefix("Value error, ")


def _input(error: Any) -> str:
    """What was given, where it was one value."""
    return f"={str(error['input'])[:_SHOWN]}" if error["loc"] else ""


def _tasks(suite: Suite[Any], asked: Sequence[str]) -> tuple[list[Task], list[str]]:
    """The tasks of a suite that are asked for, in its own order, and what is wrong with the asking."""
    wanted = [text.partition("/")[2] for text in asked if text.startswith(f"{suite.name}/")]
    every = {task.name: task for task in suite.tasks()}
    problems = [
        f"--task {suite.name}/{name}: {unknown('task', name, [*every, 'all'])}"
        for name in wanted
        if name not in (*every, "all")
    ]
    if not wanted:
        return [task for task in every.values() if task.headline], problems
    return [task for task in every.values() if "all" in wanted or task.name in wanted], problems


def _strangers(tasks: Sequence[str], names: Sequence[str]) -> list[str]:
    return [
        f"--task {text}: must be SUITE/TASK or SUITE/all, of a suite that --suite names ({', '.join(names)})"
        for text in tasks
        if "/" not in text or text.partition("/")[0] not in names
    ]
