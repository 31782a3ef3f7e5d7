"""Replace the method of a recipe, and remove the parts that belong to the previous method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ramerge.core.foundation.text import enumerated
from ramerge.core.methods.base import SIDE_INPUTS
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.document import Document


def change_method(document: Document, name: str, flag: str) -> Document:
    """Replace the method of a recipe in ramerge's own form, and add a note about parts that are removed.

    Args:
        name: the new method. If the recipe has it already, nothing is removed.
        flag: where the new method comes from, for messages, such as `--method`.
    """
    before = document.method
    copy, left_out = _remove_other_parts(document, name) if name != before else (document.with_values({}), [])
    copy.set(("method",), name, flag)
    if left_out:
        again = "; --set parameters.NAME=VALUE gives it parameters of its own" if name in METHODS else ""
        copy.notes.append(f"{flag} {name} replaces what is {before}'s in the recipe: {enumerated(left_out)}{again}")
    return copy


def for_method(document: Document, name: str, *, keep_shared: bool = False) -> Document:
    """Replace the method of a recipe in ramerge's own form; remove parameters, preset and side inputs of the old one.

    Args:
        keep_shared: whether to keep parameters and presets that the new method has, too.
    """
    copy, _ = _remove_other_parts(document, name, keep_shared=keep_shared)
    return copy.replacing({"method": name})


def _remove_other_parts(document: Document, name: str, *, keep_shared: bool = False) -> tuple[Document, list[str]]:
    """A copy without the parts of the previous method, and a list of these parts for messages."""
    values = document.as_dict()
    method = METHODS.get(name)
    parameters = method.parameters.model_fields if method is not None and keep_shared else {}
    presets = method.presets if method is not None and keep_shared else {}
    rules, agents = values.get("rules"), values.get("agents")
    left_out = []
    for label, holder in (("parameters", values), *_named_mappings("rule", rules)):
        parameters_of_holder = holder.get("parameters")
        if isinstance(parameters_of_holder, dict):
            holder["parameters"] = {key: value for key, value in parameters_of_holder.items() if key in parameters}
            others = [key for key in parameters_of_holder if key not in parameters]
            left_out += [f"{label} ({', '.join(map(str, others))})"] if others else []
    if values.get("preset") is not None and values["preset"] not in presets:
        left_out.append(f"preset {values.pop('preset')}")
    for side in SIDE_INPUTS:
        if method is None or method.side is not side:
            mappings = _named_mappings(f"{side.key} of", agents)
            left_out += [label for label, agent in mappings if agent.pop(side.key, None) is not None]
    return document.rewritten(values), left_out


def _named_mappings(what: str, entries: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a list or mapping that are mappings, each with its name for messages; lists count from 1."""
    numbered_entries = enumerate(entries, 1) if isinstance(entries, list | tuple) else ()
    labelled_entries = entries.items() if isinstance(entries, dict) else numbered_entries
    yield from ((f"{what} {name}", entry) for name, entry in labelled_entries if isinstance(entry, dict))
