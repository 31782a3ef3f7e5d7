"""The options of the commands that read a recipe, each defined once."""

from __future__ import annotations

import click

from ramerge.flags import completion as complete
from ramerge.foundation.completion import files, named_folders
from ramerge.foundation.options import (
    AGENT,
    BASE,
    DEBUG,
    QUIET,
    Decorator,
    as_json,
    option,
    run_options,
)

METHOD: Decorator = option(
    "method",
    "--method",
    metavar="NAME",
    shell_complete=complete.methods,
    help="A method that `ramerge methods` lists; default: the recipe's, or ram+.",
)
SET: Decorator = option(
    "method",
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=complete.keys,
    help="Override any key of the recipe, such as parameters.r=0.05; repeatable.",
)
PRESET: Decorator = option(
    "method",
    "--preset",
    metavar="NAME",
    shell_complete=complete.presets,
    help="A named set of parameters, such as paper, instead of the recipe's.",
)
IMPORTANCE: Decorator = option(
    "models",
    "--importance",
    "importances",
    metavar="NAME=MODEL",
    multiple=True,
    shell_complete=named_folders,
    help="An agent's importances, for the method fisher; repeat for each.",
)
DTYPE: Decorator = option(
    "output",
    "--dtype",
    metavar="DTYPE",
    shell_complete=complete.dtypes,
    help="Output dtype, such as bfloat16; default: each base tensor's own.",
)
ROUNDING: Decorator = option(
    "output",
    "--rounding",
    metavar="HOW",
    shell_complete=complete.roundings,
    help="How results are rounded to the output's dtype: nearest, the default, or stochastic.",
)
SHARD_SIZE: Decorator = option(
    "output", "--shard-size", metavar="SIZE", help="Size of output shards, such as 5GB; default: the base's."
)
AS_DELTA: Decorator = option(
    "output", "--as-delta", is_flag=True, help="Write only what changes of the base; `ramerge apply` gives the model."
)
TALK: tuple[Decorator, ...] = (QUIET, DEBUG)

MODELS: tuple[Decorator, ...] = (BASE, AGENT, SET)
"""What says which models, for commands that need no method."""
KEYS: tuple[Decorator, ...] = (METHOD, *MODELS, IMPORTANCE, PRESET, DTYPE, ROUNDING, SHARD_SIZE)
"""What says everything that a recipe can."""
RECIPE: tuple[Decorator, ...] = (
    click.argument("paths", nargs=-1, metavar="[RECIPE] [OUT]", shell_complete=files),
    *KEYS,
    as_json("the result"),
    *TALK,
)
LIMITS = ("threads", "max_memory", "allow_outside_links", "strict")
"""Fields of `Options` that every command takes that reads models."""
MERGE: Decorator = run_options(*LIMITS, "cache", "overwrite", "fresh", "upload", "ray")
