"""The tab Share: a merge's recipe, model card and report, and its upload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import gradio as gr

from ramerge.foundation.errors import RecipeError
from ramerge.storage.schemes import on_hub
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, html, text_place, told, told_often
from ramerge.ui.guard import REPORT
from ramerge.ui.jobs import DONE
from ramerge.ui.run import MODEL, merge_job

_FILES = ("ramerge.yaml", "README.md")
_MOST_BYTES = 1 << 20


def build(desk: Desk, recipe: gr.Code) -> None:
    """The tab's components and events."""
    with gr.Row():
        out = gr.Textbox("merged", label="Finished merge", info="its folder", max_lines=1)
        look = gr.Button("Show recipe and card")
        write = gr.Button("Write the report", variant="primary")
    state = html("Progress")
    link = html("Report")
    command = text_place("Command line")
    with gr.Row():
        text = text_place("Recipe")
        card = text_place("Model card")

    def show(name: str, request: gr.Request) -> tuple[str, str]:
        place = desk.place(request, name)
        found = [_read(desk, place, file) for file in _FILES]
        if not any(found):
            raise RecipeError(f"{name}: holds no finished merge")
        return views.copyable("Recipe", found[0]), views.copyable("Model card", found[1])

    def report(name: str, request: gr.Request) -> Iterator[tuple[Any, ...]]:
        place = desk.place(request, name)
        work = desk.queue.add(desk.job("Report", ["report", place]))
        for _ in work.follow():
            yield views.progress(work), gr.skip(), views.command(work.words)
        if work.state == DONE:
            yield views.progress(work), _link(place), views.command(work.words)

    look.click(told(show), out, [text, card], **PRIVATE)
    write.click(told_often(report), out, [state, link, command], concurrency_limit=None, **PRIVATE)
    with gr.Accordion("Upload", open=False):
        name = gr.Textbox("", label="Repository", info="hub:owner/name; merges the recipe into it", max_lines=1)
        token = gr.Textbox("", label="Token", info="of the hub, with write access", type="password", max_lines=1)
        public = gr.Checkbox(False, label="Public", info="--public; otherwise a new repository is private")
        upload = gr.Button("Merge into the repository")

    def send(written: str, place: str, secret: str, everyone: bool) -> Iterator[tuple[Any, ...]]:
        if on_hub(place) is None:
            raise RecipeError("Repository: must be hub:owner/name")
        if desk.public and not secret.strip():
            raise RecipeError("Token: give one of your own, with write access to the repository")
        environment = {"HF_TOKEN": secret.strip()} if secret.strip() else {}
        job = merge_job(desk, written, place, MODEL, environment=environment)
        job.words = [*job.words, *["--public"] * everyone]
        work = desk.queue.add(job)
        for _ in work.follow():
            yield views.progress(work), views.command(work.words)

    upload.click(told_often(send), [recipe, name, token, public], [state, command], concurrency_limit=None, **PRIVATE)


def _read(desk: Desk, name: str, file: str) -> str:
    path = desk.roots.path(f"{name}/{file}")
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _link(name: str) -> str:
    words = f'href=".{REPORT}?out={quote(name)}" target="_blank" rel="noopener"'
    return views.block(f"<p><a {words}>Open the report of {views.safe(name)}</a></p>")
