"""Renders a table as text, Markdown, HTML or CSV, with pandas."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ramerge import EvaluationError
from ramerge.sdk.text import csv_cell, markdown, one_line, page_styles
from ramerge_eval.tables.layouts import RETENTION, TableColumn
from ramerge_eval.tables.scores import Table

NOTHING = "–"
FORMATS = ("text", "markdown", "html", "csv")
_INTERVALS = "In brackets: 95 % percentile bootstrap intervals."
_WORST = "Red: each merge's worst task."


@dataclass(frozen=True)
class TableStyle:
    """The style of a format: how to escape text, and how to show the best and the second best cell."""

    escape: Callable[[str], str]
    best: str
    second: str

    def cell(self, cell: Any, column: TableColumn, *, intervals: bool) -> str:
        """Return the text of a cell: value, marks, difference, interval."""
        if pd.isna(cell.value):
            return NOTHING
        text = f"{cell.value:.{column.decimals}f}"
        text = {1: self.best, 2: self.second}.get(cell.rank, "{}").format(text) + ("†" if cell.beats else "")
        if not pd.isna(cell.difference):
            difference = round(cell.difference, column.decimals)
            text += f" ({difference:{'+' if difference else ''}.{column.decimals}f})".replace("-0.00)", "0.00)")
        if intervals and not pd.isna(cell.low):
            text += " " + self.escape(f"[{cell.low:.{column.decimals}f}, {cell.high:.{column.decimals}f}]")
        return text

    def legend(self, cells: pd.DataFrame) -> list[str]:
        """Return the legend of the marks that occur in a table."""
        best, second = (mark.format("0.00") for mark in (self.best, self.second))
        ranks = f"{best} best and {second} second best of the merged models."
        beats = "† a merged model above the specialist of the domain."
        return [ranks] * bool(cells["rank"].any()) + [beats] * bool(cells.beats.any())


_STYLES = {
    "text": TableStyle(one_line, "{}*", "{}+"),
    "markdown": TableStyle(markdown, "**{}**", "<u>{}</u>"),
    "html": TableStyle(lambda text: html.escape(one_line(text)), "<strong>{}</strong>", "<u>{}</u>"),
}


def render(table: Table, form: str, *, intervals: bool = False, width: int | None = None) -> str:
    """Render a table as text, Markdown, HTML or CSV, ending in a line end.

    Args:
        form: text, markdown, html (a whole page) or csv (a line per cell, plain numbers, with intervals).
        intervals: whether cells show their intervals; csv always does.
        width: the width of a terminal, for the format text; None for all columns side by side.

    Raises:
        EvaluationError: there is no such format.
    """
    if form == "csv":
        return _csv(table)
    if form not in _STYLES:
        raise EvaluationError(f"there is no format {form!r}; there are {', '.join(FORMATS)}")
    style = _STYLES[form]
    if form == "html":
        title, body = style.escape(table.title), table_html(table, intervals=intervals)
        screen = '<meta name="viewport" content="width=device-width, initial-scale=1">'
        head = f'<meta charset="utf-8">{screen}<title>{title}</title>'
        return (
            f'<!doctype html>\n<html lang="en"><head>{head}<style>{page_styles()}</style></head><body>\n'
            f"<header><h1>{title}</h1></header>\n<main>{body}</main>\n</body></html>\n"
        )
    title, frame = style.escape(table.title), _frame(table, style, flat=form == "markdown", intervals=intervals)
    has_intervals = intervals and bool(table.cells.low.notna().any())
    notes = style.legend(table.cells) + [style.escape(note) for note in (*table.notes, *[_INTERVALS] * has_intervals)]
    if form == "text":
        lines = [textwrap.fill(note, width, subsequent_indent="  ") if width else note for note in notes]
        return "\n".join([title, "", frame.to_string(line_width=width, index_names=False), "", *lines]) + "\n"
    rows = frame.to_markdown(disable_numparse=True, colalign=("left", *["right"] * len(table.columns)))
    return "\n".join([f"**{title}**", "", rows, "", *(f"- {note}" for note in notes)]) + "\n"


def table_html(table: Table, *, intervals: bool = False) -> str:
    """Render a table and its notes as a part of a page, with the classes of `page_styles`."""
    style = _STYLES["html"]
    titles = [style.escape(column.title) for column in table.columns]
    head = "".join(f'<th scope="col">{title}</th>' for title in (style.escape(table.first), *titles))
    rows, section = [], ""
    for _, group in table.cells.groupby("line"):
        cells = list(group.itertuples())
        if cells[0].section != section:
            section = cells[0].section
            rows.append(f'<tr><th scope="colgroup" colspan="{len(titles) + 1}">{style.escape(section)}</th></tr>')
        # the smallest of a row's retentions, if there is more than one
        retention_cells = [
            cell for cell in cells if table.columns[cell.place].titles[0] == RETENTION and not pd.isna(cell.value)
        ]
        worst = min(retention_cells, key=lambda cell: float(cell.value)) if len(retention_cells) > 1 else None
        figures = ""
        for title, cell in zip(titles, cells, strict=True):
            text = style.cell(cell, table.columns[cell.place], intervals=intervals)
            names = ["worst"] * (cell is worst) + ["long"] * (len(text) > 18)
            classes = f' class="{" ".join(names)}"' if names else ""
            figures += f'<td data-label="{title}"{classes}>{text}</td>'
        rows.append(f'<tr><th scope="row">{style.escape(cells[0].row)}</th>{figures}</tr>')
    explanations = [_INTERVALS] * (intervals and bool(table.cells.low.notna().any()))
    explanations += [_WORST] * any(column.titles[0] == RETENTION for column in table.columns)
    notes = style.legend(table.cells) + [style.escape(note) for note in (*table.notes, *explanations)]
    items = "".join(f"<li>{note}</li>\n" for note in notes)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{style.escape(table.title)}"><table class="plain">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table></div>\n"
        f'<ul class="notes">\n{items}</ul>'
    )


def _frame(table: Table, style: TableStyle, *, flat: bool, intervals: bool) -> pd.DataFrame:
    """Return the cells as text in the format, below a row with their section's title; column groups become levels."""
    names: list[str] = []
    lines: list[list[str]] = []
    section = ""
    for _, cells in table.cells.groupby("line"):
        first, *_ = row = list(cells.itertuples())
        if first.section != section:
            section = first.section
            names.append(style.escape(section))
            lines.append([""] * len(table.columns))
        names.append(style.escape(first.row))
        lines.append([style.cell(cell, table.columns[cell.place], intervals=intervals) for cell in row])
    index = pd.Index(names, name=style.escape(table.first))
    depth = max(len(column.titles) for column in table.columns)
    if flat or depth == 1:
        return pd.DataFrame(lines, index, [style.escape(column.title) for column in table.columns])
    titles = [(*map(style.escape, column.titles), "", "")[:depth] for column in table.columns]
    return pd.DataFrame(lines, index, pd.MultiIndex.from_tuples(titles))


def _csv(table: Table) -> str:
    """Return a line for each cell with a value, or with the reason for a missing value."""
    cells = table.cells[table.cells.value.notna() | (table.cells.failure != "")]
    columns = [table.columns[place] for place in cells.place]
    texts = {
        "row": cells.row,
        "section": cells.section,
        "quoted": cells.quoted.map({True: "yes", False: "no"}),
        "column": [column.title for column in columns],
        **{name: [getattr(column, name) for column in columns] for name in ("suite", "task", "metric")},
    }
    frame = pd.DataFrame({name: map(csv_cell, values) for name, values in texts.items()}, index=cells.index)
    numbers = cells[["value", "low", "high", "samples", "failed", "difference"]]
    return str(frame.join(numbers).assign(failure=cells.failure.map(csv_cell)).to_csv(index=False, lineterminator="\n"))
