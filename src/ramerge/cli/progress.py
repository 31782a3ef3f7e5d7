"""Progress on standard error: live bars on a terminal, plain lines otherwise."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict

from ramerge.core.foundation.progress import Listener, Progress, silence
from ramerge.core.foundation.signals import raise_dropped

FORM = "RAMERGE_PROGRESS"
"""The environment variable that selects the form of progress: `json`, for programs that run commands, also with
`--quiet`.
"""

_SECONDS_BETWEEN_OBJECTS = 0.1
_SECONDS_BETWEEN_LINES = 30.0
# A rate over a shorter time is misleading, because of the first block, a cold cache or a first burst of answers.
_LEAST_SECONDS = 3.0
_SLOW = 0.1  # per second; slower rates are shown per minute
_WIDEST_BAR = 40


@contextmanager
def shown(*, quiet: bool) -> Iterator[Listener]:
    """Return a listener that shows events until the `with` block ends; with `quiet`, it shows nothing.

    Each event also raises a signal that was dropped before (`signals.raise_dropped`).
    """
    with ExitStack() as stack:
        show: Listener = _LineProgress()
        if os.environ.get(FORM) == "json":
            show = _JsonLines()
        elif quiet or sys.stderr is None:
            show = silence
        elif sys.stderr.isatty():
            show = stack.enter_context(_progress_bars())

        def listen(event: Progress) -> None:
            raise_dropped()
            show(event)

        yield listen


def _is_open(event: Progress) -> bool:
    """Whether the total is unknown, as for kernels, which are compiled as needed."""
    return event.unit == "kernels"


def _stage_title(event: Progress) -> str:
    return f"{event.stage} ({event.note}; once, some seconds)" if _is_open(event) else event.stage


class _StageFigures:
    """Formats the figures of each stage: amount, speed, and time left.

    Speed is measured from the first block on, because kernels may be compiled before it.
    """

    def __init__(self) -> None:
        self._starts: dict[str, tuple[float, int]] = {}

    def __call__(self, event: Progress) -> str:
        from rich.filesize import decimal  # here, because the API imports this module and shows nothing

        if _is_open(event):
            return f"{event.done:,} done"
        is_bytes, now = event.unit == "bytes", time.monotonic()
        amount = f"{event.done:,} of {event.total:,} {event.unit}"
        if is_bytes:
            amount = f"{decimal(event.done)} of {decimal(event.total)}"
        start, before = self._starts.setdefault(event.stage, (now, event.done)) if event.done else (now, 0)
        if now - start < _LEAST_SECONDS or event.done <= before:
            return ", ".join(filter(None, [amount, event.note]))
        rate = (event.done - before) / (now - start)
        speed = f"{rate:.1f}/s" if rate >= _SLOW else f"{60 * rate:.1f}/min"
        if is_bytes:
            speed = f"{decimal(int(rate))}/s"
        seconds = (event.total - event.done) / rate
        size, unit = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
        left = f"{seconds / size:.0f} {unit} left" if seconds > 0 else ""
        return ", ".join(filter(None, [amount, speed, event.note, left]))


class _LineProgress:
    """Prints a line when a stage is complete, and every 30 seconds before. A stage without a total gets a line at
    first.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._figures = _StageFigures()
        self._open_stages: set[str] = set()

    def __call__(self, event: Progress) -> None:
        now, figures = time.monotonic(), self._figures(event)
        unfinished = event.stage in self._open_stages if _is_open(event) else event.done < event.total
        if unfinished and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        self._open_stages.add(event.stage)
        line = _stage_title(event) if _is_open(event) and not event.done else f"{_stage_title(event)}: {figures}"
        with suppress(OSError):  # standard error may be closed, which is no reason to stop
            print(line, file=sys.stderr, flush=True)


class _JsonLines:
    """Prints events as JSON, one object per line: at most ten a second for each stage, and its first and last."""

    def __init__(self) -> None:
        self._last_object: tuple[type, str, float] | None = None

    def __call__(self, event: Progress) -> None:
        now = time.monotonic()
        is_repetition = self._last_object is not None and self._last_object[:2] == (type(event), event.stage)
        unfinished = event.done < event.total or _is_open(event)
        if self._last_object and is_repetition and unfinished and now - self._last_object[2] < _SECONDS_BETWEEN_OBJECTS:
            return
        self._last_object = type(event), event.stage, now
        with suppress(OSError):
            print(json.dumps(asdict(event)), file=sys.stderr, flush=True)


@contextmanager
def _progress_bars() -> Iterator[Listener]:
    """A listener that shows a bar for each stage, until the `with` block ends."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    figures, tasks = _StageFigures(), dict[str, TaskID]()
    with Bars(
        TextColumn("{task.description}", markup=False, table_column=Column(justify="right")),
        BarColumn(bar_width=None, table_column=Column(max_width=_WIDEST_BAR)),
        TextColumn("{task.fields[text]}", markup=False, style="progress.download", table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
    ) as bars:

        def show(event: Progress) -> None:
            total = None if _is_open(event) else event.total
            if event.stage not in tasks:
                tasks[event.stage] = bars.add_task(_stage_title(event), total=total, text="")
            bars.update(tasks[event.stage], completed=event.done, total=total, text=figures(event))

        yield show
