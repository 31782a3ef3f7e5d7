"""The tab Choose: method and parameters as controls, in step with the YAML recipe; the plan's problems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

import gradio as gr
from gradio.events import Dependency

from ramerge import RamergeError, Recipe
from ramerge import plan as make_plan
from ramerge.core.methods.registry import listed
from ramerge.core.recipe.document import DEFAULT_METHOD
from ramerge.sdk.methods import METHODS
from ramerge.sdk.recipes import words_of
from ramerge.ui import views
from ramerge.ui.agents import ModelPicker
from ramerge.ui.controls import controls_of, meaningful
from ramerge.ui.desk import PRIVATE, Desk, act, problem_place, text_place
from ramerge.ui.draft import (
    EMPTY,
    checked_draft,
    models_in,
    parameters_in,
    portable_draft,
    read_draft,
    with_keys,
    with_parameters,
)

_KEEP = "as the base"


def build(desk: Desk, page: gr.Blocks, recipe: gr.Code, models: ModelPicker, chosen: Dependency | None) -> None:
    """Build the tab Choose; `chosen` is the choice of a search's best recipe, if the page has searches."""
    parameter_state = gr.State(_parameter_state(desk.start or EMPTY, desk))
    problems = problem_place(render=False)
    with gr.Row():
        with gr.Column(min_width=300):
            names = [(f"{name}: {method.title}", name) for name, method in listed().items()]
            method = gr.Dropdown(names, value=DEFAULT_METHOD, label=views.LABELS["--method"])
            with gr.Column():
                _draw_parameters(desk, recipe, parameter_state, problems)
            dtype = gr.Dropdown([_KEEP, *_allowed_values("dtype")], value=_KEEP, label="dtype", info="of the output")
            rounding = gr.Dropdown(_allowed_values("rounding"), value="nearest", label="rounding", info="to that dtype")
        with gr.Column(min_width=300):
            recipe.render()
            problems.render()
    plan_text = text_place("Plan")
    command = text_place("Command line")

    def change_method(text: str, name: str) -> tuple[str, object]:
        new_text = with_keys(text or EMPTY, {"method": name, "parameters": None, "preset": None}, desk.roots)
        return new_text, _parameter_state(new_text, desk)

    def follow(text: str) -> tuple[object, ...]:
        """Update the controls after the text was edited."""
        try:
            document = read_draft(text or EMPTY, desk.roots)
            name, _ = parameters_in(document)
        except RamergeError:
            return (gr.skip(),) * 6
        base, agents = models_in(document)
        others = str(document.stated("dtype") or _KEEP), str(document.stated("rounding") or "nearest")
        return (_parameter_state(text, desk), name, *others, base, agents)

    act(method.input, change_method, [recipe, method], [recipe, parameter_state], problems)
    act(dtype.input, _set_key(desk, "dtype", _KEEP), [recipe, dtype], recipe, problems)
    act(rounding.input, _set_key(desk, "rounding", "nearest"), [recipe, rounding], recipe, problems)
    outputs = [parameter_state, method, dtype, rounding, models.base, models.agents]
    recipe.input(follow, recipe, outputs, trigger_mode="always_last", **PRIVATE)
    if chosen is not None:
        chosen.then(follow, recipe, outputs, **PRIVATE)
    about = {"outputs": [problems, plan_text, command], "api_visibility": "private", "show_progress": "minimal"}
    plan = partial(_plan_text, desk)
    recipe.change(plan, recipe, trigger_mode="always_last", **about)
    page.load(plan, recipe, **about)


def _plan_text(desk: Desk, text: str) -> tuple[str, str, str]:
    """Return the problems, the plan, and its command."""
    try:
        document = read_draft(text or EMPTY, desk.roots)
        if not models_in(document)[1]:
            return "", "", ""
        draft = checked_draft(text, desk.roots)
        words = ["plan", *words_of(portable_draft(draft), prompts=True, start=desk.roots.home)]
        if draft.prompts:  # whose plan may ask every agent first, which takes minutes
            return "", "", desk.command(words)
        result = make_plan(draft, options=desk.options)
    except RamergeError as error:
        return views.problems(error.messages), "", ""
    texts = [*result.details.findings.problems, *result.warnings, *result.forecast]
    return (
        views.problems(map(desk.roots.shorten, texts)),
        views.copyable("Plan" if result.problems else "Plan: ready to merge", desk.roots.shorten(result.explain())),
        desk.command(words),
    )


def _set_key(desk: Desk, key: str, usual: str) -> Callable[..., object]:
    """Return the action of a control for a key of the recipe; the key is omitted for its usual value."""
    return lambda text, value: with_keys(text or EMPTY, {key: None if value == usual else value}, desk.roots)


def _draw_parameters(desk: Desk, recipe: gr.Code, parameter_state: gr.State, problems: gr.HTML) -> None:
    """Draw the controls of the method's parameters; redraw them when the method or the text has changed."""

    @gr.render(inputs=parameter_state, show_progress="hidden")  # type: ignore[untyped-decorator]
    def parameters(state: tuple[str, dict[str, object], list[str]]) -> None:
        name, values, agents = state
        controls = controls_of(METHODS[name], values, agents)

        def change_parameters(text: str, *inputs_of_controls: object) -> tuple[str, object]:
            changes = {
                control.name: control.value(value) for control, value in zip(controls, inputs_of_controls, strict=True)
            }
            now = with_parameters(text or EMPTY, {**values, **changes}, desk.roots)
            others = meaningful(METHODS[name], {**values, **changes}) != [control.name for control in controls]
            return now, _parameter_state(now, desk) if others else gr.skip()

        components = [control.component for control in controls]
        for component in components:
            event = component.submit if isinstance(component, gr.Textbox) else component.input
            inputs, outputs = [recipe, *components], [recipe, parameter_state]
            act(event, change_parameters, inputs, outputs, problems, trigger_mode="always_last")
            if isinstance(component, gr.Textbox):
                act(component.blur, change_parameters, inputs, outputs, problems)


def _parameter_state(text: str, desk: Desk) -> tuple[str, dict[str, object], list[str]]:
    """Return the values of a recipe that controls show: method, parameters and names of agents."""
    document = read_draft(text, desk.roots)
    name, values = parameters_in(document)
    return name, values, list(document.agents)


def _allowed_values(key: str) -> list[str]:
    """Return the values that a key of recipes may have."""
    literals: list[str] = []
    for kind in get_args(Recipe.model_fields[key].annotation) or ():
        literals += [kind] if isinstance(kind, str) else [each for each in get_args(kind) if isinstance(each, str)]
    return literals
