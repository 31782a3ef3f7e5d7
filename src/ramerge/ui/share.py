"""The tab Share of the page: recipe, model card and report of a finished merge, its upload, and its distillation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import gradio as gr

from ramerge import RamergeError, RecipeError
from ramerge.analysis.finished import open_merge
from ramerge.core.recipe.document import parse_document
from ramerge.core.recipe.paths import portable
from ramerge.distillation.trainer import TRAINERS
from ramerge.sdk.recipes import check
from ramerge.sdk.storage import is_remote
from ramerge.sdk.text import quantity
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, act, html, problem_place, run_buttons, show_stop_while_running, text_place
from ramerge.ui.draft import agents_in, read_draft
from ramerge.ui.guard import REPORT
from ramerge.ui.jobs import DONE, Job
from ramerge.ui.merge import DELTA, MODEL, merge_job
from ramerge.ui.search import prompt_lines, prompts_in

_MOST_BYTES = 1 << 20
_LONGEST = 1024
"""The most tokens of a reply: the default of the command."""
_ABOUT = (
    "If the merge is not good enough, a trainer distills the agents into it: each is the teacher for the prompts of "
    "its task. Here you get the trainer's files, with the merge as the student. No weights are copied."
)


def build(desk: Desk, tab: gr.Tab, searched: gr.Textbox | None) -> None:
    """Build the tab Share.

    Args:
        searched: prompts of the search in the tab Choose; None on a page without searches.
    """
    with gr.Row():
        out = gr.Textbox("merged", label="Finished merge", info="its folder", max_lines=1)
        look = gr.Button("Show recipe and card")
        write = gr.Button("Write the report", variant="primary")
    problems = problem_place()
    state = html("Progress")
    link = html("Report")
    command = text_place("Command line")
    with gr.Row():
        recipe = text_place("Recipe")
        card = text_place("Model card")

    def show(name: str, request: gr.Request) -> tuple[str, str]:
        path, _ = open_merge(desk.roots.path(desk.place(request, name)))
        texts = [desk.roots.read(str(each), _MOST_BYTES) for each in (path, path.with_name("README.md"))]
        return views.copyable("Recipe", texts[0]), views.copyable("Model card", texts[1])

    def report(name: str, request: gr.Request) -> Iterator[tuple[object, ...]]:
        place = desk.place(request, name)
        work = desk.queue.add(desk.job("Report", ["report", place]))
        for _ in work.follow():
            yield views.progress_html(work), gr.skip(), views.command_html(work.words)
        if work.state == DONE:
            words = f'href=".{REPORT}?out={quote(place)}" target="_blank" rel="noopener"'
            link = views.block(f"<p><a {words}>Open the report of {views.safe(place)}</a></p>")
            yield views.progress_html(work), link, views.command_html(work.words)

    act(look.click, show, out, [recipe, card], problems)
    act(write.click, report, out, [state, link, command], problems, concurrency_limit=None)
    if not desk.public:
        _build_upload(desk, out)
    if searched is not None:
        _build_distillation(desk, tab, out, searched)


def _build_upload(desk: Desk, out: gr.Textbox) -> None:
    """Build the part for uploads, which merges a finished merge's recipe again, into the hub or a bucket."""
    with gr.Accordion("Upload", open=False):
        with gr.Row():
            info = "hub:owner/name, or a folder in a bucket: s3://bucket/model, gs://, az://"
            place = gr.Textbox("", label="Destination", info=info, max_lines=1)
            info = "--public: a new repository of the hub is private otherwise"
            public = gr.Checkbox(False, label=views.LABELS["--public"], info=info)
            overwrite = gr.Checkbox(False, label=views.LABELS["--overwrite"], info="--overwrite")
        upload = gr.Button("Upload")
        with gr.Row(visible=False) as question:
            sure = gr.Button("", variant="primary")
            cancel = gr.Button("Cancel")
        problems = problem_place()
        state = html("Progress")
        command = text_place("Command line")
    job = gr.State(None)

    def prepare(name: str, target: str, everyone: bool, replacing: bool, request: gr.Request) -> tuple[object, ...]:
        work = upload_job(desk, desk.place(request, name), target, public=everyone, overwrite=replacing)
        return work, gr.update(visible=True), f"Upload {name} to {work.title}", views.command_html(work.words)

    def send(work: Job) -> Iterator[tuple[object, ...]]:
        desk.queue.add(work)
        for _ in work.follow():
            yield views.progress_html(work), gr.update(visible=False)

    act(upload.click, prepare, [out, place, public, overwrite], [job, question, sure, command], problems)
    act(sure.click, send, job, [state, question], problems, concurrency_limit=None)
    cancel.click(lambda: gr.update(visible=False), None, question, **PRIVATE)


def upload_job(desk: Desk, name: str, place: str, *, public: bool = False, overwrite: bool = False) -> Job:
    """Make the job that merges a finished merge's own recipe into a remote location; nothing is sent yet."""
    place = place.strip()
    if not is_remote(place):
        raise RecipeError(f"Destination {place!r}: must be hub:owner/name or a folder in a bucket")
    text, kind = _recipe_of(desk, name)
    return merge_job(desk, text, desk.roots.output(place), kind, overwrite=overwrite, public=public)


def _recipe_of(desk: Desk, name: str) -> tuple[str, str]:
    """Return the recipe of a finished merge as a draft, and the kind of its output."""
    folder = desk.roots.path(name)
    recipe, _ = open_merge(folder)
    text = desk.roots.read(str(recipe), _MOST_BYTES)
    # its paths start at its own folder, those of a draft at the page's root
    document = parse_document(text.encode("utf-8", "replace"), "recipe", recipe.parent)
    return portable(check(document), None).to_yaml(), MODEL if recipe.parent == folder else DELTA


# --- distillation -----------------------------------------------------------------------------------------------------


def _build_distillation(desk: Desk, tab: gr.Tab, out: gr.Textbox, searched: gr.Textbox) -> None:
    """Build the part for `ramerge handoff`: files with which a trainer distills the agents into a finished merge."""
    with gr.Accordion("Distill the agents into this merge", open=False):
        html("About", views.block(f"<p>{_ABOUT}</p>"))
        info = "a line NAME=FILE for each agent; those of the search, or next to an agent, are filled in"
        prompts = gr.Textbox("", lines=3, label=views.LABELS["--prompts"], info=info)
        with gr.Row():
            trainers = [(f"{name}: {trainer.title}", name) for name, trainer in TRAINERS.items()]
            trainer = gr.Dropdown(trainers, value="trl", label=views.LABELS["--for"], info="--for")
            folder = gr.Textbox("student", label="Folder of the files", info="the name of a new folder", max_lines=1)
            overwrite = gr.Checkbox(False, label=views.LABELS["--overwrite"], info="--overwrite")
        with gr.Row():
            info = "--teacher: a line NAME=MODEL for an agent that is an adapter, a delta or missing"
            teachers = gr.Textbox("", lines=1, label=views.LABELS["--teacher"], info=info, placeholder="none")
            info = "--hold-out: of each agent, to score the student with"
            held_out = gr.Number(0, precision=0, minimum=0, label=views.LABELS["--hold-out"], info=info)
            info = "--max-new: at most"
            longest = gr.Number(_LONGEST, precision=0, minimum=1, label=views.LABELS["--max-new"], info=info)
        start, stop = run_buttons("Write the files for the trainer")
        problems = problem_place()
        command = text_place("Command line")
        state = html("Progress")
        files_place = html("What was written")
        next_command = text_place("Next")
    job = gr.State(None)

    def fill(name: str, lines_of_search: str, lines: str) -> object:
        """A line for each agent of the merge, with the user's text for the agent, from this tab or the search."""
        try:
            agents = agents_in(_recipe_of(desk, name)[0], desk.roots)
        except RamergeError:
            return gr.skip()  # the button shows the problems
        own = {agent: file for agent, file in prompts_in(lines).items() if file}
        return prompt_lines(agents, prompts_in(lines_of_search) | own, desk.roots)

    def write(*settings: Any) -> Iterator[tuple[object, ...]]:
        work = desk.queue.add(Job("Handoff", handoff_words(desk, *settings), desk.roots.home))
        for _ in work.follow():
            yield views.progress_html(work), "", "", work.active_job_or_none
        if work.state == DONE:
            yield views.progress_html(work), *handoff_views(json.loads(work.output), settings[3]), None

    last: dict[str, object] = {"trigger_mode": "always_last", **PRIVATE}
    inputs = [out, prompts, trainer, folder, overwrite, teachers, held_out, longest]
    shown_first = [problems, command]
    preview = partial(_preview_command, desk)
    filled = gr.on([tab.select, out.blur], fill, [out, searched, prompts], prompts, **last)
    filled.then(preview, inputs, shown_first, **PRIVATE)
    blurs = [box.blur for box in (prompts, folder, teachers, held_out, longest)]
    gr.on([*blurs, trainer.input, overwrite.input], preview, inputs, shown_first, **last)
    act(start.click, write, inputs, [state, files_place, next_command, job], problems, concurrency_limit=None)
    show_stop_while_running(job, stop)


def _preview_command(desk: Desk, name: str, lines: str, *settings: Any) -> tuple[object, str]:
    """Return the problems, or the command line; nothing while prompts are missing."""
    files = prompts_in(lines)
    if not files or not all(files.values()):
        return gr.skip(), ""
    try:
        return "", views.command_html(handoff_words(desk, name, lines, *settings))
    except RamergeError as error:
        return views.problems(error.messages), ""


def handoff_words(
    desk: Desk,
    name: str,
    lines: str,
    trainer: str,
    folder: str,
    overwrite: bool,
    teachers: str = "",
    held_out: float = 0,
    longest: float = _LONGEST,
) -> list[str]:
    """Return the arguments of the command that hands a finished merge to a trainer.

    Args:
        lines: prompts, as lines of NAME=FILE.
        teachers: teachers that replace agents, as lines of NAME=MODEL.
    """
    merged = desk.roots.output(name)
    agents = read_draft(_recipe_of(desk, merged)[0], desk.roots).agents
    prompts = desk.roots.prompts(dict.fromkeys(agents, "") | prompts_in(lines))
    words = ["handoff", merged, replace(desk.roots, remote=False).output(folder), "--for", trainer]
    words += [word for agent, path in prompts.items() for word in ("--prompts", f"{agent}={path}")]
    for agent, model in prompts_in(teachers).items():
        desk.roots.check_model(model)
        words += ["--teacher", f"{agent}={model}"]
    words += ["--hold-out", str(int(held_out or 0)), "--max-new", str(int(longest or 0))]
    return [*words, *["--overwrite"] * overwrite, "--json"]


def handoff_views(record: Mapping[str, Any], folder: str) -> tuple[str, str]:
    """Return the record of a handoff as HTML: the files with what the trainer needs, and the command that starts it."""
    counts = ", ".join(f"{name} {count:,}" for name, count in record["prompts"].items())
    files = ", ".join(f"{folder}/{name}" for name in record["files"])
    needs = [f"before: {record['needs']}"] if record["needs"] else []
    sentences = [
        f"{record['trainer']}: {quantity(len(record['teachers']), 'teacher')}, prompts: {counts}",
        f"files: {files}",
    ]
    return views.block(views.listing([*sentences, *needs])), views.copyable("Start the trainer", record["command"])
