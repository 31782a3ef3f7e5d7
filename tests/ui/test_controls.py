"""Every parameter of every method has a control, whose value is the parameter's."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.checks import check
from ramerge.core.recipe.document import Document
from ramerge.ui.controls import controls_of, meaningful

pytestmark = pytest.mark.full  # Gradio


def values_of(name: str) -> dict[str, Any]:
    return {key: field.default for key, field in METHODS[name].parameters.model_fields.items()}


@pytest.mark.parametrize("name", list(METHODS))
def test_controls_show_the_defaults_and_give_them_back(name: str) -> None:
    values = values_of(name)
    with gr.Blocks(analytics_enabled=False):
        controls = controls_of(METHODS[name], values, ["code", "tool"])
    assert [control.name for control in controls] == meaningful(METHODS[name], values)
    given = {control.name: control.value(control.component.value) for control in controls}
    assert given == {control.name: values[control.name] for control in controls}


@pytest.mark.parametrize("name", list(METHODS))
def test_slider_ends_are_valid_values(name: str) -> None:
    method = METHODS[name]
    agent = {"model": "a/b"} | ({"importance": "a/b"} if method.needs_importance else {})
    agents = {f"agent{number}": agent for number in range(method.most or max(2, method.fewest))}
    with gr.Blocks(analytics_enabled=False):
        controls = controls_of(method, values_of(name), list(agents))
    for control in controls:
        if isinstance(control.component, gr.Slider):
            for end in (control.component.minimum, control.component.maximum):
                parameters = {control.name: control.value(end)}
                assert f"parameters.{control.name}" not in problems_of(name, agents, parameters)


def problems_of(name: str, agents: dict[str, Any], parameters: dict[str, Any]) -> str:
    try:
        check(Document({"method": name, "base": "a/b", "agents": agents, "parameters": parameters}))
    except RecipeError as error:
        return str(error)
    return ""


def test_a_slider_ends_where_values_are_still_usual() -> None:
    with gr.Blocks(analytics_enabled=False):
        [usual] = [each.component for each in controls_of(METHODS["ram+"], values_of("ram+"), []) if each.name == "r"]
        far = {**values_of("ram+"), "r": 4.0}
        [other] = [each.component for each in controls_of(METHODS["ram+"], far, []) if each.name == "r"]
    assert (usual.maximum, other.maximum) == (1.0, 4.0)
    assert usual.info.endswith("; the recipe takes up to 10")


def test_parameters_have_the_kind_of_control_that_fits() -> None:
    with gr.Blocks(analytics_enabled=False):
        kinds = {
            control.name: type(control.component).__name__
            for name in ("ram+", "dare_ties", "isolate", "wudi")
            for control in controls_of(METHODS[name], values_of(name), ["code"])
        }
    assert kinds["r"] == kinds["density"] == kinds["p"] == "Slider"
    assert kinds["shared"] == kinds["scope"] == kinds["agent"] == "Dropdown"
    assert kinds["epsilon"] == "Textbox"
    assert kinds["alpha"] == kinds["seed"] == kinds["proximity"] == "Number"


def test_per_agent_numbers_are_written_as_text() -> None:
    values = values_of("dare_ties") | {"density": {"code": 0.1, "tool": 0.2}}
    with gr.Blocks(analytics_enabled=False):
        found = {control.name: control for control in controls_of(METHODS["dare_ties"], values, ["code", "tool"])}
    control = found["density"]
    assert isinstance(control.component, gr.Textbox)
    assert control.value(control.component.value) == {"code": 0.1, "tool": 0.2}
