"""From a run and a strategy to a recipe that names every checkpoint and its step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramerge.flags.read import from_here
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.words import pairs, parse_scalar
from ramerge.methods.registry import METHODS
from ramerge.recipe.document import Document
from ramerge.soups.run import RunCheckpoint, agents_of, checkpoints_of, chosen


def recipe_of(run: Sequence[str], flags: Mapping[str, Any]) -> Document:
    """The recipe of a soup.

    Args:
        run: words that name the checkpoints, as for `run.checkpoints_of`.
        flags: of the command, by name: `strategy`, `settings`, `last`, `steps`, `base`, `dtype` and so on.

    Raises:
        RecipeError: the words make no sense together.
        CheckpointError: the run cannot be read.
    """
    found = checkpoints_of(run)
    taken = chosen(found, flags["last"], *_range(flags["steps"]))
    base = from_here(flags["base"]) if flags["base"] is not None else None
    document = Document({"method": flags["strategy"], "agents": agents_of(taken, found, base)})
    for key in ("base", "dtype", "rounding", "shard_size"):
        if flags[key] is not None:
            document.set((key,), base if key == "base" else flags[key], f"--{key.replace('_', '-')}")
    if parameters := _parameters(flags["strategy"], taken):
        document.set(("parameters",), parameters, "the run")
    for key, value in pairs("--set", flags["settings"], "KEY=VALUE, such as --set half_life=50"):
        path = ("parameters", *key.removeprefix("parameters.").split("."))
        document.set(path, parse_scalar(value), f"--set {key}={value}")
    return document


def _parameters(strategy: str, taken: Sequence[RunCheckpoint]) -> dict[str, Any]:
    if "steps" not in METHODS[strategy].parameters.model_fields:
        return {}
    return {"steps": {one.name: one.step for one in taken}}


def _range(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    if not colon or any(part and not part.isdecimal() for part in (first, last)):
        raise RecipeError(f"--steps {text}: must be A:B, such as 100:200, 100: or :200")
    return (int(first) if first else None), (int(last) if last else None)
