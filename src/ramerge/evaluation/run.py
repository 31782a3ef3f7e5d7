"""Score a model on suites: every item of every task asked, recorded and counted, whatever happens on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from ramerge.evaluation.data import file_digest
from ramerge.evaluation.endpoint import Endpoint, EndpointAccess
from ramerge.evaluation.progress import Listener, RunningScore
from ramerge.evaluation.recorder import Recorder
from ramerge.evaluation.results import Line, TaskFile, model_folder, note_task, task_file
from ramerge.evaluation.serving import ModelServer, serving
from ramerge.evaluation.stopping import stoppable
from ramerge.evaluation.suite import Item, Suite, Task
from ramerge.evaluation.targets import EvaluationTarget
from ramerge.foundation.errors import EndpointError, EvaluationError

SERVER_LOG = "server.log"
_DEFAULT = "default"
_SHOWN = 1000


@dataclass(frozen=True)
class Job:
    """What is asked of a model.

    Attributes:
        suites: each with the tasks that are to run.
        limit: items a task, from its first; None for all.
        retry_failed: ask samples again with requests that failed in an earlier run.
        most_failures: samples that may fail one after the other before the run stops; 0 for no bound.
        part: whether an item is asked, by its key; None for all items.
    """

    suites: Sequence[tuple[Suite[Any], Sequence[Task]]]
    limit: int | None = None
    retry_failed: bool = False
    most_failures: int = 64
    part: Callable[[str], bool] | None = None

    def about(self) -> dict[str, Any]:
        """Settings and versions, by suite."""
        return {
            suite.name: {"settings": suite.settings.model_dump(mode="json"), "versions": dict(suite.versions())}
            for suite, _ in self.suites
        }


def score_model(
    results: Path,
    target: EvaluationTarget,
    job: Job,
    access: EndpointAccess,
    server: ModelServer | None,
    listen: Listener,
) -> None:
    """Run a job on one model, from where an earlier run stopped.

    Args:
        results: the folder of all results.
        access: the endpoint; its URL is that of the server, where one is started.
        server: what to start for this model, or None where the endpoint runs already. Nothing is started, and nothing
            connected to, where every sample is there.

    Raises:
        EvaluationError: data, settings or earlier results are wrong.
        EndpointError: the endpoint is gone, or too many samples failed in a row. All scored samples are kept.
        OutputError: results cannot be written.
        StoppedError: a signal asked for it. Likewise.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(model_folder(results, target.about() | {"suites": job.about()}))
        works = [
            _open(stack, folder, target, suite, task, job, listen) for suite, tasks in job.suites for task in tasks
        ]
        if server and any(work.waiting for work in works):
            if server.kind == "transformers":  # which knows its model by where it is
                target = replace(target, served_name=target.location)
            url = stack.enter_context(serving(server, target.location, target.served_name, folder / SERVER_LOG))
            access = replace(access, url=url)
        asyncio.run(_all(works, access, target.served_name, job))


@dataclass
class _Work:
    """A task, and what of it is still to do."""

    suite: Suite[Any]
    task: Task
    waiting: list[Item]
    file: TaskFile
    score: RunningScore


def _open(
    stack: ExitStack, folder: Path, target: EvaluationTarget, suite: Suite[Any], task: Task, job: Job, listen: Listener
) -> _Work:
    items = _items(suite, task, job)
    note_task(folder, suite.name, task.name, {"items": len(items), **_made_from(suite, task)})
    file = stack.enter_context(task_file(folder, suite.name, task.name))
    waiting = [item for item in items if _is_open(file.done.get(item.key), job.retry_failed)]
    again = {item.key for item in waiting}
    score = RunningScore(target.name, suite.name, task.name, task.metrics[0], len(items), listen)
    score.count(line for key, line in file.done.items() if key not in again)
    return _Work(suite, task, waiting, file, score)


def _items(suite: Suite[Any], task: Task, job: Job) -> list[Item]:
    first = islice(suite.items(task.name), job.limit)
    items = [item for item in first if job.part is None or job.part(item.key)]
    if not items:
        among = "" if job.part is None else " among those that are to be asked"
        raise EvaluationError(f"{suite.name}/{task.name}: there are no items{among}")
    if len({item.key for item in items}) < len(items):
        raise EvaluationError(f"{suite.name}/{task.name}: two items have one key")
    return items


def _made_from(suite: Suite[Any], task: Task) -> dict[str, Mapping[str, str]]:
    """Digests of the user's data, and what else decides a task's scores."""
    given = suite.context.data
    data = {name: _digest(given[name]) if name in given else _DEFAULT for name in suite.uses(task.name)}
    return {"data": data, "about": dict(suite.about(task.name))}


def _digest(path: Path) -> str:
    stat = path.stat()
    return _digest_once(path, stat.st_mtime_ns, stat.st_size)


@lru_cache
def _digest_once(path: Path, _changed: int, _size: int) -> str:
    return file_digest(path)


def _is_open(line: Line | None, retry_failed: bool) -> bool:
    return line is None or (retry_failed and (line.failure is not None or line.failed_requests > 0))


async def _all(works: Sequence[_Work], access: EndpointAccess, model: str, job: Job) -> None:
    """Every task, one after the other."""
    try:
        with stoppable():
            if not any(work.waiting for work in works):
                for work in works:
                    work.score.tell()
                return
            async with Endpoint(access) as endpoint:
                await endpoint.check(model)
                for work in works:
                    work.score.tell()  # now and not before, because its rate counts from here on
                    workers = _Workers(work, endpoint, model, job.most_failures)
                    await _together([workers.work() for _ in range(min(access.concurrency, len(work.waiting)))])
    finally:
        for suite in {work.suite.name: work.suite for work in works}.values():
            await suite.close()


class _Workers:
    """What the workers of one task share."""

    def __init__(self, work: _Work, endpoint: Endpoint, model: str, most_failures: int) -> None:
        self._work = work
        self._waiting: Iterator[Item] = iter(work.waiting)
        self._endpoint = endpoint
        self._model = model
        self._most_failures = most_failures
        self._in_a_row = 0

    async def work(self) -> None:
        """One item after the other, until none is left."""
        for item in self._waiting:
            sample = await self._sample(item)
            self._work.score.count([self._work.file.append(sample)])
            self._work.score.tell()
            self._in_a_row = self._in_a_row + 1 if sample["failure"] else 0
            if self._most_failures and self._in_a_row >= self._most_failures:
                raise EndpointError(
                    f"{self._endpoint.access.url}: {self._in_a_row} samples in a row failed; the last: "
                    f"{sample['failure']}; they are kept as failed, and --retry-failed asks them again "
                    "(--most-failures 0 never stops)"
                )

    async def _sample(self, item: Item) -> dict[str, Any]:
        """Ask and score one item: the line to write."""
        suite, task = self._work.suite, self._work.task
        chat = Recorder(self._endpoint, self._model, suite.settings, f"{task.name}/{item.key}")
        began = time.monotonic()
        values: dict[str, Any]
        try:
            score = await suite.attempt(task.name, item, chat)
            values = {"metrics": score.metrics, "parsed": score.parsed, "failure": None, "problem": score.problem}
            values |= {"details": dict(score.details)} if score.details else {}
        except EvaluationError:
            raise
        except Exception as error:  # a failed request, or a checker that an answer has broken
            text = str(error) if isinstance(error, EndpointError) else f"{type(error).__name__}: {error}"
            failed = suite.failed(task.name, item)
            values = {"metrics": failed, "parsed": None, "failure": text[:_SHOWN], "problem": None}
        if self._endpoint.stopped:  # also where a suite took the failure of one request for its own
            raise self._endpoint.stopped
        return {
            "key": item.key,
            "score": _share(values["metrics"][task.metrics[0]]),
            **values,
            "failed_requests": sum("failure" in call for call in chat.calls),
            "cut": sum(call.get("finish_reason") == "length" for call in chat.calls),
            "seconds": round(time.monotonic() - began, 4),
            "prompt_tokens": sum(call["prompt_tokens"] for call in chat.calls),
            "completion_tokens": sum(call["completion_tokens"] for call in chat.calls),
            "calls": chat.calls,
        }


def _share(ratio: tuple[float, float]) -> float | None:
    return ratio[0] / ratio[1] if ratio[1] else None


async def _together(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of them at once; when one fails, the others are stopped before its error goes on."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
