"""Relative paths in recipes: at which folder they start, and where else a model would be found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge.recipe.document import Document
from ramerge.recipe.model import Agent, Recipe


def parts_of(model: str, folder: Path) -> list[Path | str]:
    """A model and the adapters added to it, each as a path if it exists under `folder`, otherwise as written."""
    try:
        path = folder / Path(model).expanduser()
        if path.exists():
            return [path]
    except (ValueError, RuntimeError, OSError):
        return [model]
    return [part for name in model.split("+") for part in parts_of(name, folder)] if "+" in model else [model]


def is_under(model: str, folder: Path) -> bool:
    """Whether a model, or one of the parts that are added up, exists under a folder."""
    return any(isinstance(part, Path) for part in parts_of(model, folder))


def choose_folder(document: Document, models: Sequence[str]) -> tuple[Path, str | None]:
    """The folder at which paths of a recipe in mergekit's form start, and a note if there was a choice.

    mergekit starts at the working directory, and recipes are often kept next to their models or in a folder of their
    own there. All paths start at the same folder: the first of these under which most of the models exist.
    """
    if document.source is None:
        return document.folder, None
    folders = [Path(), document.folder, document.folder.absolute().parent]
    relative = [model for model in models if not Path(model).is_absolute()]
    counts = [sum(is_under(model, folder) for model in relative) for folder in folders]
    chosen = folders[counts.index(max(counts))]
    here, start = Path().resolve(), chosen.resolve()
    if not any(counts) or here == start == document.folder.resolve():
        return chosen, None
    why = "as in mergekit" if here == start else f"because fewer of the models are under {here}"
    return chosen, f"relative paths start at {start}, {why}"


def portable(recipe: Recipe, home: Path | None) -> Recipe:
    """The recipe with paths that are valid in a recipe's file in the folder `home`; None for any folder."""
    agents = {name: _portable(agent, recipe.folder, home) for name, agent in recipe.agents.items()}
    return recipe.model_copy(update={"base": _spelled(recipe.base, recipe.folder, home), "agents": agents})


def _portable(agent: Agent, folder: Path, home: Path | None) -> Agent:
    if agent.soup is not None:
        members = {name: _portable(one, folder, home) for name, one in agent.soup.agents.items()}
        return agent.model_copy(update={"soup": agent.soup.model_copy(update={"agents": members})})
    deltas = tuple(_spelled(part, folder, home) for part in agent.delta or ()) or None
    model, importance = (_spelled(part, folder, home) for part in (agent.model, agent.importance))
    return Agent(model=model, delta=deltas, over=agent.over, importance=importance)


def _spelled(model: str | None, folder: Path, home: Path | None) -> Any:
    if model is None:
        return None
    return "+".join(_written(part, home) if isinstance(part, Path) else part for part in parts_of(model, folder))


def _written(path: Path, home: Path | None) -> str:
    whole = path.resolve()
    if home is not None and whole.is_relative_to(home.resolve()):
        return f"./{whole.relative_to(home.resolve())}"
    return str(whole)


def names_in(values: Mapping[str, Any]) -> Iterator[str]:
    """Everything that a recipe names models with, whether the recipe is right or wrong."""
    agents = values.get("agents")
    entries = list(agents.values()) if isinstance(agents, Mapping) else []
    for entry in [values.get("base"), *entries]:
        named = entry.values() if isinstance(entry, Mapping) else [entry]
        for value in named:
            listed = value if isinstance(value, list | tuple) else [value]
            yield from (each for each in listed if isinstance(each, str))
