"""Controls for a method's parameters in the tab Choose, made from the declaration that the command line uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from pydantic import BaseModel

from ramerge.core.methods.base import conditions, names_agent
from ramerge.sdk.commands import parse_scalar
from ramerge.sdk.methods import Method
from ramerge.sdk.text import dumped

_WIDEST = 1000
"""A wider range gets a number field instead of a slider."""

_STEP = 0.01
_REACH = 10
"""A slider ends at this multiple of the default, so that usual values are not at its very beginning."""


@dataclass(frozen=True)
class Control:
    """A control of a parameter, and the conversion of the control's value to the parameter's."""

    name: str
    component: gr.components.Component
    value: Callable[[Any], object]


def controls_of(method: Method, values: Mapping[str, object], agents: Sequence[str]) -> list[Control]:
    """Return the controls of all parameters that have an effect with these values."""
    schema = method.parameters.model_json_schema()["properties"]
    return [_make_control(method, name, schema[name], values[name], agents) for name in meaningful(method, values)]


def meaningful(method: Method, values: Mapping[str, object]) -> list[str]:
    """Return the parameters that have an effect with these values of the others."""
    fields = method.parameters.model_fields
    return [name for name in fields if conditions(method.parameters, name).items() <= values.items()]


def _make_control(method: Method, name: str, field: Mapping[str, Any], value: object, agents: Sequence[str]) -> Control:
    about = {"label": name, "info": str(field.get("description", "")), "interactive": True}
    if names_agent(method.parameters, name):
        return Control(
            name,
            gr.Dropdown([("none", ""), *agents], value=value or "", **about),
            lambda value_or_empty: value_or_empty or None,
        )
    if "enum" in field:
        return Control(name, gr.Dropdown(list(field["enum"]), value=value, **about), str)
    if field.get("type") == "boolean":
        return Control(name, gr.Checkbox(value=bool(value), **about), bool)
    if (field.get("type") in ("number", "integer") or "minimum" in field) and isinstance(value, int | float):
        return _number_control(name, field, value, about)
    plain = value.model_dump() if isinstance(value, BaseModel) else value
    text = plain if isinstance(plain, str) else dumped(plain, indent=None).strip()
    about["info"] = f"{about['info']} ({field['range']})" if "range" in field else about["info"]
    return Control(name, gr.Textbox(value=text, max_lines=1, **about), parse_scalar)


def _number_control(name: str, field: Mapping[str, Any], value: float, about: Mapping[str, object]) -> Control:
    whole = field.get("type") == "integer"
    kind = int if whole else float
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum", field.get("exclusiveMaximum"))
    fine = not whole and 0 < abs(field["default"]) < _STEP
    if low is None or high is None or high - low > _WIDEST or not low <= value <= high or fine:
        return Control(name, gr.Number(value=value, precision=0 if whole else None, **about), kind)
    step = 1 if whole else _STEP
    first = low + step if "exclusiveMinimum" in field else low
    last = high - step if "exclusiveMaximum" in field else high
    if field["default"] and last > (reach := max(_REACH * abs(field["default"]), value)):
        about = {**about, "info": f"{about['info']}; the recipe takes up to {last:g}"}
        last = reach
    return Control(name, gr.Slider(min(first, value), last, value=value, step=step, **about), kind)
