"""The tab Merge: a list of merges with progress, stop and resume; merges and models for other tabs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import gradio as gr

from ramerge import RamergeError, Recipe, RecipeError
from ramerge.sdk.outputs import CHECKPOINT
from ramerge.sdk.recipes import words_of
from ramerge.sdk.storage import is_remote
from ramerge.sdk.text import enumerated
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, act, html, problem_place, text_place
from ramerge.ui.draft import checked_draft, portable_draft
from ramerge.ui.jobs import WAITING, Job

MODEL, DELTA = "model", "delta"


def merge_job(desk: Desk, text: str, place: str, kind: str, *, overwrite: bool = False, public: bool = False) -> Job:
    """Make the job that merges a recipe into an output checked by `Roots.output`, for the tabs Merge and Share."""
    recipe = checked_draft(text, desk.roots)
    folder = None if is_remote(place) else desk.roots.home / place
    output = DELTA if kind == DELTA else CHECKPOINT
    desk.plan(recipe, out=folder or place, overwrite=overwrite, public=public, kind=output)
    words = _merge_words(desk, recipe, place, kind, overwrite=overwrite, public=public)
    return desk.job(place, words, out=folder)


def _merge_words(
    desk: Desk, recipe: Recipe, place: str, kind: str, *, overwrite: bool = False, public: bool = False
) -> list[str]:
    """Return the arguments of the command that merges a recipe."""
    words = ["merge", *words_of(portable_draft(recipe), prompts=True, start=desk.roots.home)]
    return [*words, *["--as-delta"] * (kind == DELTA), *["--overwrite"] * overwrite, *["--public"] * public, place]


def build(desk: Desk, page: gr.Blocks, recipe: gr.Code) -> None:
    """Build the tab Merge."""
    with gr.Row():
        out = gr.Textbox("merged", label="Output", info="the name of a new folder", max_lines=1)
        kind = gr.Radio([MODEL, DELTA], value=MODEL, label="As", info="a delta holds only what changes of the base")
        overwrite = gr.Checkbox(False, label=views.LABELS["--overwrite"], info="--overwrite")
    coming = html("What is merged")
    with gr.Row():
        merge = gr.Button("Merge", variant="primary")
        add = gr.Button("Add to the list")
        start = gr.Button("Run the list", visible=False)
        stop = gr.Button("Stop", visible=False)
        resume = gr.Button("Resume", visible=False)
        clear = gr.Button("Clear the list", visible=False)
    problems = problem_place()
    state = html("Progress")
    list_place = html("Merges")
    command = text_place("Command line")
    inputs, outputs = [recipe, out, kind, overwrite], [state, list_place, command, start, stop, resume, clear]
    runs = _MergeActions(desk)

    def announce(text: str, name: str, as_what: str, replacing: bool) -> tuple[str, str]:
        """Describe the work that a click on Merge would start, with its command line."""
        try:
            draft = checked_draft(text, desk.roots)
            words = _merge_words(desk, draft, desk.roots.output(name), as_what, overwrite=replacing)
        except RamergeError:
            return "", ""  # the tab Choose shows the problems
        sentence = f"Merges {enumerated(list(draft.agents))} by {draft.method} into {name}."
        return views.block(f"<p>{views.safe(sentence)}</p>"), desk.command(words)

    many: dict[str, object] = {**PRIVATE, "concurrency_limit": None}
    act(merge.click, runs.merge, inputs, outputs, problems, concurrency_limit=None)
    act(add.click, runs.add, inputs, outputs, problems, concurrency_limit=None)
    for button, action in ((start, runs.start), (stop, runs.stop), (resume, runs.resume), (clear, runs.clear)):
        act(button.click, action, None, outputs, problems, concurrency_limit=None)
    page.load(runs.follow, None, outputs, **many).then(announce, inputs, [coming, command], **PRIVATE)
    about = {"outputs": [coming, command], "trigger_mode": "always_last", **PRIVATE}
    gr.on([recipe.change, out.change, kind.change, overwrite.change], announce, inputs, **about)


class _MergeActions:
    """Actions of the buttons of the tab Merge. They return progress, list, a command, and which buttons are enabled."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add(self, text: str, name: str, kind: str, overwrite: bool, request: gr.Request) -> tuple[object, ...]:
        """Action of `Add to the list`: add a merge, which replaces a merge with the same name."""
        place = self._desk.place(request, name)
        if is_remote(place):
            raise RecipeError(f"{name}: must be a folder; the tab Share uploads what is merged there")
        job = merge_job(self._desk, text, place, kind, overwrite=overwrite)
        jobs = self._desk.jobs(request)
        if any(each.is_active and each.out == job.out for each in jobs):
            raise RecipeError(f"{name}: is in the list already; choose another output")
        self._desk.keep(request, [*(each for each in jobs if each.title != job.title), job])
        return _views_of_jobs(self._desk.jobs(request))

    def merge(self, text: str, name: str, kind: str, overwrite: bool, request: gr.Request) -> Iterator[object]:
        """Action of `Merge`: merge now, or after the running job."""
        self.add(text, name, kind, overwrite, request)
        self._desk.queue.add(self._desk.jobs(request)[-1])
        yield from self.follow(request)

    def start(self, request: gr.Request) -> Iterator[object]:
        """Action of `Run the list`: run the merges in the list."""
        for job in self._desk.jobs(request):
            if job.state == WAITING and not job.queued:
                self._desk.queue.add(job)
        yield from self.follow(request)

    def follow(self, request: gr.Request) -> Iterator[object]:
        """Show progress until all running merges have ended."""
        yield _views_of_jobs(self._desk.jobs(request))
        while running := [job for job in self._desk.jobs(request) if job.queued and job.is_active]:
            for _ in running[0].follow():
                yield _views_of_jobs(self._desk.jobs(request))

    def stop(self, request: gr.Request) -> tuple[object, ...]:
        """Action of `Stop`: stop merges as Ctrl-C does."""
        for job in self._desk.jobs(request):
            if job.queued:
                job.stop()
        return _views_of_jobs(self._desk.jobs(request))

    def resume(self, request: gr.Request) -> Iterator[object]:
        """Action of `Resume`: run the commands of stopped and failed merges again."""
        jobs = [job.again() if job.has_ended_early else job for job in self._desk.jobs(request)]
        self._desk.keep(request, jobs)
        yield from self.start(request)

    def clear(self, request: gr.Request) -> tuple[object, ...]:
        """Action of `Clear the list`: remove merges that are not running. Their outputs stay."""
        self._desk.keep(request, [job for job in self._desk.jobs(request) if job.queued and job.is_active])
        return _views_of_jobs(self._desk.jobs(request))


def _views_of_jobs(jobs: list[Job]) -> tuple[object, ...]:
    """Show merges: progress, the list, the command of the running or last merge, and the buttons."""
    running = [job for job in jobs if job.queued and job.is_active]
    ended_jobs = [job for job in jobs if job.queued and not job.is_active]
    now = running[0] if running else ended_jobs[-1] if ended_jobs else None
    rows = []
    for job in jobs:
        words = list(job.words)
        method = words[words.index("--method") + 1] if "--method" in words else ""
        settings = [word.removeprefix("parameters.") for word in words if word.startswith("parameters.")]
        state = job.state
        if job.state == WAITING:
            state = "waits" if job.queued else "in the list"
        elif job.is_active:
            amount, total = int(job.progress.get("done", 0)), max(int(job.progress.get("total", 0)), 1)
            state = f"{job.progress.get('stage', 'starts')} {amount / total:.0%}"
        rows.append((job.title, ", ".join([method, *settings]), DELTA if "--as-delta" in words else MODEL, state))
    job_list = views.block(views.table("Merges", ("output", "method", "as", "state"), rows)) if rows else ""
    latest = now or (jobs[-1] if jobs else None)
    useful = (
        any(job.state == WAITING and not job.queued for job in jobs),
        bool(running),
        any(job.has_ended_early for job in jobs),
        any(not (job.queued and job.is_active) for job in jobs),
    )
    command = views.command_html(latest.words) if latest else gr.skip()
    return views.progress_html(now), job_list, command, *(gr.update(visible=each) for each in useful)


def finished_merges(desk: Desk, request: gr.Request | None) -> dict[str, Path]:
    """Return the folders of finished merges by name: from the list, and from roots that are not shared."""
    folders = {job.title: job.out for job in desk.jobs(request) if job.out is not None}
    folders |= {label: desk.roots.home / name for label, name in desk.roots.models()}
    return {name: path for name, path in folders.items() if (path / "ramerge.json").is_file()}


def models_of(desk: Desk, text: str, merges: Sequence[str], request: gr.Request | None) -> dict[str, str]:
    """Return base and agents of the draft, and finished merges, by name, as folders or hub ids, for the tab Compare.

    Args:
        merges: names of finished merges; if empty, all finished merges of the list that are models.
    """
    recipe = checked_draft(text, desk.roots)
    folders = finished_merges(desk, request)
    own = [job.title for job in desk.jobs(request)]
    merges = merges or [name for name, path in folders.items() if name in own and (path / "config.json").is_file()]
    if not merges:
        raise RecipeError("Merges: none was merged on this page; name finished ones, or begin one in the tab Merge")
    if absent := [name for name in merges if name not in folders]:
        raise RecipeError(f"{name}: is no complete merge; the tab Merge makes them" for name in absent)
    if deltas := [name for name in merges if not (folders[name] / "config.json").is_file()]:
        raise RecipeError(f"{name}: is a delta, which is no model yet; name another one" for name in deltas)
    models = {**({"base": recipe.base} if recipe.base else {}), **{k: v.written for k, v in recipe.agents.items()}}
    if duplicates := [name for name in merges if name in models]:
        raise RecipeError(f"{name}: is an agent's name, too; choose another output" for name in duplicates)
    return models | {name: desk.roots.short(folders[name]) for name in merges}
