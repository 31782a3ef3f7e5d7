"""Progress of a merge on standard error: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from ramerge.foundation.events import Listener, Progress
from ramerge.foundation.pace import Pace

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def shown(*, quiet: bool) -> Iterator[Listener]:
    """A listener that shows what it hears, for as long as the block lasts."""
    if quiet or sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty():
        with Bar(
            TextColumn("{task.description}", markup=False, table_column=Column(justify="right")),
            BarColumn(),
            TextColumn(
                "{task.fields[figures]}", markup=False, style="progress.download", table_column=Column(no_wrap=True)
            ),
            console=Console(stderr=True),
        ) as bar:
            yield _Live(bar)
    else:
        yield _Lines()


class _Figures:
    """How much of each stage is done, how fast, and how long the rest will take."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def __call__(self, event: Progress) -> str:
        sized = decimal if event.unit == "bytes" else "{:,}".format
        unit = "" if event.unit == "bytes" else f" {event.unit}"
        parts = [f"{sized(event.done)} of {sized(event.total)}{unit}"]
        # from the first block on: before it kernels may have been compiled
        if event.done and event.stage not in self._paces:
            self._paces[event.stage] = Pace(event.done)
        pace = self._paces.get(event.stage)
        if pace is not None and (rate := pace.rate(event.done)) is not None:
            parts.append(f"{decimal(int(rate))}/s" if event.unit == "bytes" else f"{rate:.1f} {event.unit}/s")
            parts.append(pace.left(event.done, event.total))
        return ", ".join(filter(None, parts))


class _Live:
    """One bar a stage."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}
        self._figures = _Figures()

    def __call__(self, event: Progress) -> None:
        figures = self._figures(event)
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self._bar.add_task(event.stage, total=event.total, figures=figures)
        self._bar.update(self._tasks[event.stage], completed=event.done, total=event.total, figures=figures)


class _Lines:
    """A line when a stage is done, and one now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._figures = _Figures()

    def __call__(self, event: Progress) -> None:
        now, figures = time.monotonic(), self._figures(event)
        if event.done < event.total and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        # nobody may be listening any more, which is no reason to stop merging
        with suppress(OSError):
            print(f"{event.stage}: {figures}", file=sys.stderr, flush=True)
