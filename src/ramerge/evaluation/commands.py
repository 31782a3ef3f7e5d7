"""The commands `eval` and `table`. Like those in `cli`, they hold no logic and import when they run."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ramerge.foundation.completion import matching, named_folders
from ramerge.foundation.errors import EndpointError, EvaluationError, StoppedError
from ramerge.foundation.options import (
    DATA,
    DEBUG,
    PATH,
    QUIET,
    SECONDS,
    SERVE_ARGS,
    as_json,
    most_failures,
    serve_timeout,
)
from ramerge.foundation.terminal import say

if TYPE_CHECKING:
    from ramerge.evaluation.endpoint import EndpointAccess
    from ramerge.evaluation.progress import EvaluationProgress
    from ramerge.evaluation.serving import ModelServer
    from ramerge.evaluation.summary import EvaluationSummary
    from ramerge.foundation.screen import Bar

_LOCAL_CONCURRENCY = 4
_CONCURRENCY = 32
_ASKED = ("tasks", "settings", "tokenizer", "limit", "retry_failed", "most_failures", "unsafe_execution")


def _suites(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of suites, also behind a comma."""
    from ramerge.evaluation.suites.table import SUITES

    before = begun[: begun.rfind(",") + 1]
    return matching((before + name for name in SUITES), begun)


@click.command("eval", short_help="Score models on benchmarks.")
@click.argument("results", type=PATH)
@click.option(
    "--model",
    "models",
    metavar="NAME=MODEL",
    multiple=True,
    shell_complete=named_folders,
    help="A model to score; repeat for each.",
)
@click.option(
    "--suite",
    "suites",
    metavar="NAME,...",
    multiple=True,
    shell_complete=_suites,
    help="Suites to run, of those above.",
)
@click.option(
    "--serve", type=click.Choice(["transformers", "vllm", "sglang"]), help="Start a server for each model, and stop it."
)
@SERVE_ARGS
@serve_timeout("Seconds until the server must be ready.")
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible endpoint that runs already, up to /v1.")
@click.option("--served-name", "served_names", metavar="NAME", multiple=True, help="What the endpoint calls the model.")
@click.option(
    "--key-env",
    default="RAMERGE_API_KEY",
    show_default=True,
    metavar="VARIABLE",
    help="Variable with the endpoint's key.",
)
@click.option(
    "--task", "tasks", metavar="SUITE/TASK", multiple=True, help="Instead of the default tasks; also SUITE/all."
)
@click.option("--limit", type=click.IntRange(1, 10**9), help="Ask only the first items of each task.")
@DATA
@click.option("--set", "settings", metavar="SUITE.KEY=VALUE", multiple=True, help="A setting, such as math.fewshot=8.")
@click.option("--tokenizer", type=PATH, help="The model's tokenizer.json or its folder.")
@click.option(
    "--concurrency", type=click.IntRange(1, 4096), help="Requests at once; default: 32, --serve transformers 4."
)
@click.option("--timeout", type=SECONDS, default=600.0, show_default=True, help="Seconds that a request may take.")
@click.option(
    "--retries", type=click.IntRange(0, 100), default=4, show_default=True, help="Further tries of a request."
)
@click.option(
    "--answer-megabytes",
    type=click.FloatRange(0.001, 1000),
    default=8.0,
    show_default=True,
    help="Size above which an answer counts as a failed request, after unpacking.",
)
@click.option("--retry-failed", is_flag=True, help="Ask samples again that failed in an earlier run.")
@most_failures("samples", 64)
@click.option("--unsafe-execution", is_flag=True, help="Run model-written programs without a sandbox.")
@QUIET
@as_json("the summary")
@DEBUG
def eval_command(results: Path, quiet: bool, as_json: bool, **options: Any) -> None:
    """Score models on the paper's benchmarks, into the folder RESULTS.

    To continue a run that was stopped, give the same command again.

    \b
    tool      BFCL: 13 subsets
    memory    RULER HotpotQA and SQuAD, with MemAgent's workflow
    coding    LiveBench, LiveCodeBench, MBPP, CodeContests, CodeForces, HumanEval
    instruct  IFEval
    math      GSM8K, MATH500
    search    NQ, 2WikiMultiHopQA
    rewards   your own prompts, with a reward function

    \b
    ramerge eval --model base=BASE --model merged=OUT --suite tool,math --serve transformers RESULTS
    ramerge eval --endpoint http://127.0.0.1:8000/v1 --served-name merged --suite tool RESULTS
    """
    from ramerge.evaluation.text import summary_text
    from ramerge.foundation.jsontext import dumped

    try:
        summary, targets, suites = _evaluate(results, options, quiet=quiet, say=not (quiet or as_json))
    except StoppedError as stop:
        stop.kept = f"what was scored is kept in {results}, and the same command continues from there"
        raise
    if as_json:
        click.echo(dumped(summary), nl=False)
    elif not quiet:
        say(summary_text(summary, targets, suites))
    _refuse_failed(summary, targets, suites)


def _evaluate(
    results: Path, options: Mapping[str, Any], *, quiet: bool, say: bool
) -> tuple[EvaluationSummary, list[str], list[str]]:
    """The summary, and the names of models and suites that ran."""
    from ramerge.evaluation.evaluate import EvaluationRequest, evaluate
    from ramerge.evaluation.jobs import read_data
    from ramerge.evaluation.targets import read_targets
    from ramerge.foundation.screen import shown

    access, server = _access(options)
    targets = read_targets(options["models"], options["served_names"], serve=server is not None)
    request = EvaluationRequest(
        suites=[name for text in options["suites"] for name in text.split(",") if name],
        data=read_data(options["data"]),
        **{key: options[key] for key in _ASKED},
    )
    with shown(task_bar, quiet=quiet) as listen:
        on_settings = _say_settings if say else None
        summary = evaluate(results, targets, request, access, server, on_progress=listen, on_settings=on_settings)
    return summary, [target.name for target in targets], list(request.suites)


def task_bar(event: EvaluationProgress) -> Bar:
    """What is shown of a task."""
    from ramerge.foundation.screen import Bar

    notes = [f"{event.failed:,} failed"] if event.failed else []
    notes += [f"score {event.score:.1%}"] if event.score is not None else []
    return Bar(f"{event.model}  {event.suite}/{event.task}", event.done, event.total, notes=tuple(notes))


def _refuse_failed(summary: EvaluationSummary, models: Sequence[str], suites: Sequence[str]) -> None:
    """A task without one answer is no result, and a script must see that."""
    problems = [
        f"{name} {task}: no sample got an answer: {next(iter(values['failures']))}; --retry-failed asks again"
        for name in models
        for task, values in summary["models"][name]["tasks"].items()
        if task.partition("/")[0] in suites and values["failed"] == values["samples"]
    ]
    if problems:
        raise EndpointError(problems)


def _access(options: Mapping[str, Any]) -> tuple[EndpointAccess, ModelServer | None]:
    """The endpoint, and the server to start if one is asked for."""
    from ramerge.evaluation.endpoint import EndpointAccess
    from ramerge.evaluation.serving import ModelServer

    serve, url = options["serve"], options["endpoint"]
    if serve and url:
        raise EvaluationError("--endpoint and --serve: one of them, not both")
    if not serve and not url:
        raise EvaluationError("say where the models run: --endpoint URL, or --serve transformers|vllm|sglang")
    if url:
        _check_url(url)
    if options["serve_args"] and not serve:
        raise EvaluationError("--serve-args: is for --serve")
    access = EndpointAccess(
        url=url or "",
        key_variable=options["key_env"],
        timeout=options["timeout"],
        retries=options["retries"],
        most_bytes=int(1e6 * options["answer_megabytes"]),
        concurrency=options["concurrency"] or (_LOCAL_CONCURRENCY if serve == "transformers" else _CONCURRENCY),
    )
    try:
        words = shlex.split(options["serve_args"])
    except ValueError as error:
        raise EvaluationError(f"--serve-args {options['serve_args']}: {error}") from error
    return access, ModelServer(serve, words, options["serve_timeout"]) if serve else None


def _check_url(url: str) -> None:
    from urllib.parse import urlsplit

    form = "--endpoint: must be a URL such as http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError as error:
        raise EvaluationError(f"{form} ({error})") from error
    if not usable:
        raise EvaluationError(f"{form}, not {url!r}")
    if parts.username is not None or parts.password is not None:
        raise EvaluationError("--endpoint: must not hold a user or password; put the key into RAMERGE_API_KEY")


def _say_settings(settings: Mapping[str, Mapping[str, Any]]) -> None:
    for suite, values in settings.items():
        text = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
        say(f"{suite}: {text}", err=True)


@click.command("suites", short_help="List the benchmarks of `ramerge eval`.")
@click.argument("names", nargs=-1, metavar="[SUITE]...", shell_complete=_suites)
@as_json("them")
def suites_command(names: tuple[str, ...], as_json: bool) -> None:
    """List the suites of `ramerge eval`, or those named, with their tasks, data and settings."""
    from ramerge.evaluation.jobs import described

    found = described(names)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for name, suite in found.items():
        click.echo(f"{name}: {suite['title']}")
        for task, values in suite["tasks"].items():
            headline = "  runs by default" if values["headline"] else ""
            click.echo(f"    {task}: {', '.join(values['metrics'])}{headline}")
        for data, text in suite["data"].items():
            click.echo(f"    --data {data}=PATH  {text}")
        for setting, values in suite["settings"].items():
            default = json.dumps(values["default"], ensure_ascii=False)
            choices = f" ({' | '.join(values['choices'])})" if values["choices"] else ""
            click.echo(f"    --set {name}.{setting}={default}{choices}  {values['description']}")
        click.echo()


@click.command("table", short_help="Put scores of models side by side.")
@click.argument("results", type=PATH)
@click.option("--table", "layout", default="main", help="main (default), all, or table1 to table9 of the paper.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "latex", "html", "csv"]),
    default="text",
    show_default=True,
)
@click.option(
    "--model", "models", metavar="NAME", multiple=True, help="A model to show; repeat for more; default: all."
)
@click.option("--base", metavar="NAME", help="The base model, where merge records do not say it.")
@click.option("--specialist", "specialists", metavar="SUITE=NAME", multiple=True, help="The agent trained for a suite.")
@click.option("--merged", metavar="NAME", multiple=True, help="A model that is a merge, though it has no merge record.")
@click.option("--reference", type=click.Choice(["paper"]), help="Add the rows of the paper's table, marked as quoted.")
@click.option("--rank-reference", is_flag=True, help="Rank quoted rows too.")
@click.option("--differences/--no-differences", default=None, help="Differences to the base; default: in table3.")
@click.option("--intervals", is_flag=True, help="Show 95 % bootstrap intervals of the scores.")
@click.option(
    "--ut",
    type=click.Choice(["accumulated", "ut", "ut_accumulated"]),
    default="accumulated",
    show_default=True,
    help="The metric that the columns UT of coding show.",
)
@click.option("--compare", metavar="NAME,NAME", help="Paired bootstrap tests between two models instead.")
@click.option("--out", type=PATH, help="Write to a file.")
@DEBUG
def table_command(results: Path, form: str, out: Path | None, **options: Any) -> None:
    """Put the models of RESULTS side by side, in the columns of the paper's tables.

    On a terminal a wide table is broken into blocks, domain by domain; a file or a pipe gets all columns in one.
    """
    from ramerge.evaluation.samples import read
    from ramerge.evaluation.tables.build import build
    from ramerge.evaluation.tables.compare import compare
    from ramerge.evaluation.tables.render import render
    from ramerge.foundation.files import STANDARD_OUTPUT, write_file

    out = None if out == STANDARD_OUTPUT else out
    if out is not None:
        _check_out(out, results)
    models, pair = read(results), options.pop("compare")
    intervals = options.pop("intervals")
    if pair is None:
        specialists = _specialists(options.pop("specialists"))
        made = build(models, options.pop("layout"), specialists=specialists, **options)
    else:
        first, _, second = pair.partition(",")
        if not first or not second:
            raise EvaluationError(f"--compare {pair}: must be two names, such as --compare ram+,ram")
        made = compare(models, first, second, options["layout"], ut=options["ut"])
    width = shutil.get_terminal_size().columns if out is None and sys.stdout.isatty() else None
    text = render(made, form, intervals=intervals, width=width)
    if out is None:
        say(text.splitlines())
    else:
        write_file(out, text)


def _check_out(out: Path, results: Path) -> None:
    from ramerge.foundation.files import check_file

    own = out.name in ("summary.json", "model.json") or out.suffix == ".jsonl"
    if own and results.resolve() in out.resolve().parents:
        raise EvaluationError(f"--out {out}: is a file of the results; name another")
    check_file(out)


def _specialists(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [suite for suite, _, name in pairs if not suite or not name]:
        raise EvaluationError([f"--specialist {text}: must be SUITE=NAME, such as tool=toolrl" for text in wrong])
    found = {suite: name for suite, _, name in pairs}
    if len(found) < len(pairs):
        raise EvaluationError("--specialist: one for each suite")
    return found


COMMANDS = (eval_command, suites_command, table_command)
