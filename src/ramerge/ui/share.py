"""The tab Share of the page: recipe, model card and report of a finished merge, and its upload."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import gradio as gr

from ramerge import RecipeError
from ramerge.analysis.finished import open_merge
from ramerge.core.recipe.document import parse_document
from ramerge.core.recipe.paths import portable
from ramerge.sdk.recipes import check
from ramerge.sdk.storage import is_remote
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, act, html, problem_place, text_place
from ramerge.ui.guard import REPORT
from ramerge.ui.jobs import DONE, Job
from ramerge.ui.merge import DELTA, MODEL, merge_job

_MOST_BYTES = 1 << 20


def build(desk: Desk) -> None:
    """Build the tab Share."""
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
            yield views.progress(work), gr.skip(), views.command(work.words)
        if work.state == DONE:
            words = f'href=".{REPORT}?out={quote(place)}" target="_blank" rel="noopener"'
            link = views.block(f"<p><a {words}>Open the report of {views.safe(place)}</a></p>")
            yield views.progress(work), link, views.command(work.words)

    act(look.click, show, out, [recipe, card], problems)
    act(write.click, report, out, [state, link, command], problems, concurrency_limit=None)
    if not desk.public:
        _upload(desk, out)


def _upload(desk: Desk, out: gr.Textbox) -> None:
    """Build the part of uploads: a finished merge is merged once more on its way to the hub or a bucket."""
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
        return work, gr.update(visible=True), f"Upload {name} to {work.title}", views.command(work.words)

    def send(work: Job) -> Iterator[tuple[object, ...]]:
        desk.queue.add(work)
        for _ in work.follow():
            yield views.progress(work), gr.update(visible=False)

    act(upload.click, prepare, [out, place, public, overwrite], [job, question, sure, command], problems)
    act(sure.click, send, job, [state, question], problems, concurrency_limit=None)
    cancel.click(lambda: gr.update(visible=False), None, question, **PRIVATE)


def upload_job(desk: Desk, name: str, place: str, *, public: bool = False, overwrite: bool = False) -> Job:
    """The job that merges a finished merge's own recipe into a remote place; nothing is sent yet."""
    place = place.strip()
    if not is_remote(place):
        raise RecipeError(f"Destination {place!r}: must be hub:owner/name or a folder in a bucket")
    folder = desk.roots.path(name)
    recipe, _ = open_merge(folder)
    kind = MODEL if recipe.parent == folder else DELTA
    text = desk.roots.read(str(recipe), _MOST_BYTES)
    # its paths start at its own folder, those of a draft at the page's root
    document = parse_document(text.encode("utf-8", "replace"), "recipe", recipe.parent)
    text = portable(check(document), None).to_yaml()
    return merge_job(desk, text, desk.roots.output(place), kind, overwrite=overwrite, public=public)
