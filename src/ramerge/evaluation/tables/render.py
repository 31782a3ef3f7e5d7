"""A table as text, Markdown, HTML or CSV, which pandas writes."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ramerge.evaluation.tables.layouts import TableColumn
from ramerge.evaluation.tables.scores import Cell, Table
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.text import csv_cell, markdown, one_line

NOTHING = "–"
FORMATS = ("text", "markdown", "html", "csv")
_INTERVALS = "In brackets: 95 % percentile bootstrap intervals."
_CSS = """
body { font-family: system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; }
thead th { text-align: center; }
tbody th { text-align: left; font-weight: normal; white-space: nowrap; }
ul { padding-left: 1.2rem; color: #444; }
"""


@dataclass(frozen=True)
class TableStyle:
    """How a format escapes texts, and shows the best and the second best cell."""

    escape: Callable[[str], str]
    best: str
    second: str

    def cell(self, cell: Cell, column: TableColumn, *, intervals: bool) -> str:
        """Value, marks, difference, interval."""
        if cell.value is None:
            return NOTHING
        text = f"{cell.value:.{column.decimals}f}"
        text = {1: self.best, 2: self.second}.get(cell.rank, "{}").format(text) + ("†" if cell.beats else "")
        if cell.difference is not None:
            difference = round(cell.difference, column.decimals) or 0.0
            text += f" ({difference:+.{column.decimals}f})" if difference else f" ({0:.{column.decimals}f})"
        if intervals and cell.interval is not None:
            text += self.escape("[{:.{d}f}, {:.{d}f}]".format(*cell.interval, d=column.decimals)).join((" ", ""))
        return text

    def legend(self, table: Table) -> list[str]:
        """What the marks mean that occur."""
        cells = [cell for row in table.rows for cell in row.cells]
        best, second = (mark.format("0.00") for mark in (self.best, self.second))
        ranks = f"{best} best and {second} second best of the merged models."
        beats = "† a merged model above the specialist of the domain."
        return [ranks] * any(cell.rank for cell in cells) + [beats] * any(cell.beats for cell in cells)


_STYLES = {
    "text": TableStyle(one_line, "{}*", "{}+"),
    "markdown": TableStyle(markdown, "**{}**", "<u>{}</u>"),
    "html": TableStyle(lambda text: html.escape(one_line(text)), "<strong>{}</strong>", "<u>{}</u>"),
}


def render(table: Table, form: str, *, intervals: bool = False, width: int | None = None) -> str:
    """A table's text, ending in a line end.

    Args:
        form: text, markdown, html (a whole page) or csv (a line a cell, plain numbers, with intervals).
        intervals: whether cells show their intervals; csv always does.
        width: of a terminal, which the format text keeps to; None for all columns side by side.

    Raises:
        EvaluationError: there is no such format.
    """
    if form == "csv":
        return _csv(table)
    if form not in _STYLES:
        raise EvaluationError(f"there is no format {form!r}; there are {', '.join(FORMATS)}")
    style = _STYLES[form]
    title, frame = style.escape(table.title), _frame(table, style, flat=form == "markdown", intervals=intervals)
    shown = intervals and any(cell.interval for row in table.rows for cell in row.cells)
    notes = style.legend(table) + [style.escape(note) for note in (*table.notes, *([_INTERVALS] if shown else []))]
    if form == "text":
        lines = [textwrap.fill(note, width, subsequent_indent="  ") if width else note for note in notes]
        return "\n".join([title, "", frame.to_string(line_width=width, index_names=False), "", *lines]) + "\n"
    if form == "markdown":
        rows = frame.to_markdown(disable_numparse=True, colalign=("left", *["right"] * len(table.columns)))
        return "\n".join([f"**{title}**", "", rows, "", *(f"- {note}" for note in notes)]) + "\n"
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_CSS}</style>'
    listed = "".join(f"<li>{note}</li>\n" for note in notes)
    body = f"<h1>{title}</h1>\n{frame.to_html(escape=False, border=0)}\n<ul>\n{listed}</ul>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _frame(table: Table, style: TableStyle, *, flat: bool, intervals: bool) -> Any:
    """The cells as texts of the format, below a row with the title of their section; groups of columns are levels."""
    import pandas as pd

    names: list[str] = []
    cells: list[list[str]] = []
    for section, rows in groupby(table.rows, key=lambda row: row.section):
        if section:
            names.append(style.escape(section))
            cells.append([""] * len(table.columns))
        for row in rows:
            names.append(style.escape(row.name))
            pairs = zip(row.cells, table.columns, strict=True)
            cells.append([style.cell(cell, column, intervals=intervals) for cell, column in pairs])
    index = pd.Index(names, name=style.escape(table.first))
    depth = max(len(column.titles) for column in table.columns)
    if flat or depth == 1:
        return pd.DataFrame(cells, index, [style.escape(column.title) for column in table.columns])
    titles = [(*map(style.escape, column.titles), "", "")[:depth] for column in table.columns]
    return pd.DataFrame(cells, index, pd.MultiIndex.from_tuples(titles))


_NUMBERS = ("value", "low", "high", "samples", "failed", "difference")


def _csv(table: Table) -> str:
    """A line for each cell that has a value."""
    import pandas as pd

    lines = []
    for row in table.rows:
        for cell, column in zip(row.cells, table.columns, strict=True):
            if cell.value is not None:
                low, high = cell.interval or (None, None)
                where = (row.name, row.section, "yes" if row.quoted else "no", column.title)
                what = (column.suite, column.task, column.metric)
                failed = None if cell.samples is None else cell.failed
                numbers = (cell.value, low, high, cell.samples, failed, cell.difference)
                lines.append([*map(csv_cell, (*where, *what)), *numbers])
    names = [*("row", "section", "quoted", "column"), *("suite", "task", "metric"), *_NUMBERS]
    return str(pd.DataFrame(lines, columns=names, dtype=object).to_csv(index=False, lineterminator="\n"))
