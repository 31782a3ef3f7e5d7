"""The tab Look: what RL changed in the agents, live while it is counted, and what to try first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr

from ramerge.analysis.figures import percent
from ramerge.analysis.recommend import recommend, summary
from ramerge.analysis.report import charts
from ramerge.analysis.results import Analysis, analysis_of
from ramerge.flags.write import words_of
from ramerge.foundation.errors import RecipeError
from ramerge.recipe.document import Document
from ramerge.ui import views
from ramerge.ui.desk import Desk, html, text_place, told, told_often
from ramerge.ui.draft import checked_draft, portable_draft
from ramerge.ui.jobs import DONE, Job

_MOST_TENSORS = 30
_PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
Values = Mapping[str, Any]


def build(desk: Desk, recipe: gr.Code) -> None:
    """The tab's components and events."""
    with gr.Row():
        start = gr.Button("Analyze", variant="primary")
        stop = gr.Button("Stop", variant="stop")
    state = html("Progress")
    command = text_place("Command line")
    said = html("Findings")
    drawn = html("Figures")
    with gr.Row():
        agent = gr.Dropdown([], label="Heat map of")
        measure = gr.Dropdown(
            [(charts.TITLES.get(each, each), each) for each in charts.MEASURES], value=charts.MEASURES[0], label="Shows"
        )
    heat = html("Heat map", js_on_load=views.PICK)
    search = gr.Textbox(label="Search tensors and roles", info="click on one for its histogram", max_lines=1)
    tensors = html("Tensors", js_on_load=views.PICK)
    histogram = html("Histogram")
    found = gr.State(None)
    job = gr.State(None)

    def analyze(text: str, which: str | None, what: str) -> Iterator[tuple[Any, ...]]:
        checked = checked_draft(text, desk.roots)
        desk.planned(checked)
        document = portable_draft(checked)
        work = desk.job("Analysis", ["analyze", *words_of(document, start=desk.roots.home), "--json"])
        desk.queue.add(work)
        names = list(checked.agents)
        which = which if which in names else names[0]
        choices = gr.update(choices=names, value=which)
        live: Values = {}
        for _ in work.follow(1.0):
            parts = ["", "", ""]
            if work.figures and work.figures is not live:
                live = work.figures
                parts = _figures(_so_far(live), which, what)
            shown = [each or gr.skip() for each in parts]
            yield views.progress(work), views.command(work.words), *shown, choices, gr.skip(), work, gr.skip()
        if work.state != DONE:
            yield (views.progress(work), *[gr.skip()] * 6, None, gr.skip())
            return
        analysis = analysis_of(work.output)
        values = analysis.to_dict()
        advice = _advice(analysis, document, desk)
        told_of, figures, map_ = _figures(values, which, what)
        whole = views.block(_findings(values, advice)) + told_of
        yield (
            views.progress(work),
            views.command(work.words),
            whole,
            figures,
            map_,
            choices,
            values,
            None,
            _tensors(values, ""),
        )

    @told
    def draw_heat(values: Values | None, which: str | None, what: str) -> str:
        return _heat(values, which, what) if values and which else ""

    def filter_tensors(values: Values | None, words: str) -> str:
        return _tensors(values, words) if values else ""

    def pick_cell(event: gr.EventData) -> str:
        data = event._data
        return f"layer {data['layer']} {data['role']}" if "layer" in data else ""

    def pick_tensor(values: Values | None, event: gr.EventData) -> str:
        return _histogram(values, str(event._data.get("pick", ""))) if values else ""

    def stop_it(work: Job | None) -> None:
        if work is not None:
            work.stop()

    outputs = [state, command, said, drawn, heat, agent, found, job, tensors]
    inputs = [recipe, agent, measure]
    start.click(told_often(analyze), inputs, outputs, concurrency_limit=None, **_PRIVATE)
    stop.click(stop_it, job, None, **_PRIVATE)
    for control in (agent, measure):
        control.input(draw_heat, [found, agent, measure], heat, **_PRIVATE)
    heat.click(pick_cell, None, search, **_PRIVATE)
    search.change(filter_tensors, [found, search], tensors, trigger_mode="always_last", **_PRIVATE)
    tensors.click(pick_tensor, found, histogram, **_PRIVATE)


def _so_far(live: Values) -> dict[str, Any]:
    """An event with figures as much of an analysis as figures need."""
    method = "ram"
    return {"model": live["part"], "cells": live["cells"], "method": method, "rounding": {}}


def _figures(values: Values, agent: str, measure: str) -> list[str]:
    """Tables, figures, and the heat map."""
    drawn = [charts.density_bars(values), charts.overlap_bars(values)]
    return [views.block(views.agents(values)), views.block(views.figures(drawn)), _heat(values, agent, measure)]


def _heat(values: Values, agent: str, measure: str) -> str:
    names = [each["name"] for each in values["model"]["agents"]]
    if agent not in names or not values["cells"]:
        return ""
    return views.block(views.figure(charts.heat_map(values, names.index(agent), "heat", measure)))


def _advice(analysis: Analysis, document: Document, desk: Desk) -> list[str]:
    if len(analysis.model.agents) < 2:
        return []
    words = words_of(document, method=False, start=desk.roots.home)
    return summary(recommend(analysis), words)


def _findings(values: Values, advice: list[str]) -> str:
    claims = "".join(
        f'<li><p class="claim">{views.safe(one["text"])}</p><p class="reason">{views.safe(one["reason"])}</p></li>'
        for one in values["findings"]
    )
    pairs = "".join(
        f"<dt>{views.safe(key)}</dt><dd>{views.safe(value)}</dd>"
        for key, _, value in (line.partition(": ") for line in advice)
    )
    return (
        views.listing(values["warnings"], "warnings")
        + f'<ol class="findings">{claims}</ol>'
        + (f'<section><h3>What to try first</h3><dl class="advice">{pairs}</dl></section>' if pairs else "")
    )


def _tensors(values: Values, words: str) -> str:
    """A table of the tensors that fit a search, with a button for each."""
    asked = words.lower().split()
    fitting = [one for one in values["tensors"] if all(word in _searched(one) for word in asked)]
    names = [agent["name"] for agent in values["model"]["agents"]]
    rows = [
        (
            views.button(one["name"], one["name"]),
            one["role"],
            " × ".join(map(str, one["shape"])) or "scalar",
            *(percent(agent["density"]) for agent in one["agents"]),
        )
        for one in fitting[:_MOST_TENSORS]
    ]
    more = f"{len(fitting) - _MOST_TENSORS:,} more tensors: search for some" if len(fitting) > _MOST_TENSORS else ""
    head = ("tensor", "role", "shape", *(f"density {name}" for name in names))
    return views.block(views.table("Tensors", head, rows), views.listing([more] if more else []))


def _searched(tensor: Values) -> str:
    layer = "outside" if tensor["layer"] is None else str(tensor["layer"])
    return f"layer {layer} {tensor['role']} {tensor['name']}".lower()


def _histogram(values: Values, name: str) -> str:
    for tensor in values["tensors"]:
        if tensor["name"] == name:
            drawn = charts.update_sizes({**values, "model": tensor})
            return views.block(f"<h3>{views.safe(name)}</h3>", views.figure(drawn))
    raise RecipeError(f"{name}: the analysis has no such tensor")
