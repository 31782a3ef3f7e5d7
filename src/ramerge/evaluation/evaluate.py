"""Score models: the whole run of `ramerge eval`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramerge.evaluation import requirements
from ramerge.evaluation.endpoint import EndpointAccess
from ramerge.evaluation.jobs import open_suites
from ramerge.evaluation.progress import Listener
from ramerge.evaluation.results import check_root
from ramerge.evaluation.run import Job, score_model
from ramerge.evaluation.serving import ModelServer
from ramerge.evaluation.suite import Context
from ramerge.evaluation.summary import EvaluationSummary, write_summary
from ramerge.evaluation.targets import EvaluationTarget
from ramerge.foundation.errors import EvaluationError, RamergeError
from ramerge.foundation.events import silence
from ramerge.foundation.extras import install


@dataclass(frozen=True)
class EvaluationRequest:
    """What models are asked.

    Attributes:
        suites: names that `ramerge suites` lists, in the order in which they run.
        tasks: `SUITE/TASK` or `SUITE/all`; a suite that is not mentioned runs its headline tasks.
        settings: `SUITE.KEY=VALUE`, the value in YAML.
        data: the user's files or folders by the name of a data set.
        tokenizer: a `tokenizer.json` or its folder, where it is not in the model's folder.
        limit: items of each task, from the first; None for all.
        retry_failed: ask samples again whose requests failed in an earlier run.
        most_failures: failed samples in a row at which the run stops; 0 for no bound.
        unsafe_execution: run model-written programs without a sandbox.
        part: whether an item is asked, by its key; None for all items.
    """

    suites: Sequence[str]
    tasks: Sequence[str] = ()
    settings: Sequence[str] = ()
    data: Mapping[str, Path] = field(default_factory=dict)
    tokenizer: Path | None = None
    limit: int | None = None
    retry_failed: bool = False
    most_failures: int = 64
    unsafe_execution: bool = False
    part: Callable[[str], bool] | None = None


def evaluate(
    results: str | Path,
    targets: Sequence[EvaluationTarget],
    request: EvaluationRequest,
    access: EndpointAccess,
    server: ModelServer | None = None,
    *,
    on_progress: Listener | None = None,
    on_settings: Callable[[Mapping[str, Any]], None] | None = None,
) -> EvaluationSummary:
    """Score models on benchmarks, one model after another.

    Args:
        results: the folder of results. What an earlier run left there is continued: only what is missing is asked.
        targets: the models.
        request: what they are asked.
        access: the endpoint. With `server` its URL is not used, and everything else is.
        server: what to start for each model; None where the endpoint runs already.
        on_progress: called when a task begins, and after each of its samples.
        on_settings: called once, before anything runs, with the settings of every suite.

    Returns:
        The summary of the whole folder, which is also in `summary.json`: scores and intervals are shares of one.

    Raises:
        EvaluationError: something that was asked for, or is needed for it, is wrong or missing; nothing has run.
        EndpointError: the endpoint is gone, or too many samples failed in a row; what is scored is kept.
        OutputError: results cannot be written.
    """
    root = Path(results)
    problems = requirements.missing(["openai", "aiohttp"], who="ramerge eval", install=install("eval"))
    problems += server.check() if server else []
    if problems:
        raise EvaluationError(problems)
    check_root(root, [target.name for target in targets])
    jobs = [(target, _job(target, request)) for target in targets]
    if on_settings is not None:
        on_settings({suite.name: suite.settings.model_dump(mode="json") for suite, _ in jobs[0][1].suites})
    try:
        for target, job in jobs:
            score_model(root, target, job, access, server, on_progress or silence)
    except BaseException:
        with suppress(RamergeError):  # what is there so far; the reason to stop is what matters
            write_summary(root)
        raise
    return write_summary(root)


def _job(target: EvaluationTarget, request: EvaluationRequest) -> Job:
    tokenizer = request.tokenizer or target.tokenizer()
    context = Context(request.data, tokenizer, request.unsafe_execution)
    chosen = open_suites(request.suites, request.tasks, request.settings, context)
    return Job(chosen, request.limit, request.retry_failed, request.most_failures, request.part)
