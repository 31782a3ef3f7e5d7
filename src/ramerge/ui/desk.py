"""The desk: files, limits and each visitor's jobs, for all tabs; actions with errors as text; components for HTML."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import isgenerator
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.events import Dependency

from ramerge import Options, Plan, PlanError, RamergeError, Recipe, RecipeError
from ramerge import plan as make_plan
from ramerge.cli.flags.write import limit_words
from ramerge.core.foundation.devices import read_device
from ramerge.core.foundation.text import message
from ramerge.core.recipe.checks import as_yaml
from ramerge.core.recipe.document import DEFAULT_METHOD
from ramerge.demo.run import AGENTS
from ramerge.sdk.commands import named
from ramerge.sdk.options import read_limits
from ramerge.sdk.recipes import Document
from ramerge.ui import views
from ramerge.ui.draft import EMPTY, read_draft
from ramerge.ui.jobs import Job, JobQueue
from ramerge.ui.roots import Roots

PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
"""Settings of events: no public API, and no progress display, because tabs show their own."""

_MOST_JOBS = 50
_MOST_PROBLEMS = 8
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}")


@dataclass
class Desk:
    """State of the page's server, shared by all tabs.

    Attributes:
        options: options for running commands.
        limits: the same as command-line arguments.
        public: whether the page is public: visitors see only their own work, and no servers are used or started.
        most_bytes: the most bytes of weights that a command may read; None for no limit.
    """

    roots: Roots
    options: Options = field(default_factory=Options)
    limits: Sequence[str] = ()
    public: bool = False
    most_bytes: int | None = None
    start: str = ""
    queue: JobQueue = field(default_factory=JobQueue)
    _jobs: dict[str, list[Job]] = field(default_factory=dict)

    def jobs(self, request: gr.Request | None) -> list[Job]:
        """The visitor's merges, as jobs, for the tab Merge."""
        return self._jobs.setdefault(self._visitor_id(request), [])

    def keep(self, request: gr.Request | None, jobs: Sequence[Job]) -> None:
        """Store the visitor's list of merges, only the latest if there are too many."""
        self._jobs[self._visitor_id(request)] = list(jobs)[-_MOST_JOBS:]

    def _visitor_id(self, request: gr.Request | None) -> str:
        return str(request.session_hash) if self.public and request is not None else ""

    def place(self, request: gr.Request | None, name: str) -> str:
        """The output path for a merge's name; on a public page, in the visitor's own folder with a random name."""
        if not self.public:
            return self.roots.output(name)
        visitor_id = self._visitor_id(request)
        if not (_NAME.fullmatch(visitor_id) and _NAME.fullmatch(name)):
            raise RecipeError(f"{name}: must be a name of letters, digits and ._+-, the first a letter or digit")
        return self.roots.output(f"{visitor_id}/{name}")

    def job(self, title: str, words: Sequence[str], **more: Any) -> Job:
        """Make a job of a command, with the limits of the page."""
        return Job(title, [*words, *self.limits], self.roots.home, **more)

    def command(self, words: Sequence[str]) -> str:
        """Return the command line of `job` as HTML."""
        return views.command_html([*words, *self.limits])

    def plan(self, recipe: Recipe, *, overwrite: bool = False, public: bool = False, **more: Any) -> Plan:
        """Plan a merge that may run on this page; other keywords are passed to `ramerge.plan`."""
        upload = replace(self.options.upload, public=public)
        options = replace(self.options, overwrite=overwrite, upload=upload)
        result: Plan = make_plan(recipe, options=options, **more)
        if result.problems:
            raise PlanError(map(self.roots.shorten, result.details.findings.problems))
        if self.most_bytes is not None and result.bytes_read > self.most_bytes:
            limit, size = (f"{value / 1e9:.1f} GB" for value in (self.most_bytes, result.bytes_read))
            raise PlanError(f"this page reads at most {limit} of weights, and this is {size}; run it on your machine")
        return result

    def forget(self, request: gr.Request) -> None:
        """End the jobs of a visitor who has left a public page, and remove their outputs."""
        if not self.public or not (visitor_id := str(request.session_hash or "")).isalnum():
            return
        for job in self._jobs.pop(visitor_id, []):
            job.kill()
        shutil.rmtree(self.roots.home / visitor_id, ignore_errors=True)


def show_stop_while_running(job: gr.State, stop: gr.Button) -> None:
    """Show a button that stops the job of a tab while it runs."""
    job.change(lambda work: gr.update(visible=work is not None), job, stop, **PRIVATE)
    stop.click(lambda work: work and work.stop(), job, None, **PRIVATE)


def act(
    event: Callable[..., Dependency],
    action: Callable[..., object],
    inputs: Block | Sequence[Block] | None,
    outputs: Block | Sequence[Block],
    problems: gr.HTML,
    **more: object,
) -> Dependency:
    """Let an event of a control run an action of its tab; return the event, for what comes after it.

    Args:
        action: returns values for `outputs`, or yields them several times.
        more: keywords of the event, which override those of `PRIVATE`.
    """
    places = [outputs] if isinstance(outputs, Block) else list(outputs)

    @wraps(action)
    def safe(*args: object, **keywords: object) -> Iterator[tuple[object, ...]]:
        try:
            result = action(*args, **keywords)
            problem_text: object = ""
            for values in result if isgenerator(result) else (result,):
                parts: Any = values if len(places) > 1 else (values,)
                yield problem_text, *parts
                problem_text = gr.skip()  # another action may have failed meanwhile
        except (RamergeError, OSError) as error:
            texts = error.messages if isinstance(error, RamergeError) else (message(str(error)),)
            yield views.problems(texts[:_MOST_PROBLEMS]), *[gr.skip()] * len(places)

    return event(safe, inputs, [problems, *places], **{**PRIVATE, **more})


def html(label: str, value: str = "", **more: Any) -> gr.HTML:
    """Return a component for the HTML of `views`."""
    return gr.HTML(value, label=label, apply_default_css=False, padding=True, **more)


def problem_place(**more: Any) -> gr.HTML:
    """Return a component for the errors of a tab's actions; see `act`."""
    return html("Problems", **more)


def run_buttons(text: str) -> tuple[gr.Button, gr.Button]:
    """Return a button that starts a command, and one that stops it, which is hidden until the command runs."""
    with gr.Row():
        return gr.Button(text, variant="primary"), gr.Button("Stop", visible=False)


def text_place(label: str) -> gr.HTML:
    """Return a component for the result of `views.copyable`."""
    return html(label, js_on_load=views.COPY)


def desk_of(roots: Sequence[Path], base: str | None, agents: Sequence[str], options: Options) -> Desk:
    """Make the desk of a user's own page."""
    read_limits(options.threads, options.max_memory)
    read_device(options.device)
    folders = [folder.resolve() for folder in roots or [Path()]]
    if wrong := [str(folder) for folder in folders if not folder.is_dir()]:
        raise RecipeError(f"--root {folder}: is no folder" for folder in wrong)
    all_roots = Roots((*folders, AGENTS.resolve()))
    agent_models = named("--agent", agents, "NAME=MODEL, such as --agent code=./coder")
    values: dict[str, object] = {"method": DEFAULT_METHOD, **({"base": _absolute_path(base)} if base else {})}
    values |= {"agents": {name: _absolute_path(model) for name, model in agent_models.items()}} if agent_models else {}
    text = as_yaml(Document(values)) if base or agent_models else EMPTY
    read_draft(text, all_roots)
    return Desk(all_roots, options, limit_words(options), start=text)


def _absolute_path(model: str) -> str:
    """Make a path argument absolute: it is relative to the working folder, which may not be a root."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.exists() else model
