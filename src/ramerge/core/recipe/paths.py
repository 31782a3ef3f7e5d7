"""Paths in recipes: the parts of a model's name, and how they are written for a recipe in another folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ramerge.core.methods.base import SIDE_INPUTS
from ramerge.core.recipe.document import Document
from ramerge.core.recipe.model import Agent, Recipe


class ModelPart(NamedTuple):
    """A model, or an adapter that is added to it, as written, and its path if it exists on this machine."""

    written: str
    path: Path | None = None


def parts_of(model: str, folder: Path) -> list[ModelPart]:
    """A model and the adapters added to it; relative paths start at `folder`."""
    with suppress(ValueError, RuntimeError, OSError):
        path = folder / Path(model).expanduser()
        if path.exists():
            return [ModelPart(model, path)]
        if "+" in model:
            return [part for name in model.split("+") for part in parts_of(name, folder)]
    return [ModelPart(model)]


def portable(recipe: Recipe, home: Path | None) -> Recipe:
    """The recipe with paths that are valid in a recipe's file in the folder `home`; None for any folder."""
    agents = {name: _portable(agent, recipe.folder, home) for name, agent in recipe.agents.items()}
    prompts = prompts_of(recipe, home)
    base = _spelled(recipe.base, recipe.folder, home)
    return recipe.model_copy(update={"base": base, "agents": agents, "prompts": prompts})


def prompts_of(recipe: Recipe, home: Path | None = None) -> dict[str, str]:
    """The prompts of a recipe, with paths as in `portable`."""
    return {name: _written(recipe.folder / Path(path).expanduser(), home) for name, path in recipe.prompts.items()}


def reads_of(document: Document) -> list[Path]:
    """All that a recipe reads on this machine: its own file, prompts, models and their side inputs.

    No output may replace any of it.
    """
    own = [Path(document.source)] if document.source is not None else []
    prompts = document.values.get("prompts")
    texts = [path for path in prompts.values() if isinstance(path, str)] if isinstance(prompts, Mapping) else []
    parts = [part for model in names_in(document.values) for part in parts_of(model, document.folder)]
    return [
        *own,
        *(document.folder / Path(path).expanduser() for path in texts),
        *(part.path for part in parts if part.path is not None),
    ]


def _portable(agent: Agent, folder: Path, home: Path | None) -> Agent:
    if agent.soup is not None:
        members = {name: _portable(one, folder, home) for name, one in agent.soup.agents.items()}
        return agent.model_copy(update={"soup": agent.soup.model_copy(update={"agents": members})})
    deltas = tuple(_spelled(part, folder, home) for part in agent.delta or ()) or None
    sides = {side.key: _spelled(getattr(agent, side.key), folder, home) for side in SIDE_INPUTS}
    return Agent(model=_spelled(agent.model, folder, home), delta=deltas, over=agent.over, **sides)


def _spelled(model: str | None, folder: Path, home: Path | None) -> Any:
    if model is None:
        return None
    return "+".join(_written(part.path, home) if part.path else part.written for part in parts_of(model, folder))


def _written(path: Path, home: Path | None) -> str:
    whole = path.resolve()
    if home is not None and whole.is_relative_to(home.resolve()):
        return f"./{whole.relative_to(home.resolve())}"
    return str(whole)


def names_in(values: Mapping[str, object]) -> Iterator[str]:
    """Everything that a recipe names models with, those of soups included, whether the recipe is right or wrong."""
    agents = values.get("agents")
    entries = list(agents.values()) if isinstance(agents, Mapping) else []
    for entry in [values.get("base"), *entries]:
        soup = entry.get("soup") if isinstance(entry, Mapping) else None
        if isinstance(soup, Mapping):
            yield from names_in({"agents": soup.get("agents")})
        named = entry.values() if isinstance(entry, Mapping) else [entry]
        for value in named:
            listed = value if isinstance(value, list | tuple) else [value]
            yield from (each for each in listed if isinstance(each, str))
