"""The commands `eval` and `table`, which hold no logic and import when they run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge import EndpointError, EvaluationError, ModelAccess, ModelServer
from ramerge.scoring.options import DATA, SERVE_ARGS, SERVE_TIMEOUT
from ramerge.scoring.serving import SERVERS, server_words
from ramerge.sdk.commands import AGENT, BASE, DEBUG, PATH, command, named, option, parse_scalar, printing, say
from ramerge.sdk.progress import StoppedError

if TYPE_CHECKING:
    from ramerge_eval.samples import Model

_FORM = "NAME=VALUE"
_FORMATS = ("text", "markdown", "html", "csv")


@command("eval", short_help="Score models on benchmarks.")
@click.argument("logs", type=PATH)
@option(
    "score",
    "--task",
    "tasks",
    metavar="TASK",
    multiple=True,
    help="An Inspect task: ramerge/NAME (see above), inspect_evals/NAME, or FILE.py@NAME; repeat for more.",
)
@BASE
@AGENT
@option(
    "models",
    "--model",
    "models",
    metavar="NAME=MODEL",
    multiple=True,
    help="A further model to score, such as a merge; repeat for each.",
)
@option(
    "remote",
    "--serve",
    type=click.Choice(SERVERS),
    help="Start a server for each model, and stop it afterwards.",
)
@SERVE_ARGS
@SERVE_TIMEOUT
@option("remote", "--endpoint", metavar="URL", help="URL of a running OpenAI-compatible endpoint; it ends in /v1.")
@option(
    "remote", "--served-name", "served_names", metavar="NAME", multiple=True, help="Name of the model on the endpoint."
)
@option(
    "remote",
    "--key-env",
    default="RAMERGE_API_KEY",
    show_default=True,
    metavar="VARIABLE",
    help="Environment variable with the API key.",
)
@option(
    "score", "--limit", type=click.IntRange(1, 10**9), metavar="N", help="Use only the first N samples of each task."
)
@DATA
@option(
    "score",
    "--task-set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Generation setting as Inspect names it (max_tokens=512, max_connections=64), or a task's parameter "
    "(math.fewshot=8, coding.subsets=mbpp).",
)
@option(
    "run",
    "--sandbox",
    metavar="NAME",
    help="Sandbox for model-written programs, instead of the task's own: bubblewrap, docker, or local (no sandbox, "
    "your permissions).",
)
@printing("the scores")
def eval_command(logs: Path, quiet: bool, as_json: bool, **options: Any) -> None:
    """Score models on Inspect tasks, and write the logs to LOGS (`inspect view --log-dir LOGS` shows them).

    The same command resumes an interrupted run.

    \b
    ramerge/coding    LiveBench, LiveCodeBench, MBPP, CodeContests, CodeForces, HumanEval
    ramerge/tool      BFCL: 13 subsets
    ramerge/memory    RULER HotpotQA and SQuAD, with MemAgent's workflow
    ramerge/search    NQ, 2WikiMultiHopQA
    ramerge/ifeval    IFEval
    ramerge/math      GSM8K, MATH500
    ramerge/rewards   your own prompts, with a reward function
    ramerge/agreement likelihood of the agents' own replies; no measure of skill

    \b
    ramerge eval LOGS --task ramerge/tool --base BASE --agent code=CODER --model merged=OUT --serve vllm
    ramerge eval LOGS --task inspect_evals/gsm8k --endpoint http://127.0.0.1:8000/v1 --served-name merged
    """
    from ramerge.sdk.text import dumped
    from ramerge_eval.logs import read
    from ramerge_eval.models import read_targets
    from ramerge_eval.run import EvaluationRequest, evaluate
    from ramerge_eval.tables.build import build
    from ramerge_eval.tables.render import render

    words = server_words(options["serve_args"])
    if words and not options["serve"]:
        raise EvaluationError("--serve-args: is for --serve")
    server = ModelServer(options["serve"], words, options["serve_timeout"]) if options["serve"] else None
    access = ModelAccess(server, options["endpoint"] or "", options["key_env"])
    access.check()
    models = [f"base={options['base']}"] if options["base"] is not None else []
    models += [*options["agents"], *options["models"]]
    targets = read_targets(models, options["served_names"], serve=server is not None)
    request = EvaluationRequest(
        tasks=options["tasks"],
        settings={
            name: parse_scalar(text, f"--task-set {name}")
            for name, text in named("--task-set", options["settings"], _FORM).items()
        },
        data=named("--data", options["data"], _FORM),
        limit=options["limit"],
        sandbox=options["sandbox"],
        display="none" if quiet or as_json else "rich" if sys.stderr.isatty() else "plain",
    )
    try:
        complete = evaluate(logs, targets, request, access)
    except StoppedError as stop:
        if _has_scores(logs):
            stop.kept = f"what was scored is kept in {logs}, and the same command resumes there"
        else:
            stop.kept = "nothing was scored yet"
        raise
    names = {target.name for target in targets}
    members = [model for model in read(logs) if model.name in names]
    if as_json:
        click.echo(dumped({model.name: _scores(model) for model in members}), nl=False)
    elif not quiet:
        say(render(build(members), "text", intervals=True).splitlines())
    if not complete:
        failures = [
            f"{model.name} {'/'.join(task)}: {samples.failure}; the same command asks them again"
            for model in members
            for task, samples in model.tasks.items()
            if samples.failures
        ]
        raise EndpointError(failures or [f"{logs}: not every sample has a score; the same command asks again"])


def _has_scores(logs: Path) -> bool:
    """Whether any sample in a folder of logs was scored; also true if a log cannot be read."""
    from ramerge_eval.logs import read

    if not any(logs.rglob("*.eval")):
        return False
    try:
        return any(model.tasks for model in read(logs))
    except EvaluationError:
        return True


def _scores(model: Model) -> dict[str, object]:
    """Return the scores of a model for `--json`: fractions of one, by task and metric."""
    from ramerge.scoring.intervals import interval, ratio

    return {
        "/".join(task): {
            "samples": len(samples.keys),
            "asked": samples.item_count,
            "failed": len(samples.failures),
            "failure": samples.failure or None,
            "output_tokens": samples.tokens,
            "metrics": {
                name: {
                    "score": ratio(values) if not samples.failures else None,
                    "interval": interval(values) if not samples.failures else None,
                }
                for name, values in samples.metrics.items()
            },
        }
        for task, samples in model.tasks.items()
    }


@command("table", short_help="Compare scores of models in a table.")
@click.argument("logs", type=PATH)
@option(
    "output",
    "--table",
    "layout",
    default="main",
    help="main (default), all, merging (ratios of merge to agent scores), or the paper's table1, table3 to table10.",
)
@option(
    "output",
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="text",
    show_default=True,
    help="Format of the table.",
)
@option(
    "models",
    "--model",
    "models",
    metavar="NAME",
    multiple=True,
    help="A model to show; repeat for more; default: all.",
)
@option("models", "--base", metavar="NAME", help="The base model, if no merge record names it.")
@option(
    "models",
    "--specialist",
    "specialists",
    metavar="TASK=NAME",
    multiple=True,
    help="The agent trained for a task or suite; default: the agent named after it.",
)
@option("models", "--merged", metavar="NAME", multiple=True, help="A merged model without a merge record.")
@option(
    "output", "--reference", type=click.Choice(["paper"]), help="Add the rows of the paper's table, marked as quoted."
)
@option("output", "--intervals", is_flag=True, help="Show 95 % bootstrap intervals of the scores.")
@option(
    "output",
    "--compare",
    metavar="NAME,NAME",
    help="Show paired bootstrap tests between two models instead of a table.",
)
@option("output", "--out", type=PATH, help="Write to a file.")
@option("output", "--overwrite", is_flag=True, help="Replace the file if it exists.")
@DEBUG
def table_command(logs: Path, form: str, out: Path | None, *, intervals: bool, overwrite: bool, **options: Any) -> None:
    """Compare the models in LOGS in a table; --table chooses it, such as one of the paper's.

    LOGS is a folder that `ramerge eval` or `inspect eval` wrote. On a terminal, wide tables are split into blocks; in a
    file or a pipe, all columns are in one line.
    """
    from ramerge.sdk.files import STANDARD_OUTPUT, write_file
    from ramerge.sdk.outputs import claim_files
    from ramerge_eval.logs import read
    from ramerge_eval.tables import build, merging
    from ramerge_eval.tables.compare import compare
    from ramerge_eval.tables.render import render
    from ramerge_eval.tables.roles import GivenRoles

    out = None if out == STANDARD_OUTPUT else out
    if out is not None:
        claim_files([path for path in logs.rglob("*") if path.is_file()], {"--out": out}, overwrite=overwrite)
    results, layout, names = read(logs), options["layout"], options["models"]
    if options["compare"] is not None:
        first, _, second = options["compare"].partition(",")
        if not first or not second:
            raise EvaluationError(f"--compare {options['compare']}: must be two names, such as --compare ram+,ram")
        table = compare(results, first, second, layout)
    else:
        roles = GivenRoles(options["base"], named("--specialist", options["specialists"], _FORM), options["merged"])
        if layout == merging.NAME:
            table = merging.retention(build.selection(results, names), roles)
        else:
            reference = options["reference"] is not None
            table = build.build(results, layout, models=names, explicit_roles=roles, reference=reference)
    width = shutil.get_terminal_size().columns if out is None and sys.stdout.isatty() else None
    text = render(table, form, intervals=intervals, width=width)
    if out is None:
        say(text.splitlines())
    else:
        write_file(out, text)
