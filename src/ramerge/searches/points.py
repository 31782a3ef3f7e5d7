"""Makes the recipe of a point's merge; called by `run` and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ramerge import RecipeError
from ramerge.core.methods.base import SIDE_INPUTS
from ramerge.core.recipe.document import Key
from ramerge.core.recipe.other_method import for_method
from ramerge.sdk.methods import METHODS
from ramerge.sdk.recipes import Document, check
from ramerge.sdk.text import enumerated

Label = Callable[[str, object], str]


def document_of(recipe: Document, point: Mapping[str, object], label: Label = "{}={}".format) -> Document:
    """Return the recipe of a search with the values of a point, unchecked.

    Parameters, presets and side inputs that the point's method does not take are dropped: they belong to another
    method. `unused` reports those that belong to no method.
    """
    document = for_method(recipe, str(point.get("method", recipe.method)), keep_shared=True)
    for key, value in point.items():
        document.set(document.key_of(key), value, label(key, value))
    return document


def unused(recipe: Document, methods: Sequence[str]) -> list[str]:
    """Return problems of keys that neither the recipe's own method nor another method of the search takes."""
    own = str(recipe.method)
    if own not in METHODS:
        return [recipe.unknown(("method",), "method", own, list(METHODS))]
    names = list(dict.fromkeys([own, *methods]))
    method_names, taking = enumerated(names), [METHODS[name] for name in names]
    verb = "do" if len(names) > 1 else "does"
    fields = list(dict.fromkeys(field for method in taking for field in method.parameters.model_fields))
    rules = recipe.stated("rules")
    holders: list[tuple[Key, object]] = [((), {"parameters": recipe.stated("parameters")})]
    holders += [(("rules", str(place)), rule) for place, rule in enumerate(rules if isinstance(rules, list) else ())]
    problems = [
        recipe.unknown((*key, "parameters", name), f"parameter of {method_names}", name, fields)
        for key, holder in holders
        if isinstance(holder, dict) and isinstance(parameters := holder.get("parameters"), dict)
        for name in parameters
        if name not in fields
    ]
    presets = list(dict.fromkeys(preset for method in taking for preset in method.presets))
    if isinstance(preset := recipe.stated("preset"), str) and preset not in presets:
        problems.append(recipe.unknown(("preset",), f"preset of {method_names}", preset, presets))
    return problems + [
        recipe.where(("agents", name, side.key), f"{method_names} {verb} not use {side.plural}; remove it")
        for side in SIDE_INPUTS
        if all(method.side is not side for method in taking)
        for name, agent in recipe.agents.items()
        if isinstance(agent, dict) and agent.get(side.key) is not None
    ]


def check_point(recipe: Document, point: Mapping[str, object], label: Label) -> list[str]:
    """Return the problems of a point's recipe."""
    try:
        check(document_of(recipe, point, label))
    except RecipeError as error:
        return list(error.messages)
    return []
