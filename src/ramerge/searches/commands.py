"""The command `search`, which holds no logic and imports when it runs; the options of a score, also for `soup`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge import EvaluationError, ModelServer, RecipeError
from ramerge.calibration.record import CalibrationSettings
from ramerge.scoring.options import DATA, SERVE_ARGS, SERVE_TIMEOUT
from ramerge.scoring.serving import SERVERS, server_words
from ramerge.sdk.commands import (
    KEYS,
    PATH,
    command,
    named,
    option,
    options,
    options_of,
    parse_scalar,
    printing,
    run_options,
    say,
    warn,
)
from ramerge.sdk.progress import StoppedError
from ramerge.searches.settings import PROMPT_FILES, SearchSettings

if TYPE_CHECKING:
    from ramerge import Options, Progress
    from ramerge.scoring.scores import CustomScore
    from ramerge.searches.run import SearchProgress


SERVING = options(
    option(
        "score",
        "--reward",
        metavar="FUNCTION",
        help="Reward function in verl's form for prompts: file.py:compute_score.",
    ),
    option(
        "remote", "--serve", type=click.Choice(SERVERS), help="Server that runs each merged model on tasks and prompts."
    ),
    SERVE_ARGS,
    option(
        "remote",
        "--endpoint",
        metavar="URL",
        hidden=True,
        help="Refused: an endpoint serves a single model, but a search serves many; use --serve.",
    ),
    SERVE_TIMEOUT,
    option(
        "score",
        "--limit",
        type=click.IntRange(2, 10**9),
        metavar="N",
        help="Use only the first N samples of each task.",
    ),
    DATA,
    option(
        "score",
        "--task-set",
        "task_settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of tasks, as in `ramerge eval`.",
    ),
    option(
        "score",
        "--concurrency",
        type=click.IntRange(1, 4096),
        metavar="N",
        default=8,
        show_default=True,
        help="Number of parallel requests.",
    ),
)
"""Options that control how tasks and prompts of `--score` are asked."""
SCORE_HELP = (
    "How to score a model: a function (module:function or file.py:function), tasks of `ramerge eval` (such as "
    "ramerge/tool,inspect_evals/gsm8k), or prompts (FILE.jsonl or FILE.parquet) with --reward."
)


@command(short_help="Find the merge that scores best.")
@click.argument("paths", nargs=-1, metavar="[RECIPE] OUT")
@options(*KEYS)
@option("score", "--score", metavar="SCORE", help=f"{SCORE_HELP} Default with --prompts: mass.")
@options_of(CalibrationSettings, "calibration", without=["gather", "hold_out", "reward"])
@option(
    "method",
    "--vary",
    metavar="KEY=V,V,...",
    multiple=True,
    help="Values of a key, such as method=ram,ties or parameters.r=0,0.1; repeat for all combinations.",
)
@option("method", "--space", type=PATH, help="A YAML file with the values and ranges to try, instead of --vary.")
@options_of(SearchSettings, "search_settings")
@SERVING
@run_options("threads", "max_memory", "allow_outside_links", "cache", "strict")
@printing("the result")
def search(
    paths: tuple[str, ...],
    vary: tuple[str, ...],
    space: Path | None,
    quiet: bool,
    as_json: bool,
    calibration: CalibrationSettings,
    search_settings: SearchSettings,
    options: Options,
    **flags: Any,
) -> None:
    """Try several merges, score each, and keep the best in the folder OUT.

    Give the models as a recipe or with --base and --agent, and the values to try with --vary or --space. Without
    --vary and --space, the search tries a few merges that often work well. The same command resumes an interrupted
    search.

    With --prompts of each agent's task, no labels are needed: the score is mass, the likelihood of the agents' own
    replies. With --prompts and --score, merges with higher mass are scored first, so that a few --trials suffice.

    A score function takes the folder of a merged model, and returns {name: number} or {name: [number for each item]}
    (docs/guides/search.md).

    \b
    ramerge search --base BASE --agent code=CODER --agent tool=TOOL --prompts code=c.jsonl --prompts tool=t.jsonl OUT
    ramerge search recipe.yaml OUT --vary parameters.r=0,0.1,0.2 --score my_scores.py:score
    ramerge search recipe.yaml OUT --space space.yaml --trials 50 --score my_scores:score
    """
    from ramerge.cli.words import read_varied
    from ramerge.sdk.progress import shown
    from ramerge.sdk.recipes import read_inputs
    from ramerge.sdk.text import dumped
    from ramerge.searches.folder import left_by_stop
    from ramerge.searches.search import no_page
    from ramerge.searches.search import search as run
    from ramerge.searches.text import summary

    document, out = read_inputs(paths, flags)
    if out is None:
        raise RecipeError("no folder for the search: ramerge search RECIPE OUT --vary KEY=V,V --score FUNCTION")
    score = score_of(flags) if flags["score"] is not None else None
    server = _server_of(flags) if score is None else None
    calibration = replace(calibration, reward=(flags["reward"] or "") if score is None else "")
    with shown(quiet=quiet or as_json) as listen:
        try:
            result = run(
                document,
                out,
                score,
                vary=read_varied(vary),
                space=space,
                settings=replace(
                    search_settings, calibration=calibration, server=server, concurrency=flags["concurrency"]
                ),
                options=replace(options, device=calibration.device),
                on_progress=lambda event: listen(_progress_of(event, flags["score"])),
            )
        except StoppedError as stop:
            stop.kept = left_by_stop(Path(out))
            raise
    warn(result.notes)
    if as_json:
        click.echo(dumped(result.to_dict()), nl=False)
    elif not quiet:
        say(summary(result, Path(out)))
        if search_settings.html and (lacking := no_page()):
            say(f"note: {lacking}")


def score_of(options: dict[str, Any]) -> str | CustomScore:
    """Return the score that `--score` and the options that go with it describe."""
    from ramerge.scoring.evaluation import feature

    spec: str = options["score"]
    server = _server_of(options)
    if ":" in spec:
        if wrong := [flag for flag, value in (("--serve", server), ("--reward", options["reward"])) if value]:
            raise EvaluationError(f"{flag}: is for tasks and prompts, and --score names a function" for flag in wrong)
        return spec
    if spec.endswith(".py"):
        raise EvaluationError(f"--score {spec}: names no function of the file; write {spec}:FUNCTION")
    if server is None:
        without = "; without a server, give --prompts NAME=FILE instead" if "prompts" in options else ""  # not of soup
        raise EvaluationError(
            f"--score {spec}: names no function (module:function); tasks and prompts need a server: "
            f"--serve {'|'.join(SERVERS)}{without}"
        )
    texts = named("--task-set", options["task_settings"], "NAME=VALUE")
    settings, tasks = {name: parse_scalar(text) for name, text in texts.items()}, spec.split(",")
    if spec.endswith(PROMPT_FILES):
        if not options["reward"]:
            raise EvaluationError(f"--score {spec}: needs --reward file.py:compute_score")
        tasks = ["ramerge/rewards"]
        settings |= {"rewards.prompts": str(Path(spec).absolute()), "rewards.function": options["reward"]}
    elif options["reward"]:
        raise EvaluationError("--reward: is for prompts, --score FILE.jsonl or FILE.parquet")
    data = named("--data", options["data"], "NAME=VALUE")
    task_score = feature("task_score", f"--score {spec} needs")
    score: CustomScore = task_score(tasks, settings, data, options["limit"], server, options["concurrency"])
    return score


def _server_of(options: dict[str, Any]) -> ModelServer | None:
    """Return the server that `--serve` and the options that go with it describe."""
    if options["endpoint"] is not None:
        raise EvaluationError(
            "--endpoint: serves one model, and here one merge after another is served; let ramerge start the server: "
            f"--serve {'|'.join(SERVERS)}"
        )
    if options["serve"] is None:
        return None
    return ModelServer(options["serve"], server_words(options["serve_args"]), options["serve_timeout"])


def _progress_of(event: SearchProgress, score: str | None) -> Progress:
    """Convert the progress of a search for the progress bar."""
    from ramerge import Progress
    from ramerge.searches.functions import place_of

    if event.is_gathering:
        return Progress("calibrate", event.done, event.total, "prompts")
    if event.is_generating:
        return Progress("generate", event.done, event.total, "candidates")
    notes = [f"best {event.best:.4f}"] if event.best is not None else []
    notes += [f"{event.failed:,} failed"] if event.failed else []
    notes += [f"loading {place_of(score)}"] if event.is_loading and score is not None else []
    return Progress("search", event.done, event.total, "points", ", ".join(notes))
