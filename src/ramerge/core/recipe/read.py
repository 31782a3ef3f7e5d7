"""Entry point of the package: a recipe in any form becomes a document in ramerge's own form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import quoted
from ramerge.core.recipe.dialects import Look, blind, dialect_of
from ramerge.core.recipe.document import Document, read_document
from ramerge.core.recipe.model import Recipe

AnyRecipe: TypeAlias = Recipe | Mapping[str, object] | str | Path | Document


def translate_recipe(source: AnyRecipe, look: Look = blind) -> Document:
    """Translate a recipe's document to ramerge's own form. Its values are not checked yet.

    Args:
        source: a `Recipe`, a mapping, a document, or the path of a YAML file, in ramerge's form or that of a `Dialect`.
        look: gives the names of the base's tensors, on which values in another form may depend.

    Raises:
        RecipeError: it cannot be read, or it is in another form and asks for something that ramerge does not have.
    """
    match source:
        case Document():
            document = source
        case Recipe():
            document = source.as_document()
        case str() | Path():
            document = read_document(source)
        case Mapping():
            document = Document(dict(source))
        case _:
            raise RecipeError(f"recipe: must be a Recipe, a mapping or the path of a file, not {quoted(source)}")
    dialect = dialect_of(document.as_dict())
    return document if dialect is None else dialect.translate(document, look)
