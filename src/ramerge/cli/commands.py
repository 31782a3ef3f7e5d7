"""The commands of the core: one function for each command, without logic.

The engine is imported inside the functions, because importing numba and pydantic is too slow for `--version` and
`--help`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge.cli import texts
from ramerge.flags.options import (
    AS_DELTA,
    DTYPE,
    LIMITS,
    MERGE,
    METHOD,
    MODELS,
    PAGES,
    RECIPE,
    ROUNDING,
    SHARD_SIZE,
    TALK,
)
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.launchers import warn_of_launcher
from ramerge.foundation.options import BASE, DEBUG, OUT, PATH, as_json, command, option, options, run_options
from ramerge.foundation.terminal import fail, reminder, say, warn

if TYPE_CHECKING:
    from ramerge.analysis.recommend import Recommendation
    from ramerge.analysis.results import Analysis
    from ramerge.foundation.progress import Listener
    from ramerge.options import Options
    from ramerge.recipe.document import Document


@command(short_help="Merge agents into a checkpoint.")
@options(*RECIPE, AS_DELTA, MERGE)
def merge(paths: tuple[str, ...], quiet: bool, as_json: bool, as_delta: bool, options: Options, **flags: Any) -> None:
    """Merge agents into a checkpoint at OUT, which appears complete or not at all.

    OUT is a folder, one in a bucket (s3://bucket/folder, gs://, az://), or a repository of the hub (hub:owner/name or
    hub:owner/name@branch).
    """
    from ramerge.api import plan as make
    from ramerge.flags.read import read_inputs
    from ramerge.foundation.progress import shown

    document, out = read_inputs(paths, flags)
    if out is None:
        raise RecipeError("no output folder: use ramerge merge RECIPE OUT, or ramerge merge --base ... --agent ... OUT")

    warn_of_launcher()
    made = make(document, out, as_delta=as_delta, options=options)
    warn(made.warnings)  # before the work, so that it can be stopped
    with shown(quiet=quiet or as_json) as listen:
        record = made.merge(on_progress=listen)
    warn(warning for warning in record.warnings if warning not in made.warnings)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        say([*texts.summary(record, getattr(made.out, "result", out)), *reminder(record.warnings)])


@command(short_help="Merge with many parameters at once.")
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
    paths: tuple[str, ...], quiet: bool, as_json: bool, vary: tuple[str, ...], options: Options, **flags: Any
) -> None:
    """Merge with every combination of parameters into folders under OUT, reading the inputs once for all of them."""
    from ramerge.api import sweep as run
    from ramerge.flags.read import read_inputs
    from ramerge.foundation.jsontext import dumped
    from ramerge.foundation.progress import shown
    from ramerge.foundation.words import read_varied

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
        say([*texts.points(records, out), *reminder(warnings)])


@command(short_help="Show what a merge would do, and what would make it fail.")
@options(*RECIPE, AS_DELTA, run_options(*LIMITS, "cache", "overwrite", "upload"))
@option(
    "output",
    "--write-recipe",
    "recipe_file",
    metavar="FILE",
    type=PATH,
    help="Write what recipe and flags say to a new file, as a recipe in ramerge's own form; -: print it.",
)
def plan(
    paths: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    as_delta: bool,
    recipe_file: Path | None,
    options: Options,
    **flags: Any,
) -> None:
    """Show what a merge would read, write and need, and everything that would make it fail.

    The folder of a single model of any format may be given in place of a recipe. Reads headers only. Without the
    extra `remote`, models of the hub that are not in its cache are downloaded first.
    """
    from ramerge.api import plan as make
    from ramerge.flags.read import read_inputs, write_recipe
    from ramerge.foundation.files import STANDARD_OUTPUT
    from ramerge.foundation.jsontext import dumped

    if as_json and recipe_file == STANDARD_OUTPUT:
        raise click.UsageError("--json and --write-recipe - both print; give --write-recipe a file")
    document, out = read_inputs(paths, flags, or_model=True)
    made = make(document, out, as_delta=as_delta, options=options)
    if recipe_file is not None:
        write_recipe(made.recipe, recipe_file)
    warn(made.details.doubts)
    if as_json:
        click.echo(dumped(made.to_dict()), nl=False)
    elif not quiet and recipe_file != STANDARD_OUTPUT:
        say(made.explain().split("\n"))
    if made.details.objections:
        raise click.exceptions.Exit(fail(made.details.objections, 2))


@command(short_help="Write a model of any format as safetensors.")
@click.argument("model", metavar="MODEL", type=click.Path())
@click.argument("out", metavar="OUT", type=click.Path())
@options(BASE, DTYPE, ROUNDING, SHARD_SIZE, as_json("the record"), *TALK, MERGE)
def convert(model: str, out: str, quiet: bool, as_json: bool, options: Options, **flags: Any) -> None:
    """Write MODEL as plain safetensors to OUT, block by block, in its own dtypes, in those of --base or in --dtype.

    MODEL is a folder or hub id: FSDP shards of verl, torch.distributed checkpoints, an adapter (with --base), quantized
    weights, or any other format that merging reads. --base names the model that an adapter changes; for other models it
    gives names, dtypes and files of the output.
    """
    from ramerge.api import plan as make
    from ramerge.flags.read import read_model
    from ramerge.foundation.progress import shown

    warn_of_launcher()
    made = make(read_model(model, flags), out, options=options)
    with shown(quiet=quiet or as_json) as listen:
        record = made.merge(on_progress=listen)
    warn(record.warnings)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        say([*texts.summary(record, getattr(made.out, "result", out)), *reminder(record.warnings)])


@command(short_help="Show what RL changed in the agents.")
@options(click.argument("paths", nargs=-1, metavar="[RECIPE]"), METHOD, *MODELS, DTYPE, ROUNDING)
@option(
    "method", "--epsilons", metavar="E,E,...", help="Thresholds of the density to compare; default: 1e-4,1e-5,1e-6,0."
)
@options(*PAGES, *TALK, run_options(*LIMITS, "cache", "ray"))
def analyze(paths: tuple[str, ...], epsilons: str | None, quiet: bool, options: Options, **flags: Any) -> None:
    """Show what RL changed: sparsity, overlap and angles of the agents, and how much of them merges would keep.

    With --base, the folder of a single agent of any format may be given in place of a recipe.
    """
    from ramerge.analysis.analyze import EPSILONS
    from ramerge.analysis.analyze import analyze as run
    from ramerge.analysis.text import summary
    from ramerge.flags.read import read_numbers, read_recipe
    from ramerge.foundation.progress import shown

    document = read_recipe(paths, flags)
    _check_pages(flags, _models(document))
    asked = read_numbers("--epsilons", epsilons) if epsilons else EPSILONS
    warn_of_launcher()
    with shown(quiet=quiet) as listen:
        analysis = run(document, epsilons=asked, options=options, on_progress=listen)
    warn(analysis.warnings)
    if not quiet and not _prints(flags):
        say([*summary(analysis), *reminder(analysis.warnings)])
    with shown(quiet=quiet) as listen:
        advice = _advice(analysis, paths, flags, document) if flags["html"] is not None else []
        _write_pages(analysis, None, "\n".join(document.text) or None, flags, listen, advice)


@command(short_help="Say which merge to try first.")
@options(click.argument("paths", nargs=-1, metavar="[RECIPE]"), *MODELS, DTYPE)
@options(as_json("the recommendation"), *TALK, run_options(*LIMITS, "cache", "ray"))
def recommend(paths: tuple[str, ...], quiet: bool, as_json: bool, options: Options, **flags: Any) -> None:
    """Say which method and parameters to try first with these agents, from what `analyze` counts.

    The rule comes from merges of tiny agents. The answer says why, how often the rule was wrong there,
    and what is not known. Compare with others on your own tasks, with `ramerge search`.
    """
    from ramerge.analysis.analyze import analyze as run
    from ramerge.analysis.recommend import recommend as chosen
    from ramerge.analysis.recommend import warnings_for
    from ramerge.flags.read import read_recipe
    from ramerge.foundation.progress import shown
    from ramerge.planning.inputs import tensors_of_base
    from ramerge.recipe.read import open_recipe

    written = read_recipe(paths, flags)
    document = open_recipe(written, tensors_of_base)
    with shown(quiet=quiet or as_json) as listen:
        analysis = run(document, options=options, on_progress=listen)
    found = chosen(analysis)
    warn(warnings_for(analysis, found.method))
    if as_json:
        click.echo(found.to_json(), nl=False)
    elif not quiet:
        say(_recommended(found, paths, flags, written, document))


def _recommended(
    found: Recommendation, paths: Sequence[str], flags: Mapping[str, Any], written: Document, document: Document
) -> list[str]:
    """The lines of a recommendation, with commands that name the inputs as these words do."""
    from ramerge.analysis.recommend import summary
    from ramerge.flags.read import named_inputs
    from ramerge.recipe.mergekit.translate import is_mergekit

    inputs, left_out = named_inputs(paths, flags, document, translated=is_mergekit(written.values))
    return summary(found, inputs, left_out)


@command(short_help="Make an HTML page of a finished merge.")
@options(OUT, *PAGES, *TALK, run_options(*LIMITS, "cache"))
def report(out: Path, quiet: bool, options: Options, **flags: Any) -> None:
    """Write a page as `analyze --html` does for a finished merge at OUT, with its record. Default: OUT/report.html."""
    from ramerge.analysis.analyze import analyze as run
    from ramerge.analysis.finished import open_finished, with_differences
    from ramerge.analysis.text import summary
    from ramerge.foundation.progress import shown
    from ramerge.recipe.read import open_recipe

    recipe, record = open_finished(out)
    chosen = flags | {"html": flags["html"] or out / "report.html"}
    _check_pages(chosen)
    with shown(quiet=quiet) as listen:
        analysis = with_differences(run(recipe, options=options, on_progress=listen), record)
    warn(analysis.warnings)
    speaks = not quiet and not _prints(chosen)
    if speaks:
        say(summary(analysis))
    with shown(quiet=quiet) as listen:
        named = dict.fromkeys(("base", "dtype")) | {"agents": (), "settings": ()}
        advice = _advice(analysis, [str(recipe)], named, open_recipe(recipe))
        _write_pages(analysis, record.to_dict(), recipe.read_text(encoding="utf-8"), chosen, listen, advice)
    if speaks:
        say(str(chosen["html"]))


def _advice(analysis: Analysis, paths: Sequence[str], flags: Mapping[str, Any], written: Document) -> list[str]:
    """What `recommend` says of these agents, for the page; nothing of a single one."""
    from ramerge.analysis.recommend import recommend
    from ramerge.planning.inputs import tensors_of_base
    from ramerge.recipe.read import open_recipe

    if len(analysis.model.agents) < 2:
        return []
    return _recommended(recommend(analysis), paths, flags, written, open_recipe(written, tensors_of_base))


def _models(document: Document) -> list[Path]:
    """Folders of models on this machine that a recipe names; other names lead nowhere here."""
    agents = document.values.get("agents")
    values = [document.values.get("base"), *(agents.values() if isinstance(agents, Mapping) else ())]
    texts = [value.get("model") if isinstance(value, Mapping) else value for value in values]
    return [folder for text in texts if isinstance(text, str) and (folder := document.folder / text).is_dir()]


def _check_pages(flags: dict[str, Any], models: Sequence[Path] = ()) -> None:
    """Refuse what could not be written, before the inputs are read, and what would be written into a model."""
    from ramerge.foundation.files import STANDARD_OUTPUT, check_outputs

    if flags["as_json"] and flags["html"] == STANDARD_OUTPUT:
        raise RecipeError("--json and --html - both print; give --html a file")
    texts, tables = {"--html": "html", "--json-file": "json_file"}, {"--csv": "csv", "--figures": "figures"}
    named = [{flag: flags[key] for flag, key in some.items() if flags[key] is not None} for some in (texts, tables)]
    check_outputs(*named)
    for path in (path for some in named for path in some.values()):
        for model in models:
            if path != STANDARD_OUTPUT and path.resolve().is_relative_to(model.resolve()):
                raise RecipeError(f"{path}: is inside a model that is read; choose another place")
    if flags["html"] is not None or flags["figures"] is not None:
        from ramerge.analysis.report.write import require_extra

        require_extra()


def _prints(flags: dict[str, Any]) -> bool:
    """Whether a page or numbers take the place of lines for people."""
    from ramerge.foundation.files import STANDARD_OUTPUT

    return bool(flags["as_json"]) or flags["html"] == STANDARD_OUTPUT


def _write_pages(
    analysis: Analysis,
    record: dict[str, Any] | None,
    recipe: str | None,
    flags: dict[str, Any],
    listen: Listener,
    advice: Sequence[str],
) -> None:
    """Write the files that the flags ask for, all of them or none; then print the numbers if they are asked for."""
    from ramerge.analysis.tables import csv_files
    from ramerge.foundation.files import write_texts

    texts: list[tuple[Path, str | bytes]] = []
    if flags["json_file"] is not None:
        texts.append((flags["json_file"], analysis.to_json()))
    if flags["csv"] is not None:
        texts += csv_files(analysis.tables(), flags["csv"])
    if flags["html"] is not None or flags["figures"] is not None:
        from ramerge.analysis.report.write import figure_files, render

        values = analysis.to_dict()
        if flags["html"] is not None:
            texts.append((flags["html"], render(values, record, recipe, listen, advice)))
        if flags["figures"] is not None:
            texts += figure_files(values, flags["figures"], listen)
    write_texts(texts)
    if flags["as_json"]:
        click.echo(analysis.to_json(), nl=False)


@command(short_help="List the merging methods, or describe some.")
@click.argument("names", nargs=-1, metavar="[METHOD]...")
@as_json("them")
def methods(names: tuple[str, ...], as_json: bool) -> None:
    """List the merging methods, or describe those named: formula, parameters, defaults, presets and source."""
    from ramerge.foundation.text import unknown
    from ramerge.methods.registry import METHODS, describe, listed, reads_of

    if wrong := [name for name in names if name not in METHODS]:
        raise RecipeError([unknown("method", name, list(METHODS)) for name in wrong])
    chosen = {name: METHODS[name] for name in names} if names else listed()
    described = {name: describe(method) for name, method in chosen.items()}
    if as_json:
        click.echo(json.dumps(described, indent=2))
    elif names:
        texts.methods(described)
    else:
        click.echo(f"{'method':<16} reads  what it is")
        for name, method in described.items():
            click.echo(f"{name:<16}{reads_of(method):>6}  {method['title']}")
        click.echo("\nreads: of all inputs, with default parameters; 1 or 3: 1 if a sample shows what must be counted")
        click.echo("`ramerge methods ram+` shows formula, parameters, presets and source of a method.")


@command(short_help="Merge and score three tiny agents.")
@option(
    "output",
    "--out",
    type=PATH,
    help="Keep the merged checkpoints in this folder, as ram and ram+; these two are replaced if they are there.",
)
@option(
    "output",
    "--models",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Only copy the tiny models to this folder, as base, coder (adds), tool (reverses) and memory (sorts).",
)
@DEBUG
def demo(out: Path | None, models: Path | None) -> None:
    """Merge three tiny RL-trained agents that come with the package, and score the result."""
    from ramerge.demo.run import copy_models, run

    if out is not None and models is not None:
        raise click.UsageError("--models only copies the models; leave out --out")

    def tell(text: str) -> None:
        say(text.split("\n"))

    if models is not None:
        copy_models(models, tell)
    else:
        run(out, tell)


@command(short_help="Remove what stopped runs have left.")
@click.argument("outs", metavar="OUT...", nargs=-1, required=True)
@options(DEBUG, run_options("upload"))
def clean(outs: tuple[str, ...], options: Options) -> None:
    """Remove what interrupted merges to OUT have left alongside it. OUT itself stays as it is.

    An interrupted merge leaves a hidden folder, from which the same command resumes. If OUT is remote, the hidden
    folder is on this machine, and the files that were uploaded are removed, too.
    """
    from ramerge.api import clean as run

    for out in outs:
        say(run(out, staging_dir=options.upload.staging_dir) or f"{out}: nothing is left of stopped runs")
