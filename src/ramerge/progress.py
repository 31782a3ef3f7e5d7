"""Progress of a merge on standard error: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)
from rich.text import Text

from ramerge.engine.events import Listener, Progress

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown(*, quiet: bool) -> Iterator[Listener]:
    """A listener that shows what it hears, for as long as the block lasts."""
    if quiet or sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty():
        with Bar(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            _Done(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as bar:
            yield _Live(bar)
    else:
        yield _Lines()


def _rate(rate: float, unit: str) -> str:
    return f"{decimal(int(rate))}/s" if unit == "bytes" else f"{rate:.1f} {unit}/s"


class _Done(ProgressColumn):
    """How much is done, in bytes or whatever is counted."""

    def render(self, task: Task) -> Text:
        """Done, of how many, and how fast."""
        unit = str(task.fields["unit"])
        sized = decimal if unit == "bytes" else "{:,}".format
        text = f"{sized(int(task.completed))}/{sized(int(task.total or 0))} {_rate(task.speed or 0, unit)}"
        return Text(text, style="progress.download")


class _Live:
    """One bar a stage."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: Progress) -> None:
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self._bar.add_task(event.stage, total=event.total, unit=event.unit)
        self._bar.update(self._tasks[event.stage], completed=event.done)


class _Lines:
    """A line every few seconds, and one when a stage is done."""

    def __init__(self) -> None:
        self._stage = ""
        self._began = self._last = 0.0

    def __call__(self, event: Progress) -> None:
        now = time.monotonic()
        if event.stage != self._stage:
            self._stage, self._began, self._last = event.stage, now, now
        finished = event.done >= event.total
        if not finished and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = event.done / max(now - self._began, 1e-9)
        sized = decimal if event.unit == "bytes" else "{:,}".format
        left = "" if finished else f", {(event.total - event.done) / max(rate, 1):.0f} s left"
        line = f"{event.stage}: {sized(event.done)} of {sized(event.total)}, {_rate(rate, event.unit)}{left}"
        # nobody may be listening any more, which is no reason to stop merging
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)
