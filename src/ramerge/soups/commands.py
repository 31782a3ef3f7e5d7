"""The command `soup`. It holds no logic, and imports when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge import RecipeError
from ramerge.cli.options import DTYPE, EXPLAIN, ROUNDING, SHARD_SIZE, WRITE_RECIPE
from ramerge.sdk.commands import (
    BASE,
    MERGE,
    PATH,
    as_kind,
    carry_out,
    command,
    option,
    options,
    options_of,
    printing,
    say,
    warn,
)
from ramerge.sdk.progress import StoppedError
from ramerge.searches.commands import SCORE_HELP, SERVING, score_of
from ramerge.searches.settings import SearchSettings

if TYPE_CHECKING:
    from ramerge import Options
    from ramerge.sdk.outputs import OutputKind
    from ramerge.soups.recipe import SoupRequest

STRATEGIES = ("uniform", "ema", "greedy", "scored", "extrapolate", "relex")


@command(short_help="Average the checkpoints of a run, or predict a later one.")
@click.argument("words", nargs=-1, metavar="RUN... OUT", type=click.Path())
@option(
    "method",
    "--strategy",
    type=click.Choice(STRATEGIES),
    default="uniform",
    show_default=True,
    help="How to weight the checkpoints.",
)
@option(
    "method",
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A parameter of the strategy, such as half_life=50 or at=1000; repeatable.",
)
@option("models", "--last", type=click.IntRange(1), metavar="K", help="Use only the last K checkpoints.")
@option("models", "--steps", metavar="A:B", help="Use only checkpoints from step A to B; either may be left out.")
@option(
    "score",
    "--scores",
    metavar="LOGS",
    type=PATH,
    help="For --strategy scored, and --choose: a folder with `ramerge eval` logs of the checkpoints.",
)
@option(
    "score",
    "--choose",
    type=click.IntRange(1),
    metavar="K",
    help="With --scores: use only K checkpoints, which score well on different tasks.",
)
@option("score", "--score", metavar="SCORE", help=f"For --strategy greedy. {SCORE_HELP}")
@option(
    "score",
    "--objective",
    metavar="NAME[=min]",
    default="mean",
    show_default=True,
    help="For --strategy greedy: the score to maximize, or with =min to minimize; mean: the mean of all scores.",
)
@SERVING
@options_of(SearchSettings, "search_settings", only=["most_failures", "score_timeout"])
@option(
    "score",
    "--analyze",
    is_flag=True,
    help="Show how straight the run is in weight space, and merge nothing; needs --base.",
)
@option("output", "--html", type=PATH, help="With --analyze: write an HTML page with charts to a file; -: print it.")
@options(BASE, DTYPE, ROUNDING, SHARD_SIZE, as_kind, EXPLAIN, WRITE_RECIPE, printing("the result"), MERGE)
def soup(
    words: tuple[str, ...],
    kind: OutputKind,
    explain: bool,
    recipe_file: Path | None,
    quiet: bool,
    as_json: bool,
    options: Options,
    **flags: object,
) -> None:
    """Average checkpoints of a training run into one model at OUT, or predict a later checkpoint.

    RUN is a folder of checkpoints (global_step_10, checkpoint-10, iter_0000010), a list of checkpoints, a Hub
    repository with a branch for each step, or a folder of deltas. Deltas need --base, and are the fastest.

    \b
    ramerge soup runs/code OUT --last 5
    ramerge soup runs/code OUT --strategy ema --set half_life=50
    ramerge soup runs/code OUT --strategy relex --base BASE --steps :150 --set at=1000
    ramerge soup runs/code OUT --strategy greedy --score my_scores.py:score
    ramerge soup runs/code --base BASE --analyze
    """
    from ramerge.cli.flags.write import write_recipe
    from ramerge.sdk.outputs import CHECKPOINT, OUTPUT_KINDS, claim_folder
    from ramerge.sdk.recipes import check
    from ramerge.sdk.storage import is_remote
    from ramerge.soups.checkpoints import is_missing
    from ramerge.soups.recipe import GREEDY, read_request

    merges = recipe_file is None and not flags["analyze"]
    if len(words) < 1 + merges:
        raise click.UsageError("two names are needed at least: RUN, and OUT, the folder to write")
    run, out = (words[:-1], words[-1]) if merges else (words, None)
    if not merges and len(words) > 1 and is_missing(words[-1]):
        raise RecipeError(f"{words[-1]}: no such folder; --write-recipe and --analyze merge nothing, so give no OUT")
    if flags["html"] is not None and not flags["analyze"]:
        raise RecipeError("--html: is for --analyze")
    if recipe_file is not None and (flags["analyze"] or flags["strategy"] == GREEDY):
        raise RecipeError("--write-recipe: is not for --analyze, and greedy writes its own recipe, OUT/recipe.yaml")
    if flags["analyze"]:
        _analyze_run(run, flags, options, quiet=quiet, as_json=as_json)
        return
    request = read_request(run, flags)
    document = request.recipe
    if out is not None and any(Path(one.model).resolve() == Path(out).resolve() for one in request.run):
        raise RecipeError(f"{out}: is a checkpoint of the run; choose another folder")
    if out is not None and not is_remote(out):
        claim_folder(Path(out), [Path(word) for word in run if not is_remote(word)])
    if flags["strategy"] == GREEDY and out is not None:
        if kind != OUTPUT_KINDS[CHECKPOINT]:
            raise RecipeError(
                "--strategy greedy writes a whole model; merge OUT/recipe.yaml with --as-delta or another kind"
            )
        _find_greedy(request, Path(out), flags, options, quiet=quiet, as_json=as_json)
        return
    if recipe_file is not None:
        say(write_recipe(check(document), recipe_file))
        return
    assert out is not None  # else nothing is merged
    carry_out(document, out, options, kind, quiet=quiet, as_json=as_json, explain=explain)


def _analyze_run(run: tuple[str, ...], flags: dict[str, Any], options: Options, *, quiet: bool, as_json: bool) -> None:
    from ramerge.analysis.command_output import check_outputs
    from ramerge.sdk.files import STANDARD_OUTPUT, write_texts
    from ramerge.sdk.progress import shown
    from ramerge.soups.recipe import read_request
    from ramerge.soups.straightness import lines_of, straightness

    if flags["base"] is None:
        raise RecipeError(
            "--analyze: task vectors are changes of a base; give the model that the run began with: --base"
        )
    page: Path | None = flags["html"]
    request = read_request(run, {**flags, "strategy": "relex"})
    check_outputs(
        {"as_json": as_json, "html": page, "json_file": None, "csv": None, "figures": None}, request.recipe, options
    )
    with shown(quiet=quiet or as_json) as listen:
        result = straightness(request.recipe, options, listen)
    warn(result.warnings)
    if as_json:
        click.echo(result.to_json(), nl=False)
    elif not quiet and page != STANDARD_OUTPUT:
        say(lines_of(result))
    if page is not None:
        from ramerge.soups.page import render

        write_texts([(page, render(result))])


def _find_greedy(
    request: SoupRequest, out: Path, flags: dict[str, Any], options: Options, *, quiet: bool, as_json: bool
) -> None:
    from ramerge.scoring.scores import objective_of
    from ramerge.sdk.progress import shown
    from ramerge.searches.folder import left_by_stop
    from ramerge.searches.search import scorer_of
    from ramerge.soups.greedy import failures_of, greedy_soup, lines_of

    if flags["score"] is None:
        raise RecipeError("--strategy greedy: needs --score to score soups")
    make_scorer, objective = (
        scorer_of(score_of(flags), flags["search_settings"].score_timeout),
        objective_of(flags["objective"]),
    )
    with shown(quiet=quiet or as_json) as listen:
        try:
            result = greedy_soup(
                request.recipe,
                request.run,
                request.checkpoints,
                out,
                make_scorer,
                objective,
                options=options,
                listen=listen,
                most_failures=flags["search_settings"].most_failures,
            )
        except StoppedError as stop:
            stop.kept = left_by_stop(out)
            raise
    warn(failures_of(result))
    if as_json:
        click.echo(result.to_json(), nl=False)
    elif not quiet:
        say(lines_of(result, out))
