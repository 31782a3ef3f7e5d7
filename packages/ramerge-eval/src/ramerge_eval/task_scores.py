"""A scorer that runs tasks of `ramerge eval`, on a server that keeps running from point to point.

A digest of its id decides whether a sample is for validation or for the test, so both have the same samples in every
run.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ramerge import EndpointError, EvaluationError, ModelAccess, ModelServer, RecipeError
from ramerge.scoring.scores import CustomScore, Measure, ScoreFailedError, Scorer, Scores, Split, of_items
from ramerge.scoring.serving import SERVED_NAME, KeptServer
from ramerge.sdk.options import check_settings
from ramerge.sdk.text import quoted
from ramerge_eval.models import EvaluationTarget
from ramerge_eval.run import EvaluationRequest, evaluate, sample_ids

_NAME = "candidate"
_MOST_FAILURES = 8  # one is enough for a point to fail
_FEWEST = 32  # samples of a task in the first rung; each rung has twice as many as the one before


@dataclass(frozen=True)
class TaskScore(CustomScore):
    """A score by tasks of Inspect, for `ramerge.search`.

    Attributes:
        request: the tasks and their settings.
        server: the settings of the server for each merged model.
        concurrency: the number of concurrent requests.

    Example:
        >>> request = ramerge_eval.EvaluationRequest(["ramerge/tool", "inspect_evals/gsm8k"], limit=100)
        >>> score = ramerge_eval.TaskScore(request, ramerge.ModelServer("vllm"))
        >>> score.concurrency
        8
    """

    request: EvaluationRequest
    server: ModelServer
    concurrency: int = 8

    def __post_init__(self) -> None:
        check_settings("request", self.request, EvaluationRequest)
        check_settings("server", self.server, ModelServer)
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise RecipeError(f"concurrency: must be a whole number above 0, not {quoted(self.concurrency)}")

    def scorer(self, folder: Path) -> Scorer:
        return TaskScorer(self, folder)


def task_score(
    tasks: Sequence[str],
    settings: Mapping[str, Any],
    data: Mapping[str, str],
    limit: int | None,
    server: ModelServer,
    concurrency: int,
) -> TaskScore:
    """Make the score of `--score` with tasks, for `ramerge search` and `ramerge soup`."""
    return TaskScore(EvaluationRequest(tasks, settings, data, limit=limit), server, concurrency)


class TaskScorer(Scorer):
    """Scorer of a model by tasks: the main metric of every subset, on the samples of one split, part by part."""

    splits = True
    in_parts = True

    def __init__(self, score: TaskScore, folder: Path) -> None:
        request, server, concurrency = score.request, score.server, score.concurrency
        if problems := server.check():
            raise EvaluationError(problems)
        request.check()
        connections = 1 if server.is_sequential else concurrency
        self._request = replace(
            request, most_failures=_MOST_FAILURES, settings={"max_connections": connections, **request.settings}
        )
        self._logs = folder / "evaluation"
        self._server = KeptServer(server, folder / SERVED_NAME, folder / "server.log")
        self._kind = server.kind
        self._ids: dict[str, list[str]] | None = None

    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        """Yield the scores of a model in parts: each has further samples of every task, twice as many as the part
        before.
        """
        target = EvaluationTarget(_NAME, self._server.served_name, str(model))
        try:
            access = ModelAccess(self._server.load(model))
            shutil.rmtree(self._logs, ignore_errors=True)
            for number, rung in enumerate(self._rungs(target, split)):
                yield self._scores(target, access, rung, self._logs / str(number))
        except (EndpointError, EvaluationError) as error:
            raise ScoreFailedError(str(error)) from error

    def _rungs(self, target: EvaluationTarget, split: Split) -> list[dict[str, list[str]]]:
        """Return the ids of samples by task, for each part; every task has its share in each part."""
        if self._ids is None:
            self._ids = {task: sample_ids(task, target, self._request) for task in self._request.tasks}
        ids = {
            task: [each for each in ids_of_task if split_of(each) == split] for task, ids_of_task in self._ids.items()
        }
        if empty := [task for task, ids_of_task in ids.items() if not ids_of_task]:
            raise EvaluationError(f"{', '.join(empty)}: has no sample that is for the {split}")
        count = max(1, (max(map(len, ids.values())) // _FEWEST).bit_length())
        ends = [2**rung - 1 for rung in range(count + 1)]  # each rung has twice as many as the one before
        return [
            {
                task: ids_of_task[len(ids_of_task) * low // ends[-1] : len(ids_of_task) * high // ends[-1]]
                for task, ids_of_task in ids.items()
            }
            for low, high in pairwise(ends)
        ]

    def _scores(
        self, target: EvaluationTarget, access: ModelAccess, rung: Mapping[str, Sequence[str]], logs: Path
    ) -> dict[str, Measure]:
        from ramerge_eval.logs import read

        for task, ids in rung.items():
            if ids:
                evaluate(logs, [target], replace(self._request, tasks=[task], samples=ids, limit=None), access)
        [log] = read(logs)
        for name, samples in log.tasks.items():
            if samples.failures:
                raise ScoreFailedError(f"{'/'.join(name)}: {samples.failure}")
        return {"/".join(name): of_items(samples.metrics[samples.main]) for name, samples in sorted(log.tasks.items())}

    def about(self) -> Mapping[str, object]:
        """Return the tasks, their settings and data, which determine the scores."""
        files = {name: Path(path) for name, path in self._request.data.items()}
        return {
            "tasks": list(self._request.tasks),
            "settings": dict(self._request.settings),
            "data": {name: [path.stat().st_size, path.stat().st_mtime_ns] for name, path in files.items()},
            "limit": self._request.limit,
            "server": self._kind,
        }

    def close(self) -> None:
        self._server.close()


def split_of(key: str) -> Split:
    """Return the split of a sample, validation or test, by a digest of its id."""
    return "validation" if hashlib.sha256(key.encode()).digest()[0] % 2 == 0 else "test"
