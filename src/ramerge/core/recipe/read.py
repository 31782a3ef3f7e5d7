"""Read a recipe in any form, and translate it to a document in ramerge's own form.

To support the recipes of another program, write a module with a `Dialect`, and add its entry point to the group
`ramerge.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import quoted
from ramerge.core.recipe.document import Document, plain_value, read_document
from ramerge.core.recipe.model import Recipe
from ramerge.core.registry import Registry

Look = Callable[[Document], Sequence[str]]
"""A function that returns the names of floating-point tensors in a recipe's base.

The recipe may be only partly translated.
"""


@dataclass(frozen=True)
class Dialect:
    """A form of recipes other than ramerge's own.

    Attributes:
        marks: keys by which the form is recognized: its recipes have at least one of them, all other recipes none.
        translate: returns the document in ramerge's form, whose messages still show the lines and flags of the
            original. Its second argument returns the names of the base's tensors, if values depend on them. Raises
            RecipeError if something is wrong or not supported.
        flags: for options of the other program's command line: what to use in ramerge instead, by option.
    """

    marks: frozenset[str]
    translate: Callable[[Document, Look], Document]
    flags: Mapping[str, str] = field(default_factory=dict)


DIALECTS: Registry[Dialect] = Registry("ramerge.recipes", Dialect, versioned=False)


def dialect_of(values: Mapping[str, object]) -> Dialect | None:
    """The form of a recipe with these values; None if it is ramerge's own. Then no dialect is imported."""
    if values.keys() <= Recipe.model_fields.keys():
        return None
    matches = (dialect for dialect in DIALECTS.usable().values() if not dialect.marks.isdisjoint(values))
    return next(matches, None)


def hint(option: str) -> str | None:
    """Advice on an option, or on its opposite, if it belongs to another program's command line; otherwise None."""
    flag = option.replace("--no-", "--", 1)
    translations = {name: dialect.flags[flag] for name, dialect in DIALECTS.usable().items() if flag in dialect.flags}
    return "; ".join(f"{option} is a flag of {name}: {instead}" for name, instead in translations.items()) or None


def blind(_document: Document) -> Sequence[str]:
    """A `Look` for callers that cannot open models: always raises ValueError."""
    raise ValueError("the model's tensors are not known here")


AnyRecipe: TypeAlias = Recipe | Mapping[str, object] | str | Path | Document


def recipe_document(source: AnyRecipe, look: Look = blind) -> Document:
    """Read a recipe in any form. Return a document in ramerge's own form, whose values are not checked yet.

    Args:
        source: a recipe, a document, a mapping, or the path of a file.
        look: returns the names of the base's tensors, if values in another form depend on them.
    """
    match source:
        case Document():
            document = source
        case Recipe():
            document = source.as_document()
        case str() | Path():
            document = read_document(source)
        case Mapping():
            document = Document(plain_value(source))
        case _:
            raise RecipeError(f"recipe: must be a Recipe, a mapping or the path of a file, not {quoted(source)}")
    dialect = dialect_of(document.as_dict())
    return document if dialect is None else dialect.translate(document, look)
