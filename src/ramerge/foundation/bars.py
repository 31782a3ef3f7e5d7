"""Bars on a terminal. Only `screen` imports this file, and only where there is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

_WIDEST_BAR = 40


@contextmanager
def live() -> Iterator[Callable[[str, int, int | None, str], None]]:
    """A function that shows a bar, given its title, what is done, the total (None: not known), and text.

    The bars stay until the `with` block ends.
    """
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(justify="right")),
        BarColumn(bar_width=None, table_column=Column(max_width=_WIDEST_BAR)),
        TextColumn(
            "{task.fields[figures]}", markup=False, style="progress.download", table_column=Column(no_wrap=True)
        ),
        console=Console(stderr=True),
    ) as bars:

        def show(title: str, done: int, total: int | None, figures: str) -> None:
            if title not in tasks:
                tasks[title] = bars.add_task(title, total=total, figures=figures)
            bars.update(tasks[title], completed=done, total=total, figures=figures)

        yield show
