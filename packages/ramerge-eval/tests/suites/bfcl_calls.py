"""Right answers, made of BFCL's possible answers: calls that its checker accepts.

A possible answer is `{function: {parameter: [values, any of which is right]}}`, where the value `""` says that the
parameter may be left out. A dictionary among the values has such a list for each of its keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPTIONAL = ""
Call = tuple[str, dict[str, Any]]


def calls(answer: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]]) -> list[Call]:
    """One right call for each of the possible answers of an item."""
    schemas = {function["name"]: function["parameters"] for function in functions}
    return [(name, _arguments(values, schemas[name])) for each in answer for name, values in each.items()]


def python(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in Python."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def quoted(name: str, arguments: Mapping[str, str]) -> str:
    """A call in Java or JavaScript whose arguments are texts that hold source.

    The package's parsers take the quotation marks off and undo no escapes. So the marks are those that the text does
    not hold, and a text that holds both has none.
    """
    marks = {key: next((mark for mark in "\"'" if mark not in value), "") for key, value in arguments.items()}
    return f"{name}({', '.join(f'{key}={marks[key]}{value}{marks[key]}' for key, value in arguments.items())})"


def source(arguments: Mapping[str, Any], function: Mapping[str, Any], write: Callable[..., str]) -> dict[str, str]:
    """Arguments as Java or JavaScript source, which is how functions of these languages take them."""
    declared = function["parameters"]["properties"]
    return {
        key: write(value, declared[key]["type"], declared[key].get("items", {}).get("type"))
        for key, value in arguments.items()
    }


def java(value: Any, kind: str, nested: str | None = None) -> str:
    """A value of a declared type as the package's converter for Java reads it."""
    if isinstance(value, str):  # a text, or the name of a variable
        return value
    if isinstance(value, list) and kind == "ArrayList":
        elements = ", ".join(json.dumps(each) if isinstance(each, str) else java(each, nested or "") for each in value)
        return f"new ArrayList<>(Arrays.asList({elements}))"
    if isinstance(value, list):  # the converter keeps the marks of texts in arrays, so here they have none
        return f"new {nested}[]{{{', '.join(java(each, nested or '') for each in value)}}}"
    if isinstance(value, dict):
        puts = " ".join(f'put("{key}", {json.dumps(each)});' for key, each in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    return json.dumps(value) + {"long": "L", "float": "f"}.get(kind, "")


def javascript(value: Any, kind: str, _nested: str | None = None) -> str:
    """A value of a declared type as the package's converter for JavaScript reads it."""
    if isinstance(value, str):
        return value
    return json.dumps(value) + ("n" if kind == "Bigint" else "")


def _arguments(values: Mapping[str, Sequence[Any]], schema: Mapping[str, Any]) -> dict[str, Any]:
    stated = _first_of_each(values)
    required = {key: OPTIONAL for key in schema["required"] if key in values}
    # some answers allow to leave out what the function requires, or name what it does not declare
    known = {key: value for key, value in stated.items() if key in schema["properties"] or OPTIONAL not in values[key]}
    return {key: _plain(value) for key, value in {**required, **known}.items()}


def _first_of_each(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The first right value of each key, without keys that have none."""
    right = {key: next((each for each in several if each != OPTIONAL), OPTIONAL) for key, several in values.items()}
    return {key: value for key, value in right.items() if value != OPTIONAL}


def _plain(value: Any) -> Any:
    """A possible value with one value for each key of its dictionaries, which the checker looks into one level deep."""
    if isinstance(value, list):
        return [_first_of_each(each) if isinstance(each, dict) else each for each in value]
    return _first_of_each(value) if isinstance(value, dict) else value
