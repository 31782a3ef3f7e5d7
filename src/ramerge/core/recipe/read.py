"""Entry point of the package: a recipe in any form becomes a document in ramerge's own form.

To add the form of another program, write a module with a `Dialect`, and add its entry point to the group
`ramerge.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ramerge.core.foundation.errors import CheckpointError, RecipeError
from ramerge.core.foundation.text import quoted
from ramerge.core.recipe.document import Document, read_document
from ramerge.core.recipe.model import Recipe
from ramerge.core.registry import Registry

Look = Callable[[Document], Sequence[str]]
"""Gives the names of the floating-point tensors of a recipe's base; the recipe may be translated by half."""


@dataclass(frozen=True)
class Dialect:
    """A form of recipes other than ramerge's own.

    Attributes:
        marks: keys of which every recipe in this form has one, and none in another form.
        translate: gives the document in ramerge's form, whose messages still show the lines and flags of the original.
            It is also given a look at the models, on whose tensors values may depend. Raises RecipeError: something is
            wrong or not supported.
        flags: replacements for options of the other program's command line, by name.
    """

    marks: frozenset[str]
    translate: Callable[[Document, Look], Document]
    flags: Mapping[str, str] = field(default_factory=dict)


DIALECTS: Registry[Dialect] = Registry("ramerge.recipes", Dialect, versioned=False)


def dialect_of(values: Mapping[str, object]) -> Dialect | None:
    """The form of a recipe's values; None if it is ramerge's own, for which nothing is imported."""
    if values.keys() <= Recipe.model_fields.keys():
        return None
    matches = (dialect for dialect in DIALECTS.usable().values() if not dialect.marks.isdisjoint(values))
    return next(matches, None)


def hint(option: str) -> str | None:
    """Advice on an option of another program's command line; otherwise None."""
    translations = {
        name: dialect.flags[option] for name, dialect in DIALECTS.usable().items() if option in dialect.flags
    }
    return "; ".join(f"{name}'s {option} {instead}" for name, instead in translations.items()) or None


def blind(_document: Document) -> Sequence[str]:
    """The `look` where no models can be opened: always raises CheckpointError."""
    raise CheckpointError("the model's tensors are not known here")


AnyRecipe: TypeAlias = Recipe | Mapping[str, object] | str | Path | Document


def recipe_document(source: AnyRecipe, look: Look = blind) -> Document:
    """The document of a recipe in any form, in ramerge's own form. Its values are not checked yet.

    Args:
        look: gives the names of the base's tensors, on which values in another form may depend.
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
