"""What the tabs of the page share: where files are, how much a command may take, and what runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from markupsafe import escape

from ramerge.foundation.errors import RamergeError, RecipeError
from ramerge.foundation.text import message
from ramerge.options import Options
from ramerge.ui.jobs import Job, JobQueue, command_line
from ramerge.ui.roots import Roots

T = TypeVar("T")
_MOST_JOBS = 50


@dataclass
class Desk:
    """The page's server.

    Attributes:
        roots: what may be read and written.
        options: how commands run, as the command line has them.
        limits: the same as words.
        public: whether strangers use the page: each sees only what it has begun, and no servers are asked or started.
        most_bytes: of weights that a command may read; None for any.
        start: the recipe that the page begins with.
        queue: runs commands, one after another.
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
        """The merges of whoever asks."""
        return self._jobs.setdefault(self._who(request), [])

    def keep(self, request: gr.Request | None, jobs: Sequence[Job]) -> None:
        """Remember merges, the latest of too many."""
        self._jobs[self._who(request)] = list(jobs)[-_MOST_JOBS:]

    def _who(self, request: gr.Request | None) -> str:
        return str(request.session_hash) if self.public and request is not None else ""

    def place(self, request: gr.Request | None, name: str) -> str:
        """The output of a name; a stranger's is in a folder of their own, whose name nobody guesses."""
        if not self.public:
            return self.roots.output(name)
        own = self._who(request)
        if (place := self.roots.output(f"{own}/{name}")) != f"{own}/{Path(place).name}":
            raise RecipeError(f"{name}: must be the name of a folder, without others in it")
        return place

    def job(self, title: str, words: Sequence[str], **more: Any) -> Job:
        """A command with the limits of the page."""
        return Job(title, [*words, *self.limits], self.roots.home, **more)

    def command(self, words: Sequence[str]) -> str:
        """What a user types to do the same as `job`."""
        return command_line([*words, *self.limits])

    def forget(self, request: gr.Request) -> None:
        """End what a stranger has begun who has left."""
        if self.public:
            for job in self._jobs.pop(str(request.session_hash), []):
                job.stop()


def told(action: Callable[..., T]) -> Callable[..., T]:
    """An action of the page whose errors are shown as text."""

    @wraps(action)
    def safe(*args: Any, **more: Any) -> T:
        try:
            return action(*args, **more)
        except (RamergeError, OSError) as error:
            raise shown(error) from error

    return safe


def told_often(action: Callable[..., Iterator[T]]) -> Callable[..., Iterator[T]]:
    """The same of an action that gives several results."""

    @wraps(action)
    def safe(*args: Any, **more: Any) -> Iterator[T]:
        try:
            yield from action(*args, **more)
        except (RamergeError, OSError) as error:
            raise shown(error) from error

    return safe


def shown(error: RamergeError | OSError) -> gr.Error:
    """An error as the page shows it: Gradio reads it as HTML."""
    problems = error.problems if isinstance(error, RamergeError) else (message(str(error)),)
    return gr.Error("<br>".join(map(escape, problems[:8])), duration=None, print_exception=False)


def html(label: str, value: str = "", **more: Any) -> gr.HTML:
    """A place for what `views` makes."""
    return gr.HTML(value, label=label, apply_default_css=False, padding=True, **more)


def code(label: str, language: Any = "shell", **more: Any) -> gr.Code:
    """A text to copy."""
    about = {"lines": 1, "max_lines": 12, "wrap_lines": True, "show_line_numbers": False, "interactive": False}
    return gr.Code(label=label, language=language, **{**about, **more})
