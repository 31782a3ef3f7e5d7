"""Turn pydantic's errors about a recipe into messages that use the terms of recipes instead of Python's."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ramerge.core.foundation.text import NOT_UTF8, literal, nearest, quoted, unknown
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.document import Document, Key

# The form that a value must have, for each of pydantic's types of errors.
_FORMS = {
    "dict_type": "a mapping, such as {key: value}",
    "model_type": "a mapping, such as {key: value}",
    "tuple_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "a whole number",
}

_ADD_AGENTS = "add --agent NAME=MODEL for each, or in a recipe agents: {NAME: MODEL}"
ADD_BASE = "add --base MODEL, or in a recipe base: MODEL"


def describe(
    error: ValidationError,
    document: Document,
    model: type[BaseModel],
    prefix: Key = (),
    only: Container[object] | None = None,
) -> list[str]:
    """One message for each problem of a validation, with its line. For an unknown key, it suggests the nearest one.

    Args:
        prefix: the path of keys to the values that were validated.
        only: the keys to report problems of; None for all.
    """
    problems = []
    for item in error.errors():
        if only is not None and item["loc"] and item["loc"][0] not in only:
            continue
        key = (*prefix, *(str(part) for part in item["loc"] if part not in ("[key]", "function-before")))
        problems.append(document.where(key, _problem_sentence(item, model, document)))
    return problems


def _problem_sentence(item: Mapping[str, Any], model: type[BaseModel], document: Document) -> str:
    kind, value = item["type"], item.get("input")
    if kind == "extra_forbidden":
        *outer, key = item["loc"]
        inside: Mapping[str, type[BaseModel]] = getattr(model, "inside", {})
        fields = (inside.get(str(outer[0]), model) if outer else model).model_fields
        return _unknown_key(str(key), [field.alias or name for name, field in fields.items()], document)
    if kind == "missing":
        return f"is missing; {_ADD_AGENTS}" if item["loc"] == ("agents",) else "is missing"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "literal_error" and isinstance(value, str):
        names = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        # like_base, which needs no quotes in a shell, is accepted, too
        return unknown("value", value, [name.replace(" ", "_") for name in names], few=True)
    if kind == "string_unicode":
        return f"{quoted(value)}: {NOT_UTF8}"
    if kind == "dict_type" and item["loc"] == ("agents",):
        return f"must be a mapping, such as {{code: ./coder}}, not {quoted(value)}"
    if "prompts" in item["loc"] and kind in ("dict_type", "string_type") and "[key]" not in item["loc"]:
        file = "the path of a file or folder of prompts"
        form = "a mapping, such as {code: code.jsonl}" if kind == "dict_type" else file
        return f"must be {form}, not {quoted(value)}"
    if kind == "invalid_key" or ("[key]" in item["loc"] and kind == "string_type"):
        return key_not_text_message(value)
    if kind in _FORMS:
        return f"must be {_FORMS[kind]}, not {quoted(value)}"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind == "too_long":
        return f"{len(value) if value else 'too many'} are given, but only {item['ctx']['max_length']} are allowed"
    if kind == "string_too_long":
        return f"has {len(str(value)):,} characters, but only {item['ctx']['max_length']:,} are allowed"
    message = str(item["msg"]).removeprefix("Input ")
    text = literal(value)
    return f"{message}, not {text if len(text) < 60 else type(value).__name__}"


def key_not_text_message(key: object) -> str:
    """The message about a key that is not text, which only Python mappings can have."""
    return f"a key must be text, not {quoted(key)}; write it in quotes"


def _unknown_key(key: str, known_keys: Sequence[str], document: Document) -> str:
    """The message about an unknown key; it suggests a key of the same level, or a parameter.

    Parameters of the recipe's method come before those of other methods.
    """
    name = str(document.method)
    own = list(METHODS[name].parameters.model_fields) if name in METHODS else []
    near = None if key in own else nearest(key, known_keys)
    others = [other for other, method in METHODS.usable().items() if key in method.parameters.model_fields]
    if near is None and others and key not in own:
        return f"unknown key {quoted(key)}; it is a parameter of {', '.join(others)}, and {name} has {', '.join(own)}"
    if near is None and (parameter := nearest(key, own)):
        return f"unknown key {quoted(key)}; did you mean {f'parameters.{parameter}'!r}?"
    if near is None and "parameters" in known_keys:
        known_keys = [*(each for each in known_keys if each != "parameters"), *(f"parameters.{each}" for each in own)]
    return unknown("key", key, known_keys)
