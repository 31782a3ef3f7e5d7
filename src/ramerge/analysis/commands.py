"""The commands `analyze`, `recommend` and `report`. They hold no logic, and import when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge.cli.options import DTYPE, PROMPTS, ROUNDING, TALK, as_json
from ramerge.cli.terminal import reminder, warn_of_launcher
from ramerge.sdk.commands import (
    LIMITS,
    MODELS,
    OUT,
    PATH,
    command,
    option,
    options,
    printing,
    run_options,
    say,
    warn,
)

if TYPE_CHECKING:
    from ramerge import Options

_RECIPE = click.argument("paths", nargs=-1, metavar="[RECIPE]", type=click.Path())
_FILES = (
    option("output", "--html", type=PATH, help="Write an HTML page with charts to a file; -: print it."),
    option("output", "--figures", type=PATH, help="Write the charts to a folder, as PNG and SVG."),
    option("output", "--json-file", type=PATH, help="Write all numbers to a JSON file."),
    option("output", "--csv", type=PATH, help="Write all numbers to a folder, as tables."),
    as_json("all numbers"),
)


@command(short_help="Show what RL changed in the agents.")
@options(_RECIPE)
@option(
    "method",
    "--method",
    metavar="NAME",
    help="Method, as listed by `ramerge methods`; default: the recipe's, or ram+. Setting it drops the recipe's "
    "parameters.",
)
@options(*MODELS, DTYPE, ROUNDING)
@option(
    "method",
    "--epsilons",
    metavar="E,E,...",
    help="Thresholds at which to compare the agents' densities; default: 1e-4,1e-5,1e-6,0.",
)
@options(*_FILES, *TALK, run_options(*LIMITS, "cache", "ray", "overwrite"))
def analyze(paths: tuple[str, ...], epsilons: str | None, quiet: bool, options: Options, **flags: Any) -> None:
    """Show what RL changed: sparsity, overlap and angles of updates, and what a merge would keep.

    With --base, you can give the folder of a single agent in place of a recipe.
    """
    from ramerge.analysis.analyze import EPSILONS
    from ramerge.analysis.analyze import analyze as run
    from ramerge.analysis.command_output import (
        advice,
        check_outputs,
        output_lines,
        prints,
        read_numbers,
        say_afterwards,
        write_outputs,
    )
    from ramerge.analysis.text import summary
    from ramerge.sdk.progress import shown
    from ramerge.sdk.recipes import recipe_of_words

    document = recipe_of_words(paths, flags)
    check_outputs(flags, document, options)
    epsilon_values = read_numbers("--epsilons", epsilons) if epsilons is not None else EPSILONS
    warn_of_launcher()
    with shown(quiet=quiet) as listen:
        analysis = run(document, epsilons=epsilon_values, options=options, on_progress=listen)
    warn(analysis.warnings)
    is_verbose = not quiet and not prints(flags)
    with (
        say_afterwards([*summary(analysis), *reminder(analysis.warnings)] if is_verbose else []),
        shown(quiet=quiet) as listen,
    ):
        lines = advice(analysis, document, options) if flags["html"] is not None else []
        write_outputs(analysis, flags, listen, recipe="\n".join(document.text) or None, advice=lines)
    if is_verbose:
        say(output_lines(flags))


@command(short_help="Name the method to try first.")
@options(_RECIPE, *MODELS, PROMPTS, DTYPE)
@options(printing("the recommendation"), run_options(*LIMITS, "cache", "ray"))
def recommend(paths: tuple[str, ...], quiet: bool, as_json: bool, options: Options, **flags: Any) -> None:
    """Name the method to try first, show why, and print the command for a search, which chooses better.

    No method is best for all agents. With --prompts of each agent's task, a few merges are compared by the likelihood
    of the agents' own replies. Statistics and replies are kept in the user's cache.
    """
    from ramerge.analysis.analyze import analyze as run
    from ramerge.analysis.recommend import check_prompts, notes_on_keys, recommend_for_recipe, warnings_for
    from ramerge.sdk.progress import shown
    from ramerge.sdk.recipes import open_recipe, recipe_of_words

    document = open_recipe(recipe_of_words(paths, flags), options)
    check_prompts(document, options)
    with shown(quiet=quiet or as_json) as listen:
        analysis = run(document, options=options, on_progress=listen)
        advice = recommend_for_recipe(analysis, document, options, listen)
    warn([*warnings_for(analysis, advice.method), *notes_on_keys(document), *advice.notes])
    if as_json:
        click.echo(advice.to_json(), nl=False)
    else:
        say(advice.lines)


@command(short_help="Make an HTML page about a finished merge.", context_settings={"allow_extra_args": True})
@options(OUT, *_FILES, *TALK, run_options(*LIMITS, "cache", "overwrite"))
def report(out: Path, quiet: bool, options: Options, **flags: object) -> None:
    """Write an HTML page (default: OUT/report.html) with the analysis and the record of the finished merge at OUT."""
    from ramerge.analysis.analyze import analyze as run
    from ramerge.analysis.command_output import (
        advice,
        check_outputs,
        output_lines,
        prints,
        say_afterwards,
        write_outputs,
    )
    from ramerge.analysis.finished import add_difference_notes, open_merge
    from ramerge.analysis.text import summary
    from ramerge.sdk.progress import shown
    from ramerge.sdk.recipes import open_recipe

    if more := click.get_current_context().args:
        page = next((word for word in more if word.endswith((".html", ".htm"))), "FILE")
        raise click.UsageError(
            f"got {more[0]} next to {out}: name one merge; a page is written to another file with --html {page}"
        )
    recipe, record = open_merge(out)
    all_flags = flags | {"html": flags["html"] or out / "report.html"}
    document = open_recipe(recipe, options)
    check_outputs(all_flags, document, options)
    with shown(quiet=quiet) as listen:
        analysis = add_difference_notes(run(recipe, options=options, on_progress=listen), record)
    warn(analysis.warnings)
    is_verbose = not quiet and not prints(all_flags)
    is_other = analysis.method != record.method
    whose = f"; figures of a merge are those of {analysis.method}, not of {record.method}" if is_other else ""
    head = f"{out}: merged by {record.method}. What training changed in its agents{whose}:"
    with say_afterwards([head, *summary(analysis)] if is_verbose else []), shown(quiet=quiet) as listen:
        lines = advice(analysis, document, options)
        text = recipe.read_text(encoding="utf-8")
        write_outputs(analysis, all_flags, listen, record=record.to_dict(), recipe=text, advice=lines)
    if is_verbose:
        say(output_lines(all_flags))
