"""Progress of an evaluation on standard error: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column

from ramerge.evaluation.tally import Listener, Progress
from ramerge.foundation.pace import Pace

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def shown(*, quiet: bool) -> Iterator[Listener]:
    """A listener that shows what it hears, for as long as the block lasts."""
    if quiet or sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty():
        with Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
        ) as bars:
            yield _Live(bars)
    else:
        yield _Lines()


def _title(event: Progress) -> str:
    return f"{event.model}  {event.suite}/{event.task}"


def _figures(event: Progress, pace: Pace) -> str:
    """How much is done, how fast, failures, running score, and time left."""
    rate = pace.rate(event.done)
    parts = [f"{event.done:,} of {event.total:,}"]
    parts += [f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"] if rate else []
    parts += [f"{event.failed:,} failed"] if event.failed else []
    parts += [f"score {event.score:.1%}"] if event.score is not None else []
    parts.append(pace.left(event.done, event.total))
    return ", ".join(filter(None, parts))


class _Live:
    """A bar for each task."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, tuple[TaskID, Pace]] = {}

    def __call__(self, event: Progress) -> None:
        title = _title(event)
        if title not in self._tasks:
            self._tasks[title] = (self._bars.add_task(title, total=event.total, figures=""), Pace(event.done))
        bar, pace = self._tasks[title]
        self._bars.update(bar, completed=event.done, total=event.total, figures=_figures(event, pace))


class _Lines:
    """A line every few seconds, and one when a task is done."""

    def __init__(self) -> None:
        self._title = ""
        self._last = 0.0
        self._pace = Pace(0)

    def __call__(self, event: Progress) -> None:
        now = time.monotonic()
        if _title(event) != self._title:
            self._title, self._pace, self._last = _title(event), Pace(event.done), now
        if event.done < event.total and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        # nobody may be listening any more, which is no reason to stop
        with suppress(OSError):
            print(f"{self._title}: {_figures(event, self._pace)}", file=sys.stderr, flush=True)
