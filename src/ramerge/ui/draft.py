"""The draft: the recipe that the page edits as text, in step with the controls of tabs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ramerge import RamergeError, Recipe, RecipeError
from ramerge.core.methods.registry import complete
from ramerge.core.recipe.checks import as_yaml
from ramerge.core.recipe.document import DEFAULT_METHOD, parse_document
from ramerge.core.recipe.read import recipe_document
from ramerge.sdk.methods import METHODS
from ramerge.sdk.recipes import Document, check
from ramerge.ui.roots import Roots

EMPTY = f"method: {DEFAULT_METHOD}\n"
_NO_NAME = re.compile(r"[^\w.+-]+")


def read_draft(text: str, roots: Roots) -> Document:
    """Read the draft as a document, in ramerge's own form; its paths must be inside the roots."""
    document = recipe_document(parse_document(text.encode("utf-8", "replace"), "recipe", roots.home))
    roots.check(document)
    return document


def checked_draft(text: str, roots: Roots) -> Recipe:
    """Read and check the draft as a recipe."""
    return check(read_draft(text, roots))


def with_models(text: str, base: str | None, agents: Sequence[str], roots: Roots) -> str:
    """Return the draft with other models.

    Args:
        text: a recipe; an unreadable recipe is replaced.
        agents: models, or NAME=MODEL; agents without a name are named after their folders.
    """
    try:
        document = parse_document(text.encode("utf-8", "replace"), "recipe", roots.home)
    except RecipeError:
        document = Document({"method": DEFAULT_METHOD}, folder=roots.home)
    before = document.agents
    # an agent that had a name keeps it
    names = {(value if isinstance(value, str) else json.dumps(value)): name for name, value in before.items()}
    models: dict[str, object] = {}
    for text in agents:
        name, equals, model = text.partition("=")
        if text in names:
            name, model = names[text], text
        elif not equals:
            name, model = _NO_NAME.sub("-", Path(text.partition("@")[0]).name).strip("-") or "agent", text
        value = before[names[text]] if text in names else model
        number = 2
        unique = name
        while unique in models:
            unique, number = f"{name}-{number}", number + 1
        models[unique] = value
    return as_yaml(document.replacing({"method": document.method, "base": base or None, "agents": models}))


def models_in(document: Document) -> tuple[str | None, list[str]]:
    """Return base and agents of the draft as texts, for `with_models`; as JSON if they are not plain names."""
    base = document.stated("base")
    texts = [value if isinstance(value, str) else json.dumps(value) for value in document.agents.values()]
    return base if isinstance(base, str) else None, texts


def agents_in(text: str, roots: Roots) -> dict[str, str]:
    """Return the draft's agents by name, as in `models_in`; empty if the text is not a recipe."""
    try:
        document = read_draft(text or EMPTY, roots)
    except RamergeError:
        return {}
    return dict(zip(document.agents, models_in(document)[1], strict=True))


def with_keys(text: str, keys: Mapping[str, object], roots: Roots) -> str:
    """Return the draft with changed keys; None removes a key."""
    document = recipe_document(parse_document(text.encode("utf-8", "replace"), "recipe", roots.home))
    return as_yaml(document.replacing({key: None if value == {} else value for key, value in keys.items()}))


def with_parameters(text: str, values: Mapping[str, object], roots: Roots) -> str:
    """Return the draft with the values of controls that differ from the method's defaults, without its preset."""
    document = recipe_document(parse_document(text.encode("utf-8", "replace"), "recipe", roots.home))
    method = METHODS[str(document.method)]
    fields = method.parameters.model_fields
    changes = {name: value for name, value in values.items() if value != fields[name].default}
    return with_keys(text, {"parameters": changes, "preset": None}, roots)


def parameters_in(document: Document) -> tuple[str, dict[str, object]]:
    """Return the draft's method and all values of its parameters, with defaults; wrong values are not changed."""
    name = document.method
    if not isinstance(name, str) or name not in METHODS:
        raise RecipeError(document.unknown(("method",), "method", str(name), list(METHODS)))
    method, preset = METHODS[name], document.stated("preset")
    values = document.stated("parameters")
    own = complete(method, preset if preset in method.presets else None, values if isinstance(values, Mapping) else {})
    return name, {key: own.get(key, field.default) for key, field in method.parameters.model_fields.items()}


def portable_draft(recipe: Recipe) -> Document:
    """Return the draft with all values that its method needs, to make a command line of it."""
    document = recipe_document(recipe)
    return document.replacing({"method": document.method})
