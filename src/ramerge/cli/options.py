"""The options of the commands that read a recipe, each defined once."""

from __future__ import annotations

import click

from ramerge.cli import completion as complete
from ramerge.foundation.completion import files, folders, named_folders
from ramerge.foundation.options import DEBUG, PATH, Decorator, as_json

AGENTS: tuple[Decorator, ...] = (
    click.option("--base", metavar="MODEL", shell_complete=folders, help="Folder or hub id of the base model."),
    click.option(
        "--agent",
        "agents",
        metavar="NAME=MODEL",
        multiple=True,
        shell_complete=named_folders,
        help="An agent: a name of your choice, and its folder or hub id; repeat for each.",
    ),
    click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        shell_complete=complete.keys,
        help="Override any key of the recipe, such as parameters.r=0.05; repeatable.",
    ),
)
_THREADS: tuple[Decorator, ...] = (
    click.option(
        "--threads", type=click.IntRange(1, 1024), help="Worker threads; default: one for each processor, and two more."
    ),
    click.option("--max-memory", metavar="SIZE", help="The most memory that the process may use, such as 2GB."),
)
_SPEECH: tuple[Decorator, ...] = (
    click.option("--strict", is_flag=True, help="Treat every warning as an error."),
    click.option("--quiet", is_flag=True, help="Show notes, warnings and errors only."),
    DEBUG,
)
LIMITS: tuple[Decorator, ...] = (*_THREADS, *_SPEECH)
MACHINE: tuple[Decorator, ...] = (
    *_THREADS,
    click.option(
        "--no-cache",
        "cache",
        flag_value=False,
        default=True,
        help="Do not use counts from the user's cache folder, and do not store counts there.",
    ),
    *_SPEECH,
)
MEET: Decorator = click.option(
    "--meet",
    metavar="FOLDER",
    shell_complete=folders,
    help="With ranks: a folder that all of them share, here or in a bucket.",
)
METHOD: Decorator = click.option(
    "--method",
    metavar="NAME",
    shell_complete=complete.methods,
    help="A method that `ramerge methods` lists; default: the recipe's, or ram+.",
)
DTYPE: Decorator = click.option(
    "--dtype",
    metavar="DTYPE",
    shell_complete=complete.dtypes,
    help="Output dtype, such as bfloat16; default: each base tensor's own.",
)
ROUNDING: Decorator = click.option(
    "--rounding",
    metavar="HOW",
    shell_complete=complete.roundings,
    help="How results are rounded to the output's dtype: nearest, the default, or stochastic.",
)
SHARD_SIZE: Decorator = click.option(
    "--shard-size", metavar="SIZE", help="Size of output shards, such as 5GB; default: the base's."
)
REPLACE: Decorator = click.option(
    "--overwrite",
    is_flag=True,
    help="Replace OUT and all that is in it, at the end; in a bucket, as soon as the first new file is ready.",
)
AS_DELTA: Decorator = click.option(
    "--as-delta", is_flag=True, help="Write only what changes of the base; `ramerge apply` gives the model."
)
RECIPE: tuple[Decorator, ...] = (
    click.argument("paths", nargs=-1, metavar="[RECIPE] [OUT]", shell_complete=files),
    METHOD,
    *AGENTS,
    click.option(
        "--importance",
        "importances",
        metavar="NAME=MODEL",
        multiple=True,
        shell_complete=named_folders,
        help="An agent's importances, for the method fisher; repeat for each.",
    ),
    click.option(
        "--preset",
        metavar="NAME",
        shell_complete=complete.presets,
        help="A named set of parameters, such as paper, instead of the recipe's.",
    ),
    DTYPE,
    ROUNDING,
    SHARD_SIZE,
    *MACHINE,
    REPLACE,
    as_json("the result"),
)


PAGES: tuple[Decorator, ...] = (
    click.option("--html", type=PATH, help="Write a page with all figures to a file; -: print it."),
    click.option("--figures", type=PATH, help="Write the figures to a folder, PNG and SVG."),
    click.option("--json", "json_file", type=PATH, help="Write all numbers to a JSON file; -: print them."),
    click.option("--csv", type=PATH, help="Write all numbers to a folder, as tables."),
)
