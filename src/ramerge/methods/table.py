"""The table of all methods, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from ramerge.methods.base import Method, Parameters, Statistic, conditions

# Each method's name, with its file in this folder and its name there.
_PLACES: Mapping[str, tuple[str, str]] = {
    "ram": ("ram", "RAM"),
    "ram+": ("ram", "RAM_PLUS"),
    "ram+s": ("ram", "RAM_PLUS_S"),
    "task_arithmetic": ("task_arithmetic", "TASK_ARITHMETIC"),
    "linear": ("linear", "LINEAR"),
    "fisher": ("fisher", "FISHER"),
    "ties": ("ties", "TIES"),
    "dare": ("dare", "DARE"),
    "dare_ties": ("dare", "DARE_TIES"),
    "wudi": ("wudi", "WUDI"),
    "della": ("della", "DELLA"),
    "della_linear": ("della", "DELLA_LINEAR"),
    "breadcrumbs": ("breadcrumbs", "BREADCRUMBS"),
    "breadcrumbs_ties": ("breadcrumbs", "BREADCRUMBS_TIES"),
    "sce": ("sce", "SCE"),
    "slerp": ("slerp", "SLERP"),
    "nuslerp": ("slerp", "NUSLERP"),
    "multislerp": ("multislerp", "MULTISLERP"),
    "karcher": ("karcher", "KARCHER"),
    "model_stock": ("model_stock", "MODEL_STOCK"),
    "arcee_fusion": ("arcee_fusion", "ARCEE_FUSION"),
    "tsvm": ("tsvm", "TSVM"),
    "iso_c": ("iso_c", "ISO_C"),
    "swudi": ("swudi", "SWUDI"),
    "aswudi": ("swudi", "ASWUDI"),
    "resmerge": ("resmerge", "RESMERGE"),
    "psa": ("psa", "PSA"),
    "iso_cts": ("iso_cts", "ISO_CTS"),
    "knots": ("knots", "KNOTS"),
    "isolate": ("isolate", "ISOLATE"),
    "passthrough": ("passthrough", "PASSTHROUGH"),
}


class _Table(Mapping[str, Method]):
    """Methods by name. A method's file is imported when it is asked for: all of them take a tenth of a second."""

    def __getitem__(self, name: str) -> Method:
        file, constant = _PLACES[name]
        method: Method = getattr(import_module(f"ramerge.methods.{file}"), constant)
        return method

    def __contains__(self, name: object) -> bool:
        return name in _PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


METHODS: Mapping[str, Method] = _Table()


def all_parameters() -> frozenset[str]:
    """Names of the parameters of all methods, for messages; imports all of them."""
    return frozenset(name for method in METHODS.values() for name in method.parameters.model_fields)


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


__all__ = ["METHODS", "Method", "Parameters", "all_parameters", "complete", "describe", "reads_in_words"]
