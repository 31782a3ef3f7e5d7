"""The command `search`. Like those in `cli`, it holds no logic and imports when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge.flags.options import KEYS
from ramerge.foundation.completion import files
from ramerge.foundation.errors import EvaluationError, RecipeError, StoppedError
from ramerge.foundation.options import (
    DATA,
    DEBUG,
    PATH,
    QUIET,
    SECONDS,
    SERVE_ARGS,
    as_json,
    command,
    most_failures,
    option,
    options,
    run_options,
    serve_timeout,
)
from ramerge.foundation.terminal import say, warn

if TYPE_CHECKING:
    from ramerge.evaluation.run import EvaluationRequest
    from ramerge.foundation.screen import Bar
    from ramerge.options import Options
    from ramerge.selection.run import SearchProgress
    from ramerge.selection.serving import ModelServer

_SAMPLERS = ("grid", "tpe", "cmaes", "nsga2")
SERVERS = ("transformers", "vllm", "sglang")
_PROMPTS = (".jsonl", ".json", ".parquet")
_PASSED_ON = (
    *("space", "objectives", "trials", "sampler", "seed", "prune", "most_failures", "score_timeout"),
    *("concurrency", "html"),
)
"""Options that the function has under the same names."""


@command(short_help="Find the merge that scores best.")
@click.argument("paths", nargs=-1, metavar="[RECIPE] OUT", shell_complete=files)
@options(*KEYS)
@click.option(
    "--score",
    metavar="SCORE",
    required=True,
    help="What scores a model: a function, as module:function or file.py:function; tasks of `ramerge eval`, such as "
    "ramerge/tool,inspect_evals/gsm8k; or prompts, as FILE.jsonl or FILE.parquet, with --reward.",
)
@click.option("--reward", metavar="FUNCTION", help="For prompts: file.py:compute_score, in verl's form.")
@option(
    "method",
    "--vary",
    metavar="KEY=V,V,...",
    multiple=True,
    help="Values of a key, such as method=ram,ties or parameters.r=0,0.1; repeat for all combinations.",
)
@option("method", "--space", type=PATH, help="A YAML file that says what varies, instead of --vary.")
@option("method", "--trials", type=click.IntRange(1, 100_000), help="Points to try; default: all of a grid, else 30.")
@option(
    "method",
    "--sampler",
    type=click.Choice(_SAMPLERS),
    help="What chooses points; default: grid for --vary, tpe for --space.",
)
@option(
    "method", "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the sampler."
)
@click.option(
    "--objective",
    "objectives",
    metavar="NAME[=min]",
    multiple=True,
    help="The figure to raise, or with =min to lower; default: mean, of all figures. Several give a Pareto front.",
)
@click.option("--no-prune", "prune", flag_value=False, default=True, help="Score every point on all of its items.")
@click.option(
    "--score-timeout",
    type=SECONDS,
    default=3600.0,
    show_default=True,
    help="Seconds that scoring a point may take.",
)
@most_failures("points", 5)
@click.option("--serve", type=click.Choice(SERVERS), help="For tasks and prompts: the server to keep running.")
@SERVE_ARGS
@serve_timeout("Seconds to start or load.")
@click.option("--limit", type=click.IntRange(2, 10**9), help="Take only the first samples of each task.")
@DATA
@click.option(
    "--task-set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of tasks, as --set of `ramerge eval`."
)
@click.option("--concurrency", type=click.IntRange(1, 4096), default=8, show_default=True, help="Requests at once.")
@click.option("--no-html", "html", flag_value=False, default=True, help="Do not write OUT/search.html.")
@run_options("threads", "max_memory", "allow_outside_links", "cache", "strict")
@QUIET
@as_json("the result")
@DEBUG
def search(
    paths: tuple[str, ...], vary: tuple[str, ...], quiet: bool, as_json: bool, options: Options, **flags: Any
) -> None:
    """Merge points of a space, score each, and keep the best in the folder OUT.

    The recipe, or --base and --agent, say what is merged; --vary or --space says which of its values vary. The same
    command resumes an interrupted search.

    A score function gets the folder of a merged model, and returns {name: number} or {name: [a number for each item]};
    the guide "Search" (docs/guides/search.md) says more.

    \b
    ramerge search recipe.yaml OUT --vary parameters.r=0,0.1,0.2 --score my_scores.py:score
    ramerge search recipe.yaml OUT --space space.yaml --trials 50 --score my_scores:score
    """
    from ramerge.flags.read import read_inputs
    from ramerge.foundation.jsontext import dumped
    from ramerge.foundation.screen import shown
    from ramerge.foundation.words import read_varied
    from ramerge.selection.search import search as run
    from ramerge.selection.text import summary

    document, out = read_inputs(paths, flags)
    if out is None:
        raise RecipeError("no folder for the search: ramerge search RECIPE OUT --vary KEY=V,V --score FUNCTION")
    given = {key: flags[key] for key in _PASSED_ON} | {"options": options}
    score, server = _score(flags)
    with shown(bar, quiet=quiet or as_json) as listen:
        try:
            result = run(document, out, score, vary=read_varied(vary), server=server, on_progress=listen, **given)
        except StoppedError as stop:
            stop.kept = f"what was scored is kept in {out}, and the same command resumes from there"
            raise
    warn(result.notes)
    if as_json:
        click.echo(dumped(result.to_dict()), nl=False)
    elif not quiet:
        say(summary(result, Path(out)))


def _score(options: dict[str, Any]) -> tuple[str | EvaluationRequest, ModelServer | None]:
    """What scores, and the server that it needs."""
    spec = options["score"]
    if ":" not in spec:
        return _tasks(spec, options)
    if options["serve"] or options["reward"]:
        raise EvaluationError("--serve and --reward: are for tasks and prompts, and --score names a function")
    return spec, None


def _tasks(spec: str, options: dict[str, Any]) -> tuple[EvaluationRequest, ModelServer]:
    """Tasks of Inspect's, or a file of prompts with a reward function."""
    from shlex import split

    from ramerge.evaluation.commands import pairs
    from ramerge.evaluation.run import EvaluationRequest
    from ramerge.selection.serving import ModelServer

    if options["serve"] is None:
        raise EvaluationError(
            f"--score {spec}: names no function (module:function); tasks and prompts need a server: "
            f"--serve {'|'.join(SERVERS)}"
        )
    settings, tasks = pairs("--task-set", options["settings"], typed=True), spec.split(",")
    if spec.endswith(_PROMPTS):
        if not options["reward"]:
            raise EvaluationError(f"--score {spec}: needs --reward file.py:compute_score")
        tasks = ["ramerge/rewards"]
        settings |= {"rewards.prompts": str(Path(spec).absolute()), "rewards.function": options["reward"]}
    elif options["reward"]:
        raise EvaluationError("--reward: is for prompts, --score FILE.jsonl or FILE.parquet")
    request = EvaluationRequest(tasks, settings, pairs("--data", options["data"]), limit=options["limit"])
    return request, ModelServer(options["serve"], split(options["serve_args"]), options["serve_timeout"])


def bar(event: SearchProgress) -> Bar:
    """What is shown of a search."""
    from ramerge.foundation.screen import Bar

    notes = [f"best {event.best:.4f}"] if event.best is not None else []
    notes += [f"{event.failed:,} failed"] if event.failed else []
    return Bar("search", event.done, event.total, "points", tuple(notes))
