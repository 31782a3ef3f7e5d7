"""Runs each model on each task: checks the request of `ramerge eval`, and runs it through Inspect into a folder of
logs.
"""

from __future__ import annotations

import io
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from ramerge import EvaluationError, ModelAccess
from ramerge.sdk.files import check_state
from ramerge.sdk.options import check_settings
from ramerge.sdk.progress import StoppedError
from ramerge.sdk.text import shown, unknown
from ramerge_eval.models import EvaluationTarget

if TYPE_CHECKING:
    from inspect_ai.dataset import Sample

RETRIES = 4
"""Further tries of a request, unless `max_retries` is set, because Inspect retries without end by default."""

_CONNECTIONS = 32
# Windows has no SIGHUP
_STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_SERVER_LOG = "server.log"
_LOG_BUFFER = 100  # a write copies the log; what is not written yet outlives a kill in the buffer of Inspect
_NO_FOLDER = re.compile(r"[^A-Za-z0-9._-]+")
_LIKELIHOODS = "ramerge/agreement"
"""The task that needs likelihoods of a prompt and no replies; `transformers serve` returns none."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The request of an evaluation: tasks, their settings and their data, for all models.

    Attributes:
        tasks: Inspect's names (`ramerge/coding`, `inspect_evals/gsm8k`), or `FILE.py@NAME`.
        settings: generation settings by Inspect's names (`max_tokens`), and a task's parameters as `TASK.KEY`.
        data: the user's files, by name of the data set.
        limit: the number of samples of each task, from the first; None for all.
        samples: ids of the samples to run; None for all.
        sandbox: a sandbox provider of Inspect, instead of the task's own.
        most_failures: the number of failed samples at which a task stops; None for never.
        display: Inspect's display.

    Example:
        >>> request = ramerge_eval.EvaluationRequest(["ramerge/search"], {"temperature": 0.5}, limit=10)
        >>> request.generation("ramerge/search")["temperature"]
        0.5
    """

    tasks: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    samples: Sequence[str] | None = None
    sandbox: str | None = None
    most_failures: int | None = None
    display: Literal["rich", "plain", "none"] = "none"

    def generation(self, task: str, *, is_sequential: bool = False) -> dict[str, Any]:
        """Return the generation settings of a task, including those that replace Inspect's defaults.

        Args:
            is_sequential: whether the server answers one request after another.
        """
        task_parameters = _parameters_of(task)
        everywhere = {key: value for key, value in self.settings.items() if "." not in key}
        own = (
            {}
            if task_parameters is None
            else {key: value for key, value in self._own(task).items() if key not in task_parameters}
        )
        connections = 1 if is_sequential else _CONNECTIONS
        return {"max_retries": RETRIES, "max_connections": connections, **everywhere, **own}

    def parameters(self, task: str, target: EvaluationTarget) -> dict[str, Any]:
        """The parameters of a task: settings, the user's files, and the model's tokenizer if the task takes one."""
        names = _parameters_of(task)
        if names is None:
            return self._own(task)
        values = {"tokenizer": target.tokenizer} if target.tokenizer else {}
        values |= {key: str(Path(path).absolute()) for key, path in self.data.items()}
        return {key: value for key, value in (values | self._own(task)).items() if key in names}

    def check(self) -> None:
        """Raise `EvaluationError` for settings and data that no task takes."""
        from inspect_ai.model import GenerateConfig
        from pydantic import ValidationError

        fields = list(GenerateConfig.model_fields)
        parameters_by_task = {_short_name(task): _parameters_of(task) for task in self.tasks}
        problems = []
        for setting in self.settings:
            name, of_task, key = setting.partition(".")
            parameters = parameters_by_task.get(name)
            if not of_task and name not in fields:
                problems.append(
                    f"--task-set {name}: {unknown('setting', name, fields)}; a task's parameter is TASK.KEY"
                )
            elif of_task and name not in parameters_by_task:
                problems.append(f"--task-set {setting}: none of the tasks is called {name}")
            elif parameters is not None and key not in (*parameters, *fields):
                problems.append(f"--task-set {setting}: {unknown(f'parameter of {name}', key, parameters)}")
        files = list(dict.fromkeys(name for task in self.tasks for name in _data_sets_of(task)))
        problems += [f"--data {name}: {unknown('data set', name, files)}" for name in self.data if name not in files]
        problems += [
            f"--data {name}={path}: does not exist" for name, path in self.data.items() if not Path(path).exists()
        ]
        problems += [text for task in self.tasks for text in _lacking(task, {**self.data, **self._own(task)})]
        if not self.tasks:
            problems.append("say what is asked: --task ramerge/coding, --task inspect_evals/gsm8k, --task FILE.py@NAME")
        for task in [] if problems else self.tasks:
            try:
                GenerateConfig(**self.generation(task))
            except ValidationError as error:
                problems += [f"--task-set {each['loc'][0]}={each['input']}: {each['msg']}" for each in error.errors()]
        if problems:
            raise EvaluationError(list(dict.fromkeys(problems)))

    def _own(self, task: str) -> dict[str, object]:
        name = _short_name(task)
        return {key.partition(".")[2]: value for key, value in self.settings.items() if key.partition(".")[0] == name}


def _short_name(task: str) -> str:
    """Return the name of a task in settings: its name without package or file."""
    return task.rpartition("@")[2].rpartition("/")[2]


def _parameters_of(task: str) -> list[str] | None:
    """Return the arguments of one of ramerge's own tasks; None for other tasks, which only Inspect knows."""
    if not task.startswith("ramerge/"):
        return None
    from ramerge_eval.tasks.registry import parameters

    return parameters(_short_name(task))


def _data_sets_of(task: str) -> list[str]:
    """Return the arguments of one of ramerge's own tasks that `--data` sets; empty for other tasks."""
    if not task.startswith("ramerge/"):
        return []
    from ramerge_eval.tasks.registry import data_sets

    return data_sets(_short_name(task))


def _lacking(task: str, arguments: Mapping[str, object]) -> list[str]:
    """Return problems of one of ramerge's own tasks: required arguments that are missing."""
    if not task.startswith("ramerge/"):
        return []
    from ramerge_eval.tasks.common import lacking

    return lacking(_short_name(task), arguments)


def evaluate(
    logs: str | Path, targets: Sequence[EvaluationTarget], request: EvaluationRequest, access: ModelAccess
) -> bool:
    """Run an evaluation: each model on each task. Samples that are already in the logs are not repeated.

    Args:
        logs: the folder of logs, one folder for each model and task.
        targets: the models.
        request: the tasks and their settings.
        access: where the models run.

    Returns:
        Whether every sample has a score; the same call repeats samples without a score.

    Raises:
        EvaluationError: a part of the request, or something that it needs, is wrong or missing.
        StoppedError: Ctrl-C; the logs have all scores so far.

    Example:
        >>> targets = [ramerge_eval.EvaluationTarget("merged", "merged")]
        >>> request = ramerge_eval.EvaluationRequest(["inspect_evals/gsm8k"], limit=100)
        >>> access = ramerge.ModelAccess(endpoint="http://127.0.0.1:8000/v1")
        >>> ramerge_eval.evaluate("logs", targets, request, access)  # doctest: +SKIP
        True
    """
    check_settings("request", request, EvaluationRequest)
    check_settings("access", access, ModelAccess)
    request.check()
    access.check()
    from inspect_ai.log import list_eval_logs, read_eval_log

    from ramerge_eval.logs import about_model

    folder = Path(logs)
    if any(folder.glob("*.safetensors")):
        raise EvaluationError(f"{folder}: is the folder of a model; name another folder for logs")
    for target in targets:
        own, now = folder / target.name, target.about()["identity"]
        check_state(own)
        for info in list_eval_logs(str(own), recursive=True) if own.is_dir() else ():
            if about_model(read_eval_log(info.name, header_only=True)).get("identity", now) != now:
                raise EvaluationError(
                    f"{own}: holds logs of another model that was called {target.name}, or its files have changed; "
                    "give it another name or another folder for logs"
                )
    kind = access.settings.kind if access.settings else None
    in_process = [task for task in request.tasks if kind == "transformers" and task == _LIKELIHOODS]
    over_server = [task for task in request.tasks if task not in in_process]
    for target in targets:
        if access.is_raw(target.folder):
            _refuse_chats(target, over_server, request)
    access.check_reachable()
    is_sequential = access.settings is not None and access.settings.is_sequential
    complete = True
    for target in targets:
        own = folder / target.name
        if over_server:
            with target.opened(access, own / _SERVER_LOG) as model:
                for task in over_server:
                    complete &= _run(own, target, task, request, model, is_sequential=is_sequential)
        if in_process:
            with target.loaded(access) as model:
                for task in in_process:
                    complete &= _run(own, target, task, request, model, is_sequential=False)
    return complete


def _refuse_chats(target: EvaluationTarget, tasks: Sequence[str], request: EvaluationRequest) -> None:
    """Refuse tasks whose samples are chats, for a model without a chat template, before its server is started."""
    from ramerge_eval.served_model import is_text, no_template

    for task in tasks:
        for sample in _samples(task, target, request):
            if not isinstance(sample.input, str) and not is_text(sample.input):
                raise EvaluationError(f"{task}: {no_template(target.name, [each.role for each in sample.input])}")


def _run(
    folder: Path, target: EvaluationTarget, task: str, request: EvaluationRequest, model: Any, *, is_sequential: bool
) -> bool:
    from inspect_ai import eval_set
    from inspect_ai._util.error import PrerequisiteError

    # on standard output Inspect says that a finished run is complete, also where it is to display nothing
    output = io.StringIO() if request.display == "none" else sys.stderr
    try:
        with _canceled_by_signals(), redirect_stdout(output):
            complete, logs = eval_set(
                task,
                log_dir=str(folder / _NO_FOLDER.sub("-", task)),
                model=model,
                task_args=request.parameters(task, target),
                sandbox=request.sandbox,
                metadata={"ramerge": target.about()},
                limit=request.limit,
                sample_id=list(request.samples) if request.samples is not None else None,
                retry_attempts=0,
                retry_immediate=False,
                fail_on_error=True if request.most_failures is None else float(request.most_failures),
                continue_on_fail=request.most_failures is None,
                score_on_error=True,
                log_dir_allow_dirty=True,
                log_buffer=_LOG_BUFFER,
                display=request.display,
                **request.generation(task, is_sequential=is_sequential),
            )
    except PrerequisiteError as error:
        raise EvaluationError(shown(error)) from error
    if not logs:  # what Inspect calls a success is a run that was canceled
        raise StoppedError(signal.SIGINT)
    return complete


@contextmanager
def _canceled_by_signals() -> Iterator[None]:
    """A context in which a signal cancels Inspect's run, which then returns, after SIGINT even without an error.

    Exceptions of the command's own handlers would be lost in the event loop, which would not stop.

    Raises:
        StoppedError: a signal other than SIGINT came, or SIGINT outside the event loop.
    """
    signals: list[int] = []

    def cancel(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        signal.raise_signal(signal.SIGINT)

    handlers = {number: signal.getsignal(number) for number in _STOPPING}
    # of a signal that is ignored, or ends the process without any handler, nothing changes
    own = [number for number, handler in handlers.items() if callable(handler)]
    if threading.current_thread() is not threading.main_thread():
        own = []
    try:
        for number in own:
            # for this handler of SIGINT alone, asyncio puts one in place that cancels the main task
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else cancel)
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(signals[0] if signals else signal.SIGINT) from error
    finally:
        for number in own:
            signal.signal(number, handlers[number])
    if signals:
        raise StoppedError(signals[0])


def sample_ids(task: str, target: EvaluationTarget, request: EvaluationRequest) -> list[str]:
    """Return the ids of a task's samples, up to the request's limit, for `task_scores`; no model is queried."""
    samples = enumerate(_samples(task, target, request), 1)
    return [str(sample.id if sample.id is not None else number) for number, sample in samples]


def _samples(task: str, target: EvaluationTarget, request: EvaluationRequest) -> list[Sample]:
    """Return the samples of a task, up to the request's limit."""
    from inspect_ai._eval.loader import load_tasks

    [whole_task] = load_tasks([task], request.parameters(task, target))
    return list(whole_task.dataset)[: request.limit]
