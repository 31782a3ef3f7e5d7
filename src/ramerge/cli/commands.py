"""The commands of the core: one function for each command, without logic.

The engine is imported inside the functions, because importing numba and pydantic is too slow for `--version` and
`--help`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramerge.cli.carry_out import carry_out
from ramerge.cli.options import (
    BASE,
    DEBUG,
    EXPLAIN,
    LIMITS,
    MERGE,
    RECIPE,
    ROUNDING,
    SHARD_SIZE,
    WRITE_RECIPE,
    as_json,
    as_kind,
    command,
    option,
    options,
    printing,
    run_options,
)
from ramerge.cli.terminal import fail, reminder, say, warn, warn_of_launcher
from ramerge.core.foundation.errors import RecipeError

if TYPE_CHECKING:
    from ramerge.core.engine.outputs import OutputKind
    from ramerge.core.options import Options


@command(short_help="Merge agents into a checkpoint.")
@options(*RECIPE, as_kind, EXPLAIN, MERGE)
def merge(
    paths: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    kind: OutputKind,
    explain: bool,
    options: Options,
    **flags: object,
) -> None:
    """Merge agents into a checkpoint at OUT, which appears only once it is complete.

    OUT is a folder, a folder in a bucket (s3://bucket/folder, gs://, az://), or a repository on the Hub
    (hub:owner/name or hub:owner/name@branch).
    """
    from ramerge.cli.flags.read import read_inputs

    document, out = read_inputs(paths, flags)
    if out is None:
        raise RecipeError("no output folder: use ramerge merge RECIPE OUT, or ramerge merge --base ... --agent ... OUT")
    carry_out(document, out, options, kind, quiet=quiet, as_json=as_json, explain=explain)


@command(short_help="Merge with several parameter values at once.")
@options(*RECIPE, MERGE)
@option(
    "method",
    "--vary",
    metavar="KEY=V,V,...",
    multiple=True,
    required=True,
    help="Values of a parameter, such as parameters.r=0,0.1,0.2; repeat for all combinations.",
)
def sweep(
    paths: tuple[str, ...], quiet: bool, as_json: bool, vary: tuple[str, ...], options: Options, **flags: object
) -> None:
    """Merge with every combination of parameters into folders under OUT, and read the inputs only once."""
    from ramerge.api import sweep as run
    from ramerge.cli.flags.read import read_inputs
    from ramerge.cli.progress import shown
    from ramerge.cli.summary import sweep_summary
    from ramerge.cli.words import read_varied
    from ramerge.core.foundation.jsontext import dumped

    document, out = read_inputs(paths, flags)
    if out is None:
        raise RecipeError("no output folder: ramerge sweep RECIPE OUT --vary parameters.r=0,0.1,0.2")
    warn_of_launcher()
    with shown(quiet=quiet or as_json) as listen:
        records = run(document, out, vary=read_varied(vary), options=options, on_progress=listen)
    warnings = [warning for record in records for warning in record.warnings]
    warn(warnings)
    if as_json:
        click.echo(dumped([record.to_dict() for record in records]), nl=False)
    elif not quiet:
        say([*sweep_summary(records, out), *reminder(warnings)])


@command(short_help="Show what a merge would do, and what would make it fail.")
@options(*RECIPE, as_kind, run_options(*LIMITS, "device", "cache", "overwrite", "upload"), WRITE_RECIPE)
def plan(
    paths: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    kind: OutputKind,
    recipe_file: Path | None,
    options: Options,
    **flags: object,
) -> None:
    """Show what a merge would read, write and need, and every problem that would make it fail.

    In place of a recipe, you can give the folder of a single model. Only file headers are read; if the method uses
    prompts, the agents also run. Without the extra `remote`, Hub models are downloaded first.
    """
    from ramerge.api import plan as make
    from ramerge.cli.flags.read import read_inputs
    from ramerge.cli.flags.write import write_recipe
    from ramerge.cli.progress import shown
    from ramerge.core.foundation.files import STANDARD_OUTPUT
    from ramerge.core.foundation.jsontext import dumped
    from ramerge.core.planning.explain import doubts, objections

    if as_json and recipe_file == STANDARD_OUTPUT:
        raise click.UsageError("--json and --write-recipe - both print; give --write-recipe a file")
    document, out = read_inputs(paths, flags, or_model=True)
    with shown(quiet=quiet or as_json) as listen:
        merge_plan = make(document, out, kind=kind, options=options, on_progress=listen)
    confirmation = write_recipe(merge_plan.recipe, recipe_file) if recipe_file is not None else []
    warn(doubts(merge_plan.details))
    if as_json:
        click.echo(dumped(merge_plan.to_dict()), nl=False)
    elif recipe_file != STANDARD_OUTPUT:
        say([*merge_plan.explain().split("\n"), *confirmation])
    if problems := objections(merge_plan.details):
        raise click.exceptions.Exit(fail(problems, 2))


@command(short_help="Convert a model of any format to safetensors.")
@click.argument("model", metavar="MODEL", type=click.Path())
@click.argument("out", metavar="OUT", type=click.Path())
@options(BASE)
@option(
    "output",
    "--dtype",
    metavar="DTYPE",
    help="Output dtype, such as bfloat16; default: each tensor's own, or with --base that of the base.",
)
@option(
    "output",
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key of a recipe, such as allow.extra_tensors=true or rename; repeatable.",
)
@options(ROUNDING, SHARD_SIZE, printing("the record"))
@options(run_options(*LIMITS, "cache", "overwrite", "fresh", "upload", "ray"))
def convert(model: str, out: str, quiet: bool, as_json: bool, options: Options, **flags: object) -> None:
    """Write MODEL as plain safetensors to OUT, in MODEL's own dtypes, those of --base, or --dtype.

    MODEL is a folder or Hub id in any format that ramerge reads: sharded (FSDP, torch.distributed), quantized, or an
    adapter with its --base. For a full model, --base gives the output's tensor names, dtypes and other files.
    """
    from ramerge.cli.flags.read import read_model

    carry_out(read_model(model, flags), out, options, quiet=quiet, as_json=as_json)


@command(short_help="List the merging methods, or describe some.")
@click.argument("names", nargs=-1, metavar="[METHOD]...")
@as_json("them")
def methods(names: tuple[str, ...], as_json: bool) -> None:
    """List the merging methods, or describe the given ones: formula, parameters, defaults, presets and source."""
    from ramerge.cli.summary import method_texts
    from ramerge.core.methods.registry import METHODS, describe, listed, unknown_method

    if wrong := [name for name in names if name not in METHODS]:
        raise RecipeError([unknown_method(name) for name in wrong])
    methods_by_name = {name: METHODS[name] for name in names} if names else listed()
    descriptions = {name: describe(method) for name, method in methods_by_name.items()}
    if as_json:
        click.echo(json.dumps(descriptions, indent=2))
    elif names:
        click.echo("\n".join(method_texts(descriptions)))
    else:
        click.echo(f"{'method':<16} reads  what it is")
        for name, method in descriptions.items():
            click.echo(f"{name:<16}{method['reads']:>6}  {method['title']}")
        click.echo("\nreads: of all inputs, with default parameters")
        click.echo("`ramerge methods ram+` shows formula, parameters, presets and source of a method.")


@command(short_help="Remove leftovers of interrupted runs.")
@click.argument("outs", metavar="OUT...", nargs=-1, required=True)
@options(DEBUG, run_options("upload.staging_dir"))
def clean(outs: tuple[str, ...], options: Options) -> None:
    """Remove leftovers of interrupted merges to OUT. OUT itself is not changed.

    An interrupted merge leaves a hidden folder next to OUT, from which the same command resumes. If OUT is remote, the
    hidden folder is on this machine, and files that the interrupted run uploaded are removed too.
    """
    from ramerge.api import clean as run
    from ramerge.core.foundation.files import no_such_folder
    from ramerge.core.storage.own_files import is_unfinished_search
    from ramerge.core.storage.schemes import is_remote

    nothing = "no leftovers of interrupted runs"
    for out in outs:
        lines = run(out, staging_dir=options.upload.staging_dir)
        if not is_remote(out) and is_unfinished_search(Path(out).expanduser()):
            lines += [
                f"{out}: holds a search or greedy soup that has not ended, and is kept: its command resumes it; to "
                "give it up, with all scores and replies so far, remove the folder"
            ]
        if lines:
            say(lines)
        elif is_remote(out) or Path(out).expanduser().exists():
            say(f"{out}: {nothing}")
        else:
            say(no_such_folder(Path(out), f", and {nothing}"))
