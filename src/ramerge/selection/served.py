"""A score that is suites of `ramerge eval`, asked on a server that is kept running from point to point.

A digest of an item's key says whether it is for validation or for the test, so both have the same items in every run.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge.evaluation import samples
from ramerge.evaluation.data import file_digest
from ramerge.evaluation.endpoint import EndpointAccess
from ramerge.evaluation.evaluate import EvaluationRequest, evaluate
from ramerge.evaluation.jobs import open_suites
from ramerge.evaluation.serving import KeptServer, ModelServer
from ramerge.evaluation.suite import Context
from ramerge.evaluation.targets import EvaluationTarget
from ramerge.foundation.errors import EndpointError, EvaluationError
from ramerge.selection.folder import Folder
from ramerge.selection.scores import Measure, ScoreFailedError, Scores, Split, of_items

_NAME = "candidate"


class SuiteScorer:
    """The main metric of every task, on the items of one purpose."""

    splits = True
    in_parts = False

    def __init__(self, request: EvaluationRequest, access: EndpointAccess, server: ModelServer, folder: Folder) -> None:
        if problems := server.check():
            raise EvaluationError(problems)
        self._request = request
        self._access = access
        self._results = folder.root / "evaluation"
        self._server = KeptServer(server, folder.root / "served", folder.root / "server.log")
        self._kind = server.kind
        context = Context(request.data, request.tokenizer, request.unsafe_execution)
        self._suites = open_suites(request.suites, request.tasks, request.settings, context)

    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        """See `Scorer.parts`. There is one part."""
        try:
            yield self._scores(model, split)
        except (EndpointError, EvaluationError) as error:
            raise ScoreFailedError(str(error)) from error

    def _scores(self, model: Path, split: Split) -> dict[str, Measure]:
        shutil.rmtree(self._results, ignore_errors=True)
        access = replace(self._access, url=self._server.load(model))
        target = EvaluationTarget(_NAME, self._server.served_name, str(model))
        request = replace(self._request, part=lambda key: split_of(key) == split)
        summary = evaluate(self._results, [target], request, access)
        failed = {name: task for name, task in summary["models"][_NAME]["tasks"].items() if task["failed"]}
        for name, task in failed.items():
            reason = next(iter(task["failures"]))
            raise ScoreFailedError(f"{name}: {task['failed']:,} of {task['samples']:,} samples failed: {reason}")
        found = samples.read(self._results)[0].tasks
        return {
            f"{suite.name}/{task.name}": of_items(found[suite.name, task.name].metrics[task.metrics[0]])
            for suite, tasks in self._suites
            for task in tasks
        }

    def about(self) -> Mapping[str, Any]:
        """Suites, tasks, settings and data."""
        return {
            "suites": {
                suite.name: {
                    "tasks": {task.name: dict(suite.about(task.name)) for task in tasks},
                    "settings": suite.settings.model_dump(mode="json"),
                    "versions": dict(suite.versions()),
                }
                for suite, tasks in self._suites
            },
            "data": {name: file_digest(path) for name, path in self._request.data.items()},
            "limit": self._request.limit,
            "server": self._kind,
        }

    def close(self) -> None:
        """End the server."""
        self._server.close()


def split_of(key: str) -> Split:
    """What an item is for."""
    return "validation" if hashlib.sha256(key.encode()).digest()[0] % 2 == 0 else "test"
