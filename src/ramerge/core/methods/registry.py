"""All methods by name, and their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramerge.core.foundation.text import nearest, quoted, unknown
from ramerge.core.methods.base import Method, conditions
from ramerge.core.registry import Registry

METHODS: Registry[Method] = Registry("ramerge.methods", Method)
"""All methods by name. A method's module is imported at first use, because importing all takes a tenth of a second."""

FAMILIES = ("RAM", "sums", "soups", "sparse", "spherical", "spectral", "one model")
"""The order of families in lists of methods; methods of plug-ins come last."""


def listed() -> dict[str, Method]:
    """All usable methods by name, sorted by family."""

    def place(method: Method) -> int:
        return FAMILIES.index(method.family) if method.family in FAMILIES else len(FAMILIES)

    return dict(sorted(METHODS.usable().items(), key=lambda row: place(row[1])))


def unknown_method(name: str) -> str:
    """The message about an unknown method; it suggests the method with the closest name or title."""
    if name in _COMMANDS:
        return f"unknown method {quoted(name)}; it is a strategy of another command: {_COMMANDS[name]}"
    titles = {
        _normalized_name(title): key for key, method in METHODS.usable().items() for title in _title_parts(method.title)
    }
    match = titles.get(_normalized_name(name))
    if match is None and nearest(name, METHODS, cutoff=_ALIKE) is None:
        match = titles.get(nearest(_normalized_name(name), titles, cutoff=_ALIKE) or "")
    if match is None:
        return unknown("method", name, list(METHODS))
    return f"unknown method {quoted(name)}; did you mean {match!r}?"


_COMMANDS = {"greedy": "ramerge soup RUN OUT --strategy greedy --score FILE.py:FUNCTION"}
_ALIKE = 0.85


def _title_parts(title: str) -> list[str]:
    """A title, and its parts before a colon or an opening bracket."""
    return [title, *(title.partition(sign)[0] for sign in ":(" if sign in title)]


def _normalized_name(text: str) -> str:
    return "".join(sign for sign in text.lower() if sign.isalnum() or sign == "+")


def all_parameters() -> frozenset[str]:
    """The names of all methods' parameters, for messages; imports all methods."""
    return frozenset(name for method in METHODS.usable().values() for name in method.parameters.model_fields)


def complete(method: Method, preset: str | None, values: Mapping[str, object]) -> dict[str, object]:
    """The parameters of a preset, overridden by `values`."""
    return {**(method.presets[preset] if preset else {}), **values}


def describe(method: Method) -> dict[str, Any]:
    """A method as plain values: title, formula, source, presets, and each parameter's default, range and meaning.

    `reads` is how often a merge with default parameters reads the inputs.
    """
    statistics = method.statistics(method.parameters(), ("code", "tool")[: method.most])
    schema = method.parameters.model_json_schema()["properties"]
    return {
        "title": method.title,
        "formula": method.formula,
        "source": method.source,
        "reads": 1 + max((statistic.reads for statistic in statistics), default=0),
        "differs": method.differs,
        "parameters": {
            name: {
                "default": field["default"],
                "range": _allowed_range(field),
                "description": field["description"],
                "only": dict(conditions(method.parameters, name)),
            }
            for name, field in schema.items()
        },
        "presets": {name: dict(values) for name, values in method.presets.items()},
    }


def _allowed_range(field: Mapping[str, Any]) -> str:
    if "range" in field:
        return str(field["range"])
    if "enum" in field:
        return " | ".join(field["enum"])
    if field["type"] == "boolean":
        return "true | false"
    if not field.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}:
        return "any number" if field["type"] == "number" else "any whole number"
    is_open = "exclusiveMinimum" in field
    low = f"above {field['exclusiveMinimum']:g}" if is_open else f"{field.get('minimum', 0):g}"
    if "maximum" in field:
        return f"{low}{',' if is_open else ''} to {field['maximum']:g}"
    low = low if is_open else f"{low} or more"
    return f"{low}, below {field['exclusiveMaximum']:g}" if "exclusiveMaximum" in field else low
