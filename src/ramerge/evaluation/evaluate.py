"""`ramerge eval`: what models can do, benchmark by benchmark, asked over an OpenAI-compatible endpoint.

targets, jobs        words of a command line  →  models, and suites with their tasks
suites/              one kind of benchmark a file: items, how they are asked, how they are scored
run                  every item of every task, concurrently; goes on where an earlier run stopped
endpoint, serving    requests; servers that a run starts itself
client, bounds       no answer takes more memory than a bound
results, summary     a line for each sample; scores with intervals
sandbox/, guard      model-written programs and other people's checkers, held in bounds
data, plain, answers, arithmetic, requirements: what suites share
tables/              results  →  the paper's tables
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramerge.evaluation import requirements
from ramerge.evaluation.endpoint import Access
from ramerge.evaluation.jobs import open_suites
from ramerge.evaluation.progress import Listener
from ramerge.evaluation.results import refuse_place
from ramerge.evaluation.run import Job, score_model
from ramerge.evaluation.serving import Server
from ramerge.evaluation.suite import Context
from ramerge.evaluation.summary import write_summary
from ramerge.evaluation.targets import Target
from ramerge.foundation.errors import EvaluationError, RamergeError
from ramerge.foundation.extras import install

__all__ = ["Access", "Request", "Server", "Target", "evaluate"]


@dataclass(frozen=True)
class Request:
    """What `ramerge eval` is asked to do.

    Attributes:
        suites: names of the table in `suites/`.
        tasks: `SUITE/TASK` or `SUITE/all`; by default each suite's headline tasks.
        settings: `SUITE.KEY=VALUE`.
        data: the user's files by the name of a data set.
        tokenizer: a folder or file, where it is not that of the model's folder.
        limit, retry_failed, most_failures: see `run.Job`.
        unsafe_execution: run model-written programs without a sandbox.
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


def evaluate(
    results: Path,
    targets: Sequence[Target],
    request: Request,
    access: Access,
    server: Server | None = None,
    *,
    on_progress: Listener = lambda _: None,
    on_settings: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Score models one after another, and return the summary of the whole folder of results.

    Args:
        results: the folder; what an earlier run left there is gone on with.
        access: the endpoint, or with `server` how to talk to it.
        server: what to start for each model.
        on_settings: told the settings of every suite, before anything runs.

    Raises:
        EvaluationError: something that was asked for, or is needed for it, is wrong or absent; nothing has run.
        EndpointError: the endpoint is gone, or too many samples failed in a row; what is scored is kept.
        OutputError: results cannot be written.
    """
    problems = requirements.missing(["openai", "aiohttp"], who="ramerge eval", install=install("eval"))
    problems += server.check() if server else []
    if problems:
        raise EvaluationError(problems)
    refuse_place(results, [target.name for target in targets])
    jobs = [(target, _job(target, request)) for target in targets]
    on_settings({suite.name: suite.settings.model_dump(mode="json") for suite, _ in jobs[0][1].suites})
    try:
        for target, job in jobs:
            score_model(results, target, job, access, server, on_progress)
    except BaseException:
        with suppress(RamergeError):  # what is there so far; the reason to stop is what matters
            write_summary(results)
        raise
    return write_summary(results)


def _job(target: Target, request: Request) -> Job:
    tokenizer = request.tokenizer or target.tokenizer()
    context = Context(request.data, tokenizer, request.unsafe_execution)
    chosen = open_suites(request.suites, request.tasks, request.settings, context)
    return Job(chosen, request.limit, request.retry_failed, request.most_failures)
