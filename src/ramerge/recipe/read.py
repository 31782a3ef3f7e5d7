"""The entry point of this package: a recipe in any form becomes a document in ramerge's own form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ramerge.foundation.errors import RecipeError
from ramerge.foundation.text import quoted
from ramerge.recipe.document import Document, read_document
from ramerge.recipe.mergekit.translate import Look, blind, is_mergekit, translate
from ramerge.recipe.model import Recipe, read_structure

AnyRecipe: TypeAlias = Recipe | Mapping[str, Any] | str | Path | Document


def open_recipe(source: AnyRecipe, values: Mapping[str, Any] | None = None, look: Look = blind) -> Document:
    """The document of a recipe, in ramerge's own form. Its values are not checked yet.

    Args:
        source: a `Recipe`, a mapping, a document, or the path of a YAML file, in ramerge's or in mergekit's form.
        values: values that override the recipe's, as flags do: keys, such as `dtype` or `parameters.r`, to values or
            None.
        look: gives the names of the base's tensors, on which values in mergekit's form may depend.

    Raises:
        RecipeError: it cannot be read, or it is in mergekit's form and asks for something that ramerge does not have.
    """
    document = _written(source).with_values(values or {})
    return translate(document, look) if is_mergekit(document.values) else document


def overriding(
    method: str | None, parameters: Mapping[str, Any] | None, dtype: str | None, rounding: str | None
) -> dict[str, Any]:
    """Values that override a recipe's, by key, in the form that flags of the command line have."""
    return {
        "method": method,
        "dtype": dtype,
        "rounding": rounding,
        **{f"parameters.{name}": value for name, value in (parameters or {}).items()},
    }


def _written(source: AnyRecipe) -> Document:
    """The document of a recipe, in the form in which it was written."""
    if isinstance(source, Recipe):
        written, _ = read_structure(source.document)
        # a copy with other values (`model_copy`) still has the document of the original
        if written is not None and written.model_dump() == source.model_dump(warnings=False):
            return source.document
        return Document(source.model_dump(exclude_none=True, warnings=False, by_alias=True), folder=source.folder)
    if isinstance(source, str | Path):
        return read_document(Path(source))
    if not isinstance(source, Document | Mapping):
        raise RecipeError(f"recipe: must be a Recipe, a mapping or the path of a file, not {quoted(source)}")
    return source if isinstance(source, Document) else Document(dict(source))
