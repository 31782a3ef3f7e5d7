"""The tab Run: merges one after another, with progress, stop and resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from ramerge.flags.write import words_of
from ramerge.foundation.errors import RecipeError
from ramerge.storage.schemes import is_remote
from ramerge.ui import views
from ramerge.ui.desk import Desk, html, text_place, told, told_often
from ramerge.ui.draft import checked_draft, portable_draft
from ramerge.ui.jobs import WAITING, Job

MODEL, DELTA = "model", "delta"
_PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


def merge_job(desk: Desk, text: str, place: str, kind: str, *, overwrite: bool = False, **more: Any) -> Job:
    """The command that merges a recipe into a place that `Desk.place` has checked, or a repository.

    Raises:
        RamergeError: the recipe cannot be merged.
    """
    recipe = checked_draft(text, desk.roots)
    desk.planned(recipe, as_delta=kind == DELTA)
    words = ["merge", *words_of(portable_draft(recipe), start=desk.roots.home)]
    words += ["--as-delta"] * (kind == DELTA) + ["--overwrite"] * overwrite + [place]
    folder = None if is_remote(place) else desk.roots.home / place
    return desk.job(place, words, out=folder, **more)


def build(desk: Desk, page: gr.Blocks, recipe: gr.Code) -> None:
    """The tab's components and events."""
    with gr.Row():
        out = gr.Textbox("merged", label="Output", info="the name of a new folder, or hub:owner/name", max_lines=1)
        kind = gr.Radio([MODEL, DELTA], value=MODEL, label="As", info="a delta holds only what changes of the base")
        overwrite = gr.Checkbox(False, label="Replace what is there", info="--overwrite")
    with gr.Row():
        merge = gr.Button("Merge", variant="primary")
        add = gr.Button("Add to the list")
        start = gr.Button("Run the list")
        stop = gr.Button("Stop", variant="stop")
        resume = gr.Button("Resume")
        clear = gr.Button("Clear the list")
    state = html("Progress")
    listed = html("Merges")
    command = text_place("Command line")
    inputs, outputs = [recipe, out, kind, overwrite], [state, listed, command]

    def show(request: gr.Request | None) -> tuple[str, str, str]:
        return _shown(desk.jobs(request))

    def adds(text: str, name: str, what: str, replace: bool, request: gr.Request | None, *, run: bool) -> None:
        job = merge_job(desk, text, desk.place(request, name), what, overwrite=replace)
        jobs = desk.jobs(request)
        if any(each.active and each.out == job.out for each in jobs):
            raise RecipeError(f"{name}: is in the list already; choose another output")
        desk.keep(request, [*(each for each in jobs if each.title != job.title), job])
        if run:
            desk.queue.add(job)

    def follow(request: gr.Request) -> Iterator[tuple[str, str, str]]:
        """Progress until every merge that runs has ended."""
        yield show(request)
        while running := [job for job in desk.jobs(request) if job.queued and job.active]:
            for _ in running[0].follow():
                yield show(request)

    @told_often
    def merge_now(
        text: str, name: str, what: str, replace: bool, request: gr.Request
    ) -> Iterator[tuple[str, str, str]]:
        adds(text, name, what, replace, request, run=True)
        yield from follow(request)

    @told
    def add_only(text: str, name: str, what: str, replace: bool, request: gr.Request) -> tuple[str, str, str]:
        adds(text, name, what, replace, request, run=False)
        return show(request)

    def run_all(request: gr.Request) -> Iterator[tuple[str, str, str]]:
        for job in desk.jobs(request):
            if job.state == WAITING and not job.queued:
                desk.queue.add(job)
        yield from follow(request)

    def stop_all(request: gr.Request) -> tuple[str, str, str]:
        for job in desk.jobs(request):
            if job.queued:
                job.stop()
        return show(request)

    def resume_all(request: gr.Request) -> Iterator[tuple[str, str, str]]:
        jobs = [job.again() if job.ended_early else job for job in desk.jobs(request)]
        desk.keep(request, jobs)
        yield from run_all(request)

    def clear_all(request: gr.Request) -> tuple[str, str, str]:
        desk.keep(request, [job for job in desk.jobs(request) if job.queued and job.active])
        return show(request)

    many: dict[str, Any] = {**_PRIVATE, "concurrency_limit": None}
    merge.click(merge_now, inputs, outputs, **many)
    add.click(add_only, inputs, outputs, **many)
    start.click(run_all, None, outputs, **many)
    stop.click(stop_all, None, outputs, **many)
    resume.click(resume_all, None, outputs, **many)
    clear.click(clear_all, None, outputs, **many)
    page.load(follow, None, outputs, **many)


def _shown(jobs: list[Job]) -> tuple[str, str, str]:
    """Progress, the list, and the command of the merge that runs or has ended last."""
    running = [job for job in jobs if job.queued and job.active]
    ended = [job for job in jobs if job.queued and not job.active]
    now = running[0] if running else ended[-1] if ended else None
    rows = [(job.title, _method(job), DELTA if "--as-delta" in job.words else MODEL, _state(job)) for job in jobs]
    listed = views.block(views.table("Merges", ("output", "method", "as", "state"), rows)) if rows else ""
    latest = now or (jobs[-1] if jobs else None)
    return views.progress(now), listed, views.command(latest.words) if latest else ""


def _method(job: Job) -> str:
    words = list(job.words)
    named = words[words.index("--method") + 1] if "--method" in words else ""
    settings = [word.removeprefix("parameters.") for word in words if word.startswith("parameters.")]
    return ", ".join([named, *settings])


def _state(job: Job) -> str:
    if job.state == WAITING:
        return "waits" if job.queued else "in the list"
    done, total = int(job.progress.get("done", 0)), max(int(job.progress.get("total", 0)), 1)
    return f"{job.progress.get('stage', 'starts')} {done / total:.0%}" if job.active else job.state


def finished(desk: Desk, request: gr.Request | None) -> dict[str, Path]:
    """Folders of the merges that are complete, by name."""
    return {job.title: job.out for job in desk.jobs(request) if job.state == "done" and job.out is not None}
