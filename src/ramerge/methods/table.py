"""The table of all methods, and what is said of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramerge.methods.arcee_fusion import ARCEE_FUSION
from ramerge.methods.base import Method, Parameters, Statistic, conditions
from ramerge.methods.breadcrumbs import BREADCRUMBS, BREADCRUMBS_TIES
from ramerge.methods.dare import DARE, DARE_TIES
from ramerge.methods.della import DELLA, DELLA_LINEAR
from ramerge.methods.fisher import FISHER
from ramerge.methods.iso_c import ISO_C
from ramerge.methods.iso_cts import ISO_CTS
from ramerge.methods.isolate import ISOLATE
from ramerge.methods.karcher import KARCHER
from ramerge.methods.knots import KNOTS
from ramerge.methods.linear import LINEAR
from ramerge.methods.model_stock import MODEL_STOCK
from ramerge.methods.multislerp import MULTISLERP
from ramerge.methods.passthrough import PASSTHROUGH
from ramerge.methods.psa import PSA
from ramerge.methods.ram import RAM, RAM_PLUS, RAM_PLUS_S
from ramerge.methods.resmerge import RESMERGE
from ramerge.methods.sce import SCE
from ramerge.methods.slerp import NUSLERP, SLERP
from ramerge.methods.swudi import ASWUDI, SWUDI
from ramerge.methods.task_arithmetic import TASK_ARITHMETIC
from ramerge.methods.ties import TIES
from ramerge.methods.tsvm import TSVM
from ramerge.methods.wudi import WUDI

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        RAM,
        RAM_PLUS,
        RAM_PLUS_S,
        TASK_ARITHMETIC,
        LINEAR,
        FISHER,
        TIES,
        DARE,
        DARE_TIES,
        WUDI,
        DELLA,
        DELLA_LINEAR,
        BREADCRUMBS,
        BREADCRUMBS_TIES,
        SCE,
        SLERP,
        NUSLERP,
        MULTISLERP,
        KARCHER,
        MODEL_STOCK,
        ARCEE_FUSION,
        TSVM,
        ISO_C,
        SWUDI,
        ASWUDI,
        RESMERGE,
        PSA,
        ISO_CTS,
        KNOTS,
        ISOLATE,
        PASSTHROUGH,
    )
}


def complete(method: Method, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that were given on top of the preset's; nothing is checked."""
    return {**(method.presets[preset] if preset else {}), **given}


def describe(method: Method) -> dict[str, Any]:
    """A method as plain values: title, formula, source, presets, and each parameter's default, range and meaning.

    `reads` are those of the inputs that a merge with default parameters takes, and `guessed` whether one read and a
    sample can be enough.
    """
    schema = method.parameters.model_json_schema()["properties"]
    return {
        "title": method.title,
        "formula": method.formula,
        "source": method.source,
        "reads": 1 + max((statistic.reads for statistic in _counted(method)), default=0),
        "guessed": any(statistic.guessable for statistic in _counted(method)),
        "differs": method.differs,
        "parameters": {
            name: {
                "default": field["default"],
                "range": _range(field),
                "description": field["description"],
                "only": dict(conditions(method.parameters, name)),
            }
            for name, field in schema.items()
        },
        "presets": {name: dict(values) for name, values in method.presets.items()},
    }


def reads_in_words(described: Mapping[str, Any]) -> str:
    """How often a method reads the inputs, from what `describe` says."""
    return f"1 or {described['reads']}" if described["guessed"] else str(described["reads"])


def _counted(method: Method) -> tuple[Statistic, ...]:
    """What a merge of two agents with default parameters must count first."""
    return method.statistics(method.parameters(), ("code", "tool")[: method.most])


def _range(field: Mapping[str, Any]) -> str:
    if "range" in field:
        return str(field["range"])
    if "enum" in field:
        return " | ".join(field["enum"])
    if field["type"] == "boolean":
        return "true | false"
    if not field.keys() & {"minimum", "maximum", "exclusiveMinimum"}:
        return "any number" if field["type"] == "number" else "any whole number"
    if "exclusiveMinimum" in field:
        return f"above {field['exclusiveMinimum']:g}, to {field['maximum']:g}"
    upper = f" to {field['maximum']:g}" if "maximum" in field else " or more"
    return f"{field.get('minimum', 0):g}{upper}"


__all__ = ["METHODS", "Method", "Parameters", "complete", "describe", "reads_in_words"]
