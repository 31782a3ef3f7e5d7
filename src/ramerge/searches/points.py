"""From a point of a search to the recipe of its merge, and to its checkpoint; called by `run` and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from ramerge import Options, Recipe, RecipeError, Record, merge
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import DEFAULT_METHOD, Document, check, leave_out

Label = Callable[[str, object], str]


def document_of(recipe: Document, point: Mapping[str, object], label: Label = "{}={}".format) -> Document:
    """The recipe of a search with the values of a point, unchecked.

    Where the point has another method, parameters, presets and side inputs that this method does not take are left
    out: they are the other method's.
    """
    made = replace(recipe, values=deepcopy(recipe.values), flags=dict(recipe.flags))
    before = made.values.get("method", DEFAULT_METHOD)
    if point.get("method", before) != before:
        leave_out(made.values, str(point["method"]), keep_shared=True)
    for key, value in point.items():
        made.set(tuple(key.split(".")), value, label(key, value))
    return made


def check_point(recipe: Document, point: Mapping[str, object], label: Label) -> list[str]:
    """Problems of the recipe of a point."""
    try:
        check(document_of(recipe, point, label))
    except RecipeError as error:
        return list(error.problems)
    return []


def recipe_of(recipe: Document, point: Mapping[str, object]) -> Recipe:
    """The checked recipe of a point."""
    return check(document_of(recipe, point))


def merge_point(recipe: Document, point: Mapping[str, object], out: Path, listen: Listener, options: Options) -> Record:
    """Merge the recipe of a point to `out`, in place of what is there. Counts of the inputs are cached for the next."""
    return merge(document_of(recipe, point), out, options=replace(options, overwrite=True), on_progress=listen)
