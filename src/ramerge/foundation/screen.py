"""Progress on standard error: live bars on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from rich.filesize import decimal

from ramerge.foundation.events import Progress
from ramerge.foundation.pace import Pace

_SECONDS_BETWEEN_LINES = 30.0
_SLOW = 0.1  # per second; slower rates are shown per minute

E = TypeVar("E")


@dataclass(frozen=True)
class Bar:
    """How an event is shown.

    Attributes:
        title: events with the same title belong to one bar.
        done: how much is done, in `unit`.
        total: of how much; None if that is not known.
        unit: `bytes`, or the name of what is counted; empty if the title says it.
        notes: further figures.
        is_under_way: whether the measurement of rates has begun, at the latest with this event.
    """

    title: str
    done: int
    total: int | None
    unit: str = ""
    notes: tuple[str, ...] = ()
    is_under_way: bool = True


def stage(event: Progress) -> Bar:
    """The bar of a stage. Its rate is measured from the first block on, because kernels may be compiled before it."""
    if event.unit == "kernels":  # one is asked for after another, so their number is not known
        return Bar(f"{event.stage} (first run only, up to 40 s)", event.done, None, is_under_way=False)
    return Bar(event.stage, event.done, event.total, event.unit, is_under_way=event.done > 0)


@contextmanager
def shown(bar_of: Callable[[E], Bar], *, quiet: bool) -> Iterator[Callable[[E], None]]:
    """A listener that shows events until the `with` block ends.

    Args:
        bar_of: gives the bar of an event.
        quiet: show nothing.
    """
    if quiet or sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty():
        from ramerge.foundation.bars import live  # most of what is imported for it is not needed otherwise

        figures = _BarFigures()
        with live() as draw:

            def show(event: E) -> None:
                bar = bar_of(event)
                draw(bar.title, bar.done, bar.total, figures(bar))

            yield show
    else:
        write = _Lines()
        yield lambda event: write(bar_of(event))


class _BarFigures:
    """The figures of each bar: amount, speed, and time left."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def __call__(self, bar: Bar) -> str:
        if bar.is_under_way:
            self._paces.setdefault(bar.title, Pace(bar.done))
        pace = self._paces.get(bar.title, Pace(bar.done))
        left = pace.left(bar.done, bar.total) if bar.total is not None else ""
        parts = [_amount(bar), _speed(pace.rate(bar.done), bar.unit), *bar.notes, left]
        return ", ".join(filter(None, parts))


def _amount(bar: Bar) -> str:
    if bar.total is None:
        return f"{bar.done:,} done"
    if bar.unit == "bytes":
        return f"{decimal(bar.done)} of {decimal(bar.total)}"
    return f"{bar.done:,} of {bar.total:,} {bar.unit}".rstrip()


def _speed(rate: float | None, unit: str) -> str:
    if rate is None:
        return ""
    if unit == "bytes":
        return f"{decimal(int(rate))}/s"
    return f"{rate:.1f}/s" if rate >= _SLOW else f"{60 * rate:.1f}/min"


class _Lines:
    """A line when a bar is full, and one every 30 seconds before that. A bar without a total has one when it begins."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._figures = _BarFigures()
        self._begun: set[str] = set()

    def __call__(self, bar: Bar) -> None:
        now, figures = time.monotonic(), self._figures(bar)
        unfinished = bar.title in self._begun if bar.total is None else bar.done < bar.total
        if unfinished and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        self._begun.add(bar.title)
        # standard error may be closed, which is no reason to stop
        with suppress(OSError):
            print(
                f"{bar.title}: {figures}" if bar.done or bar.total is not None else bar.title,
                file=sys.stderr,
                flush=True,
            )
