"""The tab Look: what RL changed in the agents, live while it is counted, and the method to try first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import gradio as gr

from ramerge import RecipeError
from ramerge.analysis.recommend import recommend_by_weights
from ramerge.analysis.report import charts
from ramerge.analysis.report.page import findings
from ramerge.analysis.report.rows import Values
from ramerge.analysis.results import Analysis, analysis_of
from ramerge.analysis.text import percent
from ramerge.sdk.recipes import Document, words_of
from ramerge.sdk.text import quantity
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, act, html, problem_place, run_buttons, show_stop_while_running, text_place
from ramerge.ui.draft import checked_draft, portable_draft, with_keys
from ramerge.ui.jobs import DONE

_MOST_TENSORS = 12


def build(desk: Desk, recipe: gr.Code) -> None:
    """Build the tab Look."""
    start, stop = run_buttons("Analyze")
    choose = gr.Button("Choose what is recommended", visible=False)
    problems = problem_place()
    state = html("Progress")
    command = text_place("Command line")
    sentences = html("Findings")
    figures_place = html("Figures")
    with gr.Row():
        agent = gr.Dropdown([], label="Heat map of")
        measure = gr.Dropdown(
            [(charts.TITLES.get(each, each), each) for each in charts.MEASURES], value=charts.MEASURES[0], label="Shows"
        )
    heat = html("Heat map", js_on_load=views.PICK)
    search = gr.Textbox(label="Search tensors and roles", info="click on one for its histogram", max_lines=1)
    histogram = html("Histogram")
    tensors = html("Tensors", js_on_load=views.PICK)
    analysis_state = gr.State(None)
    advice_state = gr.State(None)
    job = gr.State(None)

    outputs = [
        state,
        command,
        sentences,
        figures_place,
        heat,
        agent,
        analysis_state,
        tensors,
        advice_state,
        choose,
        job,
    ]
    inputs = [recipe, agent, measure]
    act(start.click, partial(_run_analysis, desk), inputs, outputs, problems, concurrency_limit=None)
    show_stop_while_running(job, stop)
    act(choose.click, lambda text, keys: with_keys(text, keys, desk.roots), [recipe, advice_state], recipe, problems)
    for control in (agent, measure):
        act(control.input, _heat_map, [analysis_state, agent, measure], heat, problems)
    heat.click(_pick_cell, None, search, **PRIVATE)
    search.change(_search_results, [analysis_state, search], tensors, trigger_mode="always_last", **PRIVATE)
    act(tensors.click, _pick_tensor, analysis_state, histogram, problems)


def _run_analysis(desk: Desk, text: str, agent: str | None, measure: str) -> Iterator[tuple[object, ...]]:
    """Run `ramerge analyze` as a job: yield figures while they are counted, then all figures with the findings."""
    draft = checked_draft(text, desk.roots)
    desk.plan(draft)
    document = portable_draft(draft)
    words = ["analyze", *words_of(document, start=desk.roots.home), "--json"]
    work = desk.queue.add(desk.job("Analysis", words))
    names = list(draft.agents)
    chosen_agent = agent if agent in names else names[0]
    choices, live = gr.update(choices=names, value=chosen_agent), None
    for _ in work.follow(1.0):
        views_of_figures: Sequence[object] = [gr.skip()] * 3
        if work.figures and work.figures is not live:
            live = work.figures
            views_of_figures = _render_figures(_partial_analysis(live), [], chosen_agent, measure)
        yield (
            views.progress_html(work),
            views.command_html(work.words),
            *views_of_figures,
            choices,
            *[gr.skip()] * 4,
            work,
        )
    if work.state != DONE:
        yield views.progress_html(work), *[gr.skip()] * 9, None
        return
    analysis = analysis_of(work.output)
    values = analysis.to_dict()
    advice, keys = _merge_advice(analysis, document, desk)
    views_of_figures = _render_figures(values, advice, chosen_agent, measure)
    choose = gr.update(visible=bool(keys), value=f"Choose what is recommended: {keys.get('method')}")
    yield (
        views.progress_html(work),
        views.command_html(work.words),
        *views_of_figures,
        choices,
        values,
        _search_results(values, ""),
        keys,
        choose,
        None,
    )


def _pick_cell(event: gr.EventData) -> str:
    """Return the search text for tensors, after a click on a cell of the heat map."""
    return f"layer {event._data['layer']} {event._data['role']}" if "layer" in event._data else ""


def _pick_tensor(values: Values | None, event: gr.EventData) -> object:
    """Return the histogram of a tensor, after a click on the tensor."""
    if not values or "pick" not in event._data:
        return gr.skip()
    name = event._data["pick"]
    for tensor in values["tensors"]:
        if tensor["name"] == name:
            figure = charts.update_sizes({**values, "model": tensor})
            return views.block(f"<h3>{views.safe(name)}</h3>", views.figure(figure))
    raise RecipeError(f"{name}: the analysis has no such tensor")


def _partial_analysis(live: Values) -> Values:
    """Return as much of an analysis as its figures need, from a progress event."""
    texts: dict[str, Sequence[str]] = dict.fromkeys(("findings", "warnings", "notes"), ())
    return {**live, "model": live["part"], "method": "ram", "rounding": {}, **texts}


def _render_figures(values: Values, advice: list[str], agent: str, measure: str) -> list[str]:
    """Return findings, figures and the heat map as HTML."""
    bars = [charts.density_bars(values), charts.overlap_bars(values)]
    html_of_figures = views.figures(figure for figure in bars if figure.rows)
    return [views.block(findings(values, advice)), views.block(html_of_figures), _heat_map(values, agent, measure)]


def _heat_map(values: Values | None, agent: str | None, measure: str) -> str:
    names = [each["name"] for each in values["model"]["agents"]] if values else []
    if values is None or agent not in names or not values["cells"]:
        return ""
    return views.block(views.figure(charts.heat_map(values, names.index(agent), "heat", measure)))


def _merge_advice(analysis: Analysis, document: Document, desk: Desk) -> tuple[list[str], dict[str, object]]:
    """Return advice on the merge to try first, as lines and as keys of a recipe; nothing for a single agent."""
    if len(analysis.model.agents) < 2:
        return [], {}
    advice = recommend_by_weights(analysis, document, desk.roots.home)
    method = {"method": advice.method, "parameters": advice.parameters, "preset": None}
    return advice.lines, {**method, "rounding": advice.rounding}


def _search_results(values: Values | None, words: str) -> str:
    """Return a table of the tensors that match a search as HTML, with a button for each."""
    if values is None:
        return ""
    fitting = []
    for one in values["tensors"]:
        layer = "outside" if one["layer"] is None else one["layer"]
        search_text = f"layer {layer} {one['role']} {one['name']}".lower()
        if all(word in search_text for word in words.lower().split()):
            fitting.append(one)
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
    more = (
        f"{quantity(len(fitting) - _MOST_TENSORS, 'more tensor')}: search for some"
        if len(fitting) > _MOST_TENSORS
        else ""
    )
    head = ("tensor", "role", "shape", *(f"density {name}" for name in names))
    return views.block(views.table("Tensors", head, rows), views.listing([more] if more else []))
