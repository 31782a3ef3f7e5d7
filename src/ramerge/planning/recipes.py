"""A recipe checked whole: its structure, its method, its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ramerge.errors import RecipeError
from ramerge.methods import METHODS, complete
from ramerge.recipe import Document, Recipe, check, describe, read_document, unknown

_MERGEKIT = (
    "this is a recipe of mergekit; here merge_method is method, base_model is base, and models are "
    "agents, a mapping of names to models"
)

AnyRecipe = Recipe | Mapping[str, Any] | str | Path | Document


def load_recipe(source: AnyRecipe) -> Recipe:
    """A checked recipe from a file, a mapping, a document, or a recipe.

    Raises:
        RecipeError: every problem of structure, method and parameters.
    """
    recipe: Recipe | None
    problems: list[str]
    if isinstance(source, Recipe):
        recipe, problems = source, []
        document = source.document if source.document.values else Document(source.model_dump())
    else:
        if isinstance(source, str | Path):
            source = read_document(Path(source))
        document = source if isinstance(source, Document) else Document(dict(source))
        if document.values.keys() & {"merge_method", "models", "slices"}:
            raise RecipeError(document.where((), _MERGEKIT))
        recipe, problems = check(document)
    problems += _method_problems(document)
    if recipe is None or problems:
        raise RecipeError(problems)
    return recipe


def _method_problems(document: Document) -> list[str]:
    """What is wrong with method, preset and parameters. Values of a wrong type were reported by the structure."""
    values = document.values
    name, preset, given = values.get("method"), values.get("preset"), values.get("parameters") or {}
    problems = []
    if not isinstance(name, str) or not isinstance(given, dict):
        return []
    if name not in METHODS:
        return [document.where(("method",), unknown("method", name, list(METHODS)))]
    method = METHODS[name]
    if isinstance(preset, str) and preset not in method.presets:
        problems.append(document.where(("preset",), unknown(f"preset of {name}", preset, list(method.presets))))
        preset = None
    fields = method.parameters.model_fields
    for key in given:
        if key not in fields:
            others = [other.name for other in METHODS.values() if key in other.parameters.model_fields]
            hint = f" ({key} belongs to {', '.join(others)})" if others else ""
            problems.append(
                document.where(("parameters", key), unknown(f"parameter of {name}", key, list(fields)) + hint)
            )
    kept = {key: value for key, value in given.items() if key in fields}
    try:
        method.parameters(**complete(method, preset, kept))
    except ValidationError as error:
        problems += describe(error, document, method.parameters, ("parameters",))
    agents, chosen = values.get("agents"), values.get("companions")
    if isinstance(agents, dict) and isinstance(chosen, str) and chosen not in agents and chosen != "base":
        problems.append(document.where(("companions",), unknown("agent", chosen, list(agents))))
    return problems
