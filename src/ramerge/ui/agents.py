"""The tab Agents of the page: choice of base and agents, with their headers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import gradio as gr

from ramerge import RamergeError
from ramerge.core.planning.headers import read_headers
from ramerge.demo.run import AGENTS, copy_models
from ramerge.demo.tasks import DEMO_AGENTS
from ramerge.sdk.recipes import Document, words_of
from ramerge.ui import views
from ramerge.ui.desk import Desk, act, html, problem_place, text_place
from ramerge.ui.draft import EMPTY, models_in, read_draft, with_models

_DEMO = "demo"


class ModelPicker(NamedTuple):
    """The controls of the tab Agents that name models; the tab Choose uses them, too."""

    base: gr.Dropdown
    agents: gr.Dropdown


def build(desk: Desk, page: gr.Blocks, recipe: gr.Code) -> ModelPicker:
    """Build the tab Agents; return the controls that name models."""
    more = "" if desk.public else " a bucket (s3://bucket/model),"
    own = "folders below the roots," if not desk.public else ""
    choices = desk.roots.models()
    first, others = models_in(read_draft(desk.start or EMPTY, desk.roots))
    base = gr.Dropdown(
        choices,
        value=first,
        allow_custom_value=True,
        label=views.LABELS["--base"],
        info=f"{own}{more} or a hub id: owner/name",
    )
    agents = gr.Dropdown(
        choices,
        value=others,
        multiselect=True,
        allow_custom_value=True,
        label=views.LABELS["--agent"],
        info="RL-trained from the base; NAME=MODEL gives one a name, and so does the recipe",
    )
    with gr.Row():
        demo = gr.Button("Use the demo's agents", variant="primary")
        again = gr.Button("Look for models again")
    problems = problem_place()
    description = html("What the headers say")
    command = text_place("Command line")
    read = gr.State("")

    def choose(text: str, first: str | None, others: list[str]) -> str:
        return with_models(text or EMPTY, first, others or [], desk.roots)

    def look() -> tuple[object, object]:
        now = desk.roots.models()
        return gr.update(choices=now), gr.update(choices=now)

    def describe(text: str, before: str) -> tuple[object, ...]:
        """Show headers if the models have changed."""
        try:
            document = read_draft(text or EMPTY, desk.roots)
        except RamergeError as error:
            return views.problems(error.messages), "", ""
        first, others = models_in(document)
        now = json.dumps([first, others])
        if now == before:
            return (gr.skip(),) * 3
        if first is None and not others:
            return "", "", now
        words = ["plan", *words_of(document, method=False, start=desk.roots.home)] if others else ["plan", str(first)]
        return _headers_as_html(document, desk), desk.command(words), now

    for event in (base.input, agents.input):
        act(event, choose, [recipe, base, agents], recipe, problems)
    act(demo.click, partial(_use_demo, desk), recipe, [base, agents, recipe], problems)
    again.click(look, None, [base, agents], api_visibility="private")
    about = {"outputs": [description, command, read], "api_visibility": "private", "show_progress": "minimal"}
    recipe.change(describe, [recipe, read], trigger_mode="always_last", **about)
    page.load(describe, [recipe, read], **about)
    return ModelPicker(base, agents)


def _headers_as_html(document: Document, desk: Desk) -> str:
    try:
        return views.headers([replace(one, where=desk.roots.shorten(one.where)) for one in read_headers(document)])
    except RamergeError as error:
        return views.problems(error.messages)


def _use_demo(desk: Desk, text: str) -> tuple[object, ...]:
    folder = _demo_folder(desk)
    first, others = f"{folder}/base", {agent.name: f"{folder}/{agent.folder}" for agent in DEMO_AGENTS}
    agent_words = [f"{name}={model}" for name, model in others.items()]
    now = desk.roots.models()
    models = gr.update(choices=now, value=first), gr.update(choices=now, value=list(others.values()))
    return *models, with_models(text or EMPTY, first, agent_words, desk.roots)


def _demo_folder(desk: Desk) -> str:
    """Return the folder with the demo's agents and prompts: `demo` in the first root, filled like `ramerge demo
    --models`.
    """
    if desk.roots.is_shared:
        return str(AGENTS)
    folder = desk.roots.path(_DEMO)
    if not all((folder / agent.folder).is_dir() for agent in DEMO_AGENTS):
        copy_models(folder, lambda _: None)
    return _DEMO
