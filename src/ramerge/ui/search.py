"""The upper part of the tab Choose: finds the best merge by a few prompts of each agent's task; shows any search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from gradio.events import Dependency

from ramerge import RamergeError
from ramerge.calibration.record import CalibrationSettings
from ramerge.core.recipe.paths import portable
from ramerge.core.recipe.read import recipe_document
from ramerge.sdk.recipes import check, models_only, words_of
from ramerge.searches.charts import figures_of
from ramerge.searches.results import SearchResult, read_search
from ramerge.searches.text import column_definitions, failures, findings, ranking_rows
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, act, html, problem_place, show_stop_while_running, text_place
from ramerge.ui.draft import EMPTY, agents_in, read_draft
from ramerge.ui.jobs import DONE
from ramerge.ui.roots import Roots

_USUAL = CalibrationSettings()
_ABOUT = (
    "A few prompts of each agent's task show which merge comes closest to all agents. They need no answers: JSON Lines "
    "or Parquet with prompt or messages. A trainer's rollouts, which have rewards, choose better."
)


class SearchPart(NamedTuple):
    """The parts of the search that others build upon: the control of prompts, and the choice of the best recipe."""

    prompts: gr.Textbox
    choice: Dependency


def build(desk: Desk, recipe: gr.Code) -> SearchPart:
    """Build the search for the best merge by prompts, the upper part of the tab Choose."""
    html("About", views.block(f"<p>{_ABOUT}</p>"))
    with gr.Row():
        info = "NAME=FILE for each agent, a file or folder below the roots; those next to an agent are filled in"
        lines = prompt_lines(agents_in(desk.start, desk.roots), {}, desk.roots)
        prompts = gr.Textbox(lines, lines=3, label=views.LABELS["--prompts"], info=info)
        info = "--reward: FILE.py:FUNCTION in verl's form, for prompts with ground_truth; then only right replies count"
        reward = gr.Textbox("", label=views.LABELS["--reward"], info=info, placeholder="none", max_lines=1)
        info = "--generate: the best merges reply to held-out prompts, too; needs a reward function"
        generate = gr.Checkbox(False, label=views.LABELS["--generate"], info=info)
    with gr.Row():
        info = "--prompt-count: of each agent; half of them score"
        count = gr.Number(_USUAL.count, precision=0, minimum=2, label=views.LABELS["--prompt-count"], info=info)
        info = "--max-new: at most, where prompts come without replies"
        longest = gr.Number(_USUAL.max_new, precision=0, minimum=1, label=views.LABELS["--max-new"], info=info)
        info = "a new folder, or one of a search to resume or show"
        out = gr.Textbox("search", label="Folder of the search", info=info, max_lines=1)
    with gr.Row():
        start = gr.Button("Find the best merge", variant="primary")
        stop = gr.Button("Stop", visible=False)
        look = gr.Button("Show the search")
    choose = gr.Button("Choose the best", visible=False)
    problems = problem_place()
    command = text_place("Command line")
    state = html("Progress")
    candidates = html("Candidates")
    job = gr.State(None)

    def search(*settings: Any) -> Iterator[tuple[object, ...]]:
        work = desk.queue.add(desk.job("Search", search_words(desk, *settings)))
        for _ in work.follow():
            yield views.progress_html(work), "", work.active_job_or_none
        if work.state == DONE:
            yield views.progress_html(work), show(settings[-1]), None

    def show(folder: str) -> str:
        return search_view(read_search(desk.roots.path(f"{folder}/search.json")), folder)

    def follow(text: str, lines: str) -> object:
        """Return a line for each agent of the recipe, with the user's text for the agent."""
        new = prompt_lines(agents_in(text, desk.roots), prompts_in(lines), desk.roots)
        # an answer that changes nothing must not replace what is being typed
        return gr.skip() if prompts_in(new) in ({}, prompts_in(lines)) else new

    last: dict[str, object] = {"trigger_mode": "always_last", **PRIVATE}
    inputs, shown_first = [recipe, prompts, reward, generate, count, longest, out], [problems, command]
    preview = partial(_preview_command, desk)
    follow_event = recipe.change(follow, [recipe, prompts], prompts, **last)
    follow_event.then(preview, inputs, shown_first, **PRIVATE)
    changes = [generate.change, *(box.blur for box in (prompts, reward, count, longest, out))]
    gr.on(changes, preview, inputs, shown_first, **last)
    act(start.click, search, inputs, [state, candidates, job], problems, concurrency_limit=None)
    show_stop_while_running(job, stop)
    candidates.change(lambda view: gr.update(visible=bool(view)), candidates, choose, **PRIVATE)
    choice_event = act(choose.click, partial(best_recipe, desk), out, recipe, problems)
    act(look.click, show, out, candidates, problems)
    return SearchPart(prompts, choice_event)


def best_recipe(desk: Desk, folder: str) -> str:
    """Return the recipe of a search's best merge as a draft."""
    best = check(recipe_document(desk.roots.path(f"{folder}/recipe.yaml")))
    return portable(best, desk.roots.home).to_yaml()


def _preview_command(desk: Desk, text: str, lines: str, *settings: Any) -> tuple[object, str]:
    """Return the problems, or the command line; nothing while prompts are missing."""
    if not all(prompts_in(lines).values()):
        return gr.skip(), ""
    try:
        return "", desk.command(search_words(desk, text, lines, *settings))
    except RamergeError as error:
        return views.problems(error.messages), ""


def prompts_in(lines: str) -> dict[str, str]:
    """Return prompts by agent, from lines of NAME=FILE."""
    parts = [line.partition("=") for line in lines.splitlines() if line.strip()]
    return {name.strip(): file.strip() for name, _, file in parts}


def prompt_lines(agents: Mapping[str, str], files: Mapping[str, str], roots: Roots) -> str:
    """A line NAME=FILE for each agent; if no file was typed, the file with its name next to its model's folder."""
    return "\n".join(f"{name}={files.get(name) or roots.next_to(model, name)}" for name, model in agents.items())


def search_words(
    desk: Desk, text: str, lines: str, reward: str, generate: bool, count: float, longest: float, folder: str
) -> list[str]:
    """Return the arguments of the command that searches by prompts, given as lines of NAME=FILE."""
    document = read_draft(text or EMPTY, desk.roots)
    prompts = desk.roots.prompts(dict.fromkeys(models_only(document).agents, "") | prompts_in(lines))
    words = ["search", *words_of(document, method=False, start=desk.roots.home)]
    words += [word for name, path in prompts.items() for word in ("--prompts", f"{name}={path}")]
    words += ["--reward", desk.roots.function(reward)] if reward.strip() else []
    words += ["--generate"] if generate else []
    words += ["--prompt-count", str(int(count or 0)), "--max-new", str(int(longest or 0))]
    return [*words, replace(desk.roots, remote=False).output(folder)]


def search_view(result: SearchResult, folder: str) -> str:
    """Return a search as HTML: sentences, where the best merge is, points, and figures."""
    head, rows = ranking_rows(result)
    charts = [figure for figure in figures_of(result) if figure.name in ("front", "ranking", "course")]
    place = f"checkpoint in {folder}/best, recipe in {folder}/recipe.yaml"
    sentences = [*column_definitions(result), *findings(result, Path(folder)), place]
    sentence_list = views.listing(map(views.in_page_words, sentences))
    failure_list = views.listing(map(views.in_page_words, failures(result)), "warnings")
    return views.block(sentence_list, failure_list, views.table("Points", head, rows), views.figures(charts))
