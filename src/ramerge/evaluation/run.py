"""`ramerge eval`: each model on each task, through Inspect, which asks, retries, logs and resumes."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ramerge.evaluation.benchmark import Benchmark
from ramerge.evaluation.models import EvaluationTarget, ModelAccess
from ramerge.foundation.errors import EvaluationError, StoppedError
from ramerge.foundation.text import shown, unknown

RETRIES = 4
"""Further tries of a request, unless `max_retries` says otherwise: Inspect's own default is without end."""

_CONNECTIONS = 32
_LOG_BUFFER = 100  # a write copies the log; what is not written yet outlives a kill in the buffer of Inspect
_OWN_PARAMETERS = ("subsets", "tokenizer", "sandbox", "prompts", "function")
_NO_FOLDER = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class EvaluationRequest:
    """What models are asked.

    Attributes:
        tasks: names as Inspect knows them (`ramerge/coding`, `inspect_evals/gsm8k`), or `FILE.py@NAME`.
        settings: by Inspect's names for generation (`max_tokens`), and as `TASK.KEY` for a task's parameters.
        data: the user's files, by the name of a data set.
        limit: samples of each task, from the first; None for all.
        samples: ids of the samples that are asked; None for all.
        sandbox: a provider of Inspect's, instead of the task's own.
        most_failures: failed samples at which a task stops, for whoever has no use for the others; None for never.
        display: of Inspect's.
    """

    tasks: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    samples: Sequence[str] | None = None
    sandbox: str | None = None
    most_failures: int | None = None
    display: Literal["rich", "plain", "none"] = "none"

    def generation(self) -> dict[str, Any]:
        """Settings of the generation, with what Inspect would do otherwise by default.

        Raises:
            EvaluationError: a setting that Inspect does not know.
        """
        from inspect_ai.model import GenerateConfig
        from pydantic import ValidationError

        own = {key: value for key, value in self.settings.items() if "." not in key}
        known = list(GenerateConfig.model_fields)
        if problems := [unknown("setting", key, known) for key in own if key not in known]:
            raise EvaluationError([f"--task-set {problem}; a task's parameter is TASK.KEY" for problem in problems])
        try:
            GenerateConfig(**own)
        except ValidationError as error:
            raise EvaluationError(
                [f"--task-set {each['loc'][0]}={own[str(each['loc'][0])]}: {each['msg']}" for each in error.errors()]
            ) from error
        return {"max_retries": RETRIES, "max_connections": _CONNECTIONS, **own}

    def parameters(self, task: str, target: EvaluationTarget) -> dict[str, Any]:
        """A task's parameters: settings, files of the user, and the model's tokenizer where it takes one."""
        name = short_name(task)
        found = {key.partition(".")[2]: value for key, value in self.settings.items() if key.partition(".")[0] == name}
        if task.startswith("ramerge/"):
            taken = benchmark(name).data
            data = {key: str(Path(path).absolute()) for key, path in self.data.items() if key in taken}
            found |= {"data": data} if data else {}
            if name == "memory" and "tokenizer" not in found and target.tokenizer:
                found["tokenizer"] = target.tokenizer
        return found

    def check(self) -> None:
        """Raises `EvaluationError` for settings and data that none of the tasks takes."""
        names = {short_name(task) for task in self.tasks}
        problems = [
            f"--task-set {key}: none of the tasks is called {key.partition('.')[0]}"
            for key in self.settings
            if "." in key and key.partition(".")[0] not in names
        ]
        problems += [problem for task in self.tasks for problem in self._strangers(task)]
        taken = [
            name for task in self.tasks if task.startswith("ramerge/") for name in benchmark(short_name(task)).data
        ]
        problems += [f"--data {unknown('data set', name, taken)}" for name in self.data if name not in taken]
        problems += [
            f"--data {name}={path}: does not exist" for name, path in self.data.items() if not Path(path).exists()
        ]
        if not self.tasks:
            problems.append("say what is asked: --task ramerge/coding, --task inspect_evals/gsm8k, --task FILE.py@NAME")
        if problems:
            raise EvaluationError(problems)
        self.generation()

    def _strangers(self, task: str) -> list[str]:
        """Parameters that one of ramerge's own tasks does not take."""
        if not task.startswith("ramerge/"):
            return []
        name = short_name(task)
        known = [*_OWN_PARAMETERS, *benchmark(name).settings_type.model_fields]
        own = [key.partition(".")[2] for key in self.settings if key.partition(".")[0] == name]
        return [f"--task-set {name}.{unknown('parameter', key, known)}" for key in own if key not in known]


def short_name(task: str) -> str:
    """What a task is called in settings: its name without package or file."""
    return task.rpartition("@")[2].rpartition("/")[2]


def evaluate(
    logs: str | Path, targets: Sequence[EvaluationTarget], request: EvaluationRequest, access: ModelAccess
) -> bool:
    """Score models on tasks, one after another. Whatever is in the logs already is not asked again.

    Args:
        logs: the folder of logs, one folder for each model and task.
        targets: the models.
        request: what they are asked.
        access: where they run.

    Returns:
        Whether every sample has its score; the same call asks again for those that have none.

    Raises:
        EvaluationError: something that was asked for, or is needed for it, is wrong or missing.
        StoppedError: Ctrl-C; what is scored is in the logs.
    """
    from ramerge.evaluation.tasks import registry  # so that they are there without the entry point, too

    assert registry
    request.check()
    access.check()
    folders = {(target.name, task): _folder(Path(logs), target, task) for target in targets for task in request.tasks}
    for target in targets:
        for task in request.tasks:
            _refuse_others(folders[target.name, task], target)
    access.check_reachable()
    complete = True
    for target in targets:
        with target.opened(access) as model:
            for task in request.tasks:
                complete &= _run(folders[target.name, task], target, task, request, model)
    return complete


def _folder(logs: Path, target: EvaluationTarget, task: str) -> Path:
    if any(logs.glob("*.safetensors")):
        raise EvaluationError(f"{logs}: is the folder of a model; name another folder for logs")
    return logs / target.name / _NO_FOLDER.sub("-", task)


def _refuse_others(folder: Path, target: EvaluationTarget) -> None:
    """Logs of other weights are not continued."""
    from inspect_ai.log import list_eval_logs, read_eval_log

    from ramerge.evaluation.logs import about_model

    if not folder.is_dir():
        return
    now = target.about()["identity"]
    for info in list_eval_logs(str(folder)):
        if about_model(read_eval_log(info.name, header_only=True)).get("identity", now) != now:
            raise EvaluationError(
                f"{folder}: holds logs of another model that was called {target.name}, or its files have changed; "
                "give it another name or another folder for logs"
            )


def _run(folder: Path, target: EvaluationTarget, task: str, request: EvaluationRequest, model: Any) -> bool:
    from inspect_ai import eval_set
    from inspect_ai._util.error import PrerequisiteError

    try:
        complete, _ = eval_set(
            task,
            log_dir=str(folder),
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
            **request.generation(),
        )
    except PrerequisiteError as error:
        raise EvaluationError(shown(error)) from error
    except KeyboardInterrupt as error:
        raise StoppedError(signal.SIGINT) from error
    return complete


def benchmark(name: str) -> type[Benchmark[Any]]:
    """The benchmark of one of ramerge's own tasks."""
    from ramerge.evaluation.tasks.registry import benchmark as found

    return found(name)


def sample_ids(task: str, target: EvaluationTarget, request: EvaluationRequest) -> list[str]:
    """Ids of a task's samples, up to the request's limit; the task is made and nothing is asked."""
    from inspect_ai._eval.loader import load_tasks

    [made] = load_tasks([task], request.parameters(task, target))
    ids = [str(sample.id if sample.id is not None else number) for number, sample in enumerate(made.dataset, 1)]
    return ids[: request.limit]
