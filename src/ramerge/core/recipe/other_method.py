"""A recipe with another method: what belongs to the method before is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ramerge.core.foundation.text import enumerated
from ramerge.core.methods.base import SIDE_INPUTS
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.document import Document

DEFAULT_METHOD = "ram+"


def change_method(document: Document, name: str, flag: str) -> None:
    """Set the method of a recipe in ramerge's own form, and note what of it only the method before takes.

    Args:
        document: the recipe; it is changed.
        name: the new method. A recipe that has it already keeps what it says.
        flag: how messages call what asks for it, such as `--method`.
    """
    before = document.values.get("method", DEFAULT_METHOD)
    document.set(("method",), name, flag)
    if left_out := leave_out(document.values, name) if name != before else []:
        again = "; --set parameters.NAME=VALUE gives it parameters of its own" if name in METHODS else ""
        document.notes.append(f"{flag} {name} replaces what is {before}'s in the recipe: {enumerated(left_out)}{again}")


def leave_out(values: dict[str, Any], name: str, *, keep_shared: bool = False) -> list[str]:
    """Take out of a recipe's values what belongs to the method before.

    Args:
        values: in ramerge's own form; they are changed.
        name: the new method.
        keep_shared: whether parameters and presets stay whose names the new method has, too.

    Returns:
        What was left out, in the words of a recipe.
    """
    method = METHODS.get(name)
    parameters = method.parameters.model_fields if method is not None and keep_shared else {}
    presets = method.presets if method is not None and keep_shared else {}
    rules, agents = values.get("rules"), values.get("agents")
    left_out = []
    for label, holder in (("parameters", values), *_mappings("rule", rules)):
        given = holder.get("parameters")
        if isinstance(given, dict):
            holder["parameters"] = {key: value for key, value in given.items() if key in parameters}
            others = [key for key in given if key not in parameters]
            left_out += [f"{label} ({', '.join(map(str, others))})"] if others else []
    if values.get("preset") is not None and values["preset"] not in presets:
        left_out.append(f"preset {values.pop('preset')}")
    for side in SIDE_INPUTS:
        if method is None or method.side is not side:
            named = _mappings(f"{side.key} of", agents)
            left_out += [label for label, agent in named if agent.pop(side.key, None) is not None]
    return left_out


def _mappings(what: str, entries: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a list, counted from 1, or of a mapping, that are mappings, each with what messages call it."""
    listed = enumerate(entries, 1) if isinstance(entries, list | tuple) else ()
    named = entries.items() if isinstance(entries, dict) else listed
    yield from ((f"{what} {name}", entry) for name, entry in named if isinstance(entry, dict))
