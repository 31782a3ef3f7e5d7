"""The options of commands whose work an executor does, and what they mean. Imports little: every start reads it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ramerge.foundation.errors import RecipeError
from ramerge.foundation.options import Decorator
from ramerge.foundation.terminal import warn

FRESH: Decorator = click.option(
    "--fresh", is_flag=True, help="Begin anew, even if a run that was stopped could be continued."
)
EXECUTOR: tuple[Decorator, ...] = (
    click.option(
        "--executor",
        type=click.Choice(["threads", "ranks", "ray"]),
        default="threads",
        help="What does the work: the threads of this process, the default; all ranks of torchrun, srun or mpirun; or "
        "the nodes of a Ray cluster.",
    ),
    click.option(
        "--rank-timeout",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="With ranks: after so long without a sign of life another rank is lost; default: 60.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="With ray: the cluster, or auto for that of this machine; default: as `ray.init` finds it, or a new one.",
    ),
    click.option(
        "--ray-init",
        "ray_init",
        metavar="KEY=VALUE",
        multiple=True,
        help="With ray: a further keyword of `ray.init`, such as runtime_env.env_vars.NAME=1; repeatable.",
    ),
)


def leads(flags: Mapping[str, Any]) -> bool:
    """Whether this process speaks for all ranks. Warns if a launcher has started several that do not know of it.

    Raises:
        RecipeError: no launcher has given this process a rank.
    """
    from ramerge.engine.ranks import advice, rank_of

    if flags["executor"] == "ranks":
        return rank_of(os.environ).number == 0
    warn(filter(None, [advice(os.environ)]))
    return True


def carrying(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a function whose work an executor does.

    Raises:
        RecipeError: `--ray-init` is not of its form, or another executor is chosen.
    """
    chosen = {key: flags[key] for key in ("fresh", "executor", "rank_timeout") if key in flags}
    return chosen | {"ray_init": _read_ray_init(flags["executor"], flags["address"], flags["ray_init"])}


def _read_ray_init(executor: str, address: str | None, texts: Iterable[str]) -> dict[str, Any]:
    """The keywords of `ray.init` that `--address` and `--ray-init KEY=VALUE` ask for; dots lead into mappings.

    Raises:
        RecipeError: not of that form, or another executor is chosen.
    """
    from ramerge.foundation.yamltext import parse_scalar
    from ramerge.recipe.words import pairs

    made: dict[str, Any] = {} if address is None else {"address": address}
    in_variables = "runtime_env.env_vars."  # these are text, whatever they look like
    for key, text in pairs("--ray-init", texts, "KEY=VALUE, such as --ray-init runtime_env.env_vars.NAME=1"):
        *folders, name = (
            ["runtime_env", "env_vars", key[len(in_variables) :]] if key.startswith(in_variables) else key.split(".")
        )
        place = made
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                raise RecipeError(f"--ray-init {key}: {folder} is given as a value, too")
        place[name] = text if key.startswith(in_variables) else parse_scalar(text)
    if made and executor != "ray":
        raise RecipeError("--address and --ray-init: are only of use with --executor ray")
    return made
