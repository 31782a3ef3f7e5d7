"""The tab Search of the page: the best merge by a few prompts of each agent's task, and the points of any search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from ramerge import RamergeError
from ramerge.calibration.record import CalibrationSettings
from ramerge.sdk.flags import words_of
from ramerge.sdk.recipes import models_only, open_recipe
from ramerge.searches.charts import figures_of
from ramerge.searches.results import SearchResult, read_search
from ramerge.searches.text import failures, findings, ranking_rows
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, html, text_place, told, while_running
from ramerge.ui.draft import EMPTY, agents_in, read_draft, with_keys
from ramerge.ui.jobs import DONE

_USUAL = CalibrationSettings()
_ABOUT = (
    "A few prompts of each agent's task show which merge comes closest to all agents. They need no answers: JSON Lines "
    "or Parquet with prompt or messages. A trainer's rollouts, which have rewards, choose better."
)


def build(desk: Desk, recipe: gr.Code) -> None:
    """Build the tab Search."""
    html("About", views.block(f"<p>{_ABOUT}</p>"))
    info = "NAME=FILE for each agent, a file or folder below the roots"
    prompts = gr.Textbox(_lines(agents_in(desk.start, desk.roots), {}), lines=3, label="Prompts", info=info)
    with gr.Row():
        info = "--prompt-count: of each agent; half of them score"
        count = gr.Number(_USUAL.count, precision=0, minimum=2, label="Number of prompts", info=info)
        info = "--max-new: at most, where prompts come without replies"
        longest = gr.Number(_USUAL.max_new, precision=0, minimum=1, label="Tokens of a reply", info=info)
        info = "a new folder, or one of a search to resume or show"
        out = gr.Textbox("search", label="Folder of the search", info=info, max_lines=1)
    with gr.Row():
        start = gr.Button("Find the best merge", variant="primary")
        stop = gr.Button("Stop", visible=False)
        look = gr.Button("Show the search")
    problems = html("Problems")
    command = text_place("Command line")
    state = html("Progress")
    found = html("Candidates")
    choose = gr.Button("Choose the best", visible=False)
    job = gr.State(None)

    def preview(text: str, lines: str, *given: Any) -> tuple[str, str]:
        """Problems, or the command line; nothing while prompts are missing."""
        try:
            return "", desk.command(search_words(desk, text, lines, *given)) if all(_files(lines).values()) else ""
        except RamergeError as error:
            return views.block(views.listing(error.problems, "warnings")), ""

    def search(*given: Any) -> Iterator[tuple[object, ...]]:
        work = desk.queue.add(desk.job("Search", search_words(desk, *given)))
        for _ in work.follow():
            yield views.progress(work), "", work
        if work.state == DONE:
            yield views.progress(work), show(given[-1]), None

    def show(folder: str) -> str:
        return search_view(read_search(desk.roots.path(f"{folder}/search.json")), folder)

    def take(text: str, folder: str) -> str:
        """The recipe with method and parameters of the best."""
        values = open_recipe(desk.roots.path(f"{folder}/recipe.yaml")).values
        keys = {key: values.get(key) for key in ("method", "parameters", "preset", "prompts")}
        return with_keys(text, keys, desk.roots)

    def follow(text: str, lines: str) -> object:
        """A line for each agent of the recipe, with what was typed for it."""
        names = agents_in(text, desk.roots)
        return _lines(names, _files(lines)) if names else gr.skip()

    last: dict[str, object] = {"trigger_mode": "always_last", **PRIVATE}
    inputs, told_first = [recipe, prompts, count, longest, out], [problems, command]
    followed = recipe.change(follow, [recipe, prompts], prompts, **last)
    followed.then(preview, inputs, told_first, **PRIVATE)
    gr.on([box.blur for box in (prompts, count, longest, out)], preview, inputs, told_first, **last)
    start.click(told(search), inputs, [state, found, job], concurrency_limit=None, **PRIVATE)
    while_running(job, stop)
    found.change(lambda shown: gr.update(visible=bool(shown)), found, choose, **PRIVATE)
    choose.click(told(take), [recipe, out], recipe, **PRIVATE)
    look.click(told(show), out, found, **PRIVATE)


def _files(lines: str) -> dict[str, str]:
    """Prompts by agent, from lines of NAME=FILE."""
    parts = [line.partition("=") for line in lines.splitlines() if line.strip()]
    return {name.strip(): file.strip() for name, _, file in parts}


def _lines(names: Sequence[str], files: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={files.get(name, '')}" for name in names)


def search_words(desk: Desk, text: str, lines: str, count: float, longest: float, folder: str) -> list[str]:
    """The words of the command that searches by prompts of each agent, given as lines of NAME=FILE.

    Raises:
        RecipeError: the recipe names no models, or anything is outside of the roots or not there.
    """
    document = read_draft(text or EMPTY, desk.roots)
    prompts = desk.roots.prompts(dict.fromkeys(models_only(document).agents, "") | _files(lines))
    words = ["search", *words_of(document, method=False, start=desk.roots.home)]
    words += [word for name, path in prompts.items() for word in ("--prompts", f"{name}={path}")]
    words += ["--prompt-count", str(int(count or 0)), "--max-new", str(int(longest or 0))]
    return [*words, replace(desk.roots, remote=False).output(folder)]


def search_view(result: SearchResult, folder: str) -> str:
    """A search as HTML: sentences, where the best is, points, and figures."""
    head, rows = ranking_rows(result)
    drawn = [figure for figure in figures_of(result) if figure.name in ("front", "ranking", "course")]
    said = [*findings(result), f"checkpoint in {folder}/best, recipe in {folder}/recipe.yaml"]
    failed = views.listing(failures(result), "warnings")
    return views.block(views.listing(said), failed, views.table("Points", head, rows), views.figures(drawn))
