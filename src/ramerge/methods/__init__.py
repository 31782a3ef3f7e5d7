"""The merging methods, one paper a file, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramerge.methods.base import AgentCounts, Method, Parameters
from ramerge.methods.ram import RAM, RAM_PLUS, RAM_PLUS_S, rho

METHODS: Mapping[str, Method] = {method.name: method for method in (RAM, RAM_PLUS, RAM_PLUS_S)}


def complete(method: Method, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that were given on top of the preset's; nothing is checked."""
    return {**(method.presets[preset] if preset else {}), **given}


def describe(method: Method) -> dict[str, Any]:
    """A method as plain values: title, formula, source, presets, and each parameter's default, range and meaning."""
    schema = method.parameters.model_json_schema()["properties"]
    return {
        "title": method.title,
        "formula": method.formula,
        "source": method.source,
        "parameters": {
            name: {"default": field["default"], "range": _range(field), "description": field["description"]}
            for name, field in schema.items()
        },
        "presets": {name: dict(values) for name, values in method.presets.items()},
    }


def _range(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " | ".join(field["enum"])
    upper = f" to {field['maximum']:g}" if "maximum" in field else " or more"
    return f"{field.get('minimum', 0):g}{upper}"


__all__ = ["METHODS", "AgentCounts", "Method", "Parameters", "complete", "describe", "rho"]
