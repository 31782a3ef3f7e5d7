"""Paths in recipes: the parts of a model's name, and paths rewritten for a recipe in another folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ramerge.core.methods.base import SIDE_INPUTS
from ramerge.core.recipe.document import Document
from ramerge.core.recipe.model import Agent, Recipe
from ramerge.core.storage.location import PathStyle


class ModelPart(NamedTuple):
    """A model, or an adapter on top of it: the text in the recipe, and its path if it exists on this machine."""

    written: str
    path: Path | None = None


def parts_of(model: str, folder: Path) -> list[ModelPart]:
    """Split `MODEL+ADAPTER` into the model and its adapters; relative paths start at `folder`."""
    with suppress(ValueError, RuntimeError, OSError):
        path = folder / Path(model).expanduser()
        if path.exists():
            return [ModelPart(model, path)]
        if "+" in model:
            return [part for name in model.split("+") for part in parts_of(name, folder)]
    return [ModelPart(model)]


def portable(recipe: Recipe, home: Path | None) -> Recipe:
    """The recipe with paths that are valid for a recipe file in the folder `home`; None for any folder."""
    paths = PathStyle(home)
    agents = {name: _make_portable(agent, recipe.folder, paths) for name, agent in recipe.agents.items()}
    base = _path_text(recipe.base, recipe.folder, paths)
    return recipe.model_copy(update={"base": base, "agents": agents, "prompts": prompts_of(recipe, paths)})


def prompts_of(recipe: Recipe, paths: PathStyle) -> dict[str, str]:
    """The prompts of a recipe, with paths in the form of `paths`."""
    return {name: paths.of(recipe.folder / Path(path).expanduser()) for name, path in recipe.prompts.items()}


def as_relative(model: str, folder: Path, paths: PathStyle) -> str:
    """The text of a model; replaces only absolute paths, and paths that a published file must not show."""
    names = [
        paths.of(part.path)
        if part.path and (paths.names_only or Path(part.written).expanduser().is_absolute())
        else part.written
        for part in parts_of(model, folder)
    ]
    return "+".join(names)


def reads_of(document: Document) -> list[Path]:
    """All local files and folders that a recipe reads: its own file, prompts, models and their side inputs.

    No output may replace any of them.
    """
    own = [Path(document.source)] if document.source is not None else []
    texts = [path for path in document.prompts.values() if isinstance(path, str)]
    parts = [part for model in names_in(document) for part in parts_of(model, document.folder)]
    return [
        *own,
        *(document.folder / Path(path).expanduser() for path in texts),
        *(part.path for part in parts if part.path is not None),
    ]


def _make_portable(agent: Agent, folder: Path, paths: PathStyle) -> Agent:
    sides: dict[str, Any] = {side.key: _path_text(getattr(agent, side.key), folder, paths) for side in SIDE_INPUTS}
    if agent.soup is not None:
        members = {name: _make_portable(one, folder, paths) for name, one in agent.soup.agents.items()}
        return agent.model_copy(update={"soup": agent.soup.model_copy(update={"agents": members}), **sides})
    deltas = tuple(_path_text(part, folder, paths) for part in agent.delta or ()) or None
    return Agent(model=_path_text(agent.model, folder, paths), delta=deltas, over=agent.over, **sides)


def _path_text(model: str | None, folder: Path, paths: PathStyle) -> Any:
    """The text of a model, with the paths of its parts in the form of `paths`."""
    if model is None:
        return None
    return "+".join(paths.of(part.path) if part.path else part.written for part in parts_of(model, folder))


def names_in(document: Document) -> Iterator[str]:
    """All names of models in a recipe, including those in soups, even if the recipe is invalid."""
    for entry in [document.stated("base"), *document.agents.values()]:
        soup = entry.get("soup") if isinstance(entry, Mapping) else None
        if isinstance(soup, Mapping):
            yield from names_in(Document({"agents": soup.get("agents")}))
        values = entry.values() if isinstance(entry, Mapping) else [entry]
        for value in values:
            entries = value if isinstance(value, list | tuple) else [value]
            yield from (each for each in entries if isinstance(each, str))
