"""A table as text: for the terminal, Markdown, HTML, and CSV."""

from __future__ import annotations

import csv
import html
import io
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from ramerge.evaluation.tables.model import Cell, Mark, Row, Table, TableColumn
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.text import csv_cell, markdown, one_line

NOTHING = "–"
_INTERVALS = "In brackets: 95 % percentile bootstrap intervals."


def render(table: Table, form: str, *, intervals: bool = False, width: int | None = None) -> str:
    """A table's text, ending in a line end.

    Args:
        form: text, markdown, html (a whole page) or csv (a line a cell,
            plain numbers, with intervals).
        intervals: whether cells show their intervals; csv always does.
        width: of a terminal, which the format text keeps to; None for all columns beside each other.

    Raises:
        EvaluationError: there is no such format.
    """
    if form not in FORMATS:
        raise EvaluationError(f"there is no format {form!r}; there are {', '.join(FORMATS)}")
    return _text(table, intervals, width) if form == "text" else FORMATS[form](table, intervals)


class _Style(ABC):
    """How a format escapes text and shows marks."""

    signs: ClassVar[dict[Mark, str]] = {Mark.BEATS: "†", Mark.TOP: "‡"}

    def __init__(self, intervals: bool) -> None:
        self.intervals = intervals

    @abstractmethod
    def escape(self, text: str) -> str:
        """Text that the format shows as it is."""

    @abstractmethod
    def marked(self, text: str, mark: Mark) -> str:
        """Text of the format with one mark."""

    def cell(self, cell: Cell, column: TableColumn) -> str:
        """Value, marks, difference, interval."""
        if cell.value is None:
            return self.escape(NOTHING)
        text = self.escape(f"{cell.value:.{column.decimals}f}")
        for mark in Mark:
            if mark in cell.marks:
                text = self.marked(text, mark)
        if cell.difference is not None:
            text += self.escape(f" ({_signed(cell.difference, column.decimals)})")
        if self.intervals and cell.interval is not None:
            low, high = cell.interval
            text += self.escape(f" [{low:.{column.decimals}f}, {high:.{column.decimals}f}]")
        return text

    def notes(self, table: Table) -> list[str]:
        """The legend and the notes."""
        legend = ", ".join(f"{self.marked(_SAMPLE, mark)} {self.escape(mark.value)}" for mark in table.legend())
        shown = self.intervals and any(cell.interval for row in table.rows for cell in row.cells)
        notes = [*table.notes, *([_INTERVALS] if shown else [])]
        return ([f"{legend}."] if legend else []) + [self.escape(note) for note in notes]


_SAMPLE = "0.00"


class _Text(_Style):
    signs: ClassVar[dict[Mark, str]] = {Mark.BEST: "*", Mark.SECOND: "+", **_Style.signs}

    def escape(self, text: str) -> str:
        return one_line(text)

    def marked(self, text: str, mark: Mark) -> str:
        return text + self.signs[mark]


class _Markdown(_Style):
    def escape(self, text: str) -> str:
        return markdown(text)

    def marked(self, text: str, mark: Mark) -> str:
        wrapped = {Mark.BEST: f"**{text}**", Mark.SECOND: f"<u>{text}</u>"}
        return wrapped.get(mark) or text + self.signs[mark]


class _Html(_Style):
    def escape(self, text: str) -> str:
        return html.escape(one_line(text))

    def marked(self, text: str, mark: Mark) -> str:
        tags = {Mark.BEST: f"<strong>{text}</strong>", Mark.SECOND: f"<u>{text}</u>", Mark.BEATS: f"{text}†"}
        return tags.get(mark) or f'<span class="top">{text}‡</span>'


def _text(table: Table, intervals: bool, width: int | None = None) -> str:
    """Aligned columns. Beyond a width the columns go on below, domain by domain, beside the names again."""
    style = _Text(intervals)
    sections = [(style.escape(title), list(_cells(rows, table, style))) for title, rows in table.sections()]
    grid = _Grid(style.escape(table.first), [list(map(style.escape, level)) for level in table.levels], sections)
    blocks = _blocks(table.columns, grid, width) if width else [list(range(len(table.columns)))]
    notes = [textwrap.fill(note, width, subsequent_indent="  ") if width else note for note in style.notes(table)]
    lines = [line for block in blocks for line in ["", *grid.lines(block)]]
    return "\n".join([style.escape(table.title), *lines, "", *notes]) + "\n"


@dataclass(frozen=True)
class _Grid:
    """A table's texts: titles of columns from the widest group down, and rows by section."""

    first: str
    levels: Sequence[Sequence[str]]
    sections: Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]]

    def width(self, block: Sequence[int]) -> int:
        """Characters of a line with the given columns."""
        return self._name_width() + sum(2 + width for width in self._widths(block))

    def lines(self, block: Sequence[int]) -> list[str]:
        """The names and the given columns."""
        names, widths = self._name_width(), self._widths(block)
        found = [self._title(number, block, widths) for number in range(len(self.levels))]
        for section, rows in self.sections:
            found += [section] if section else []
            for name, cells in rows:
                texts = (cells[index].rjust(width) for index, width in zip(block, widths, strict=True))
                found.append("  ".join([self._name(section, name).ljust(names), *texts]))
        return [line.rstrip() for line in found]

    def _title(self, number: int, block: Sequence[int], widths: Sequence[int]) -> str:
        """A line of titles, each to the left above all of its columns, the last line's to the right."""
        is_last = number == len(self.levels) - 1
        texts, start = [(self.first if is_last else "").ljust(self._name_width())], 0
        for title, span in self._groups(number, block):
            room = sum(widths[start : start + span]) + 2 * (span - 1)
            texts.append(title.rjust(room) if is_last else title.ljust(room))
            start += span
        return "  ".join(texts)

    def _groups(self, number: int, block: Sequence[int]) -> list[tuple[str, int]]:
        return _groups([[level[index] for index in block] for level in self.levels], number)

    def _widths(self, block: Sequence[int]) -> list[int]:
        """Each column's, so that its cells fit, and the titles above its group."""
        rows = [cells for _, rows in self.sections for _, cells in rows]
        widths = [max(len(texts[index]) for texts in (self.levels[-1], *rows)) for index in block]
        for number in range(len(self.levels) - 1):
            start = 0
            for title, span in self._groups(number, block):
                end = start + span
                widths[end - 1] += max(0, len(title) - sum(widths[start:end]) - 2 * (span - 1))
                start = end
        return widths

    def _name_width(self) -> int:
        names = [self._name(section, name) for section, rows in self.sections for name, _ in rows]
        return max(map(len, [self.first, *names]))

    def _name(self, section: str, name: str) -> str:
        return f"  {name}" if section else name


def _blocks(columns: Sequence[TableColumn], grid: _Grid, width: int) -> list[list[int]]:
    """Columns that stand beside each other: a domain stays whole where it fits, and a column wider than
    the terminal has a block of its own."""
    blocks: list[list[int]] = [[]]
    for _, group in groupby(range(len(columns)), key=lambda index: columns[index].titles[0]):
        domain = list(group)
        if blocks[-1] and grid.width(blocks[-1] + domain) > width:
            blocks.append([])
        for index in domain:
            if blocks[-1] and grid.width([*blocks[-1], index]) > width:
                blocks.append([])
            blocks[-1].append(index)
    return blocks


def _markdown(table: Table, intervals: bool) -> str:
    style = _Markdown(intervals)
    head = [table.first, *(column.title for column in table.columns)]
    lines = [f"**{style.escape(table.title)}**", "", _pipes(map(style.escape, head))]
    lines.append(_pipes(["---", *("---:" for _ in table.columns)]))
    for section, rows in table.sections():
        lines += [_pipes([f"*{style.escape(section)}*", *("" for _ in table.columns)])] if section else []
        lines += [_pipes([name, *cells]) for name, cells in _cells(rows, table, style)]
    return "\n".join([*lines, "", *(f"- {note}" for note in style.notes(table))]) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spanning(text: str, span: int) -> str:
    return text if span == 1 else rf"\multicolumn{{{span}}}{{c}}{{{text}}}"


def _rules(groups: Sequence[tuple[str, int]]) -> str:
    """Lines below titles that stand over several columns."""
    start, rules = 2, []
    for title, span in groups:
        if title and span > 1:
            rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
        start += span
    return "".join(rules)


_CSS = """
body { font-family: system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding-bottom: .5rem; }
th, td { padding: .2rem .6rem; text-align: right; }
thead th { text-align: center; }
tbody th { text-align: left; font-weight: normal; white-space: nowrap; }
thead tr:last-child th, tbody { border-bottom: 1px solid #888; }
th.section { font-style: italic; }
tr.quoted { color: #666; }
.top { color: #c00; }
ul { padding-left: 1.2rem; color: #444; }
"""


def _html(table: Table, intervals: bool) -> str:
    style = _Html(intervals)
    title = style.escape(table.title)
    head = []
    for number in range(len(table.levels)):
        first = f'<th rowspan="{len(table.levels)}">{style.escape(table.first)}</th>' if not number else ""
        titles = (f'<th colspan="{n}">{style.escape(text)}</th>' for text, n in _groups(table.levels, number))
        head.append(f"<tr>{first}{''.join(titles)}</tr>")
    body = []
    for section, rows in table.sections():
        wide = len(table.columns) + 1
        name = f'<tr><th class="section" colspan="{wide}">{style.escape(section)}</th></tr>' if section else ""
        lines = [_html_row(row, table, style) for row in rows]
        body.append("\n".join(["<tbody>", *([name] if name else []), *lines, "</tbody>"]))
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_CSS}</style></head><body>',
            f"<table><caption>{title}</caption>",
            "<thead>",
            *head,
            "</thead>",
            *body,
            "</table>",
            "<ul>",
            *(f"<li>{note}</li>" for note in style.notes(table)),
            "</ul></body></html>\n",
        ]
    )


def _html_row(row: Row, table: Table, style: _Style) -> str:
    cells = (f"<td>{style.cell(cell, column)}</td>" for cell, column in zip(row.cells, table.columns, strict=True))
    kind = ' class="quoted"' if row.quoted else ""
    return f"<tr{kind}><th>{style.escape(row.name)}</th>{''.join(cells)}</tr>"


_WHERE = ("row", "section", "quoted", "column", "suite", "task", "metric")
_NUMBERS = ("value", "low", "high", "samples", "failed", "difference")


def _csv(table: Table, intervals: bool) -> str:
    """A line for each cell that has a value."""
    del intervals  # always there
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_WHERE, *_NUMBERS))
    for row in table.rows:
        for cell, column in zip(row.cells, table.columns, strict=True):
            if cell.value is None:
                continue
            low, high = cell.interval or (None, None)
            where = (row.name, row.section, "yes" if row.quoted else "no", column.title)
            what = (column.suite, column.task, column.metric)
            failed = None if cell.samples is None else cell.failed
            numbers = (cell.value, low, high, cell.samples, failed, cell.difference)
            writer.writerow([*map(csv_cell, (*where, *what)), *numbers])
    return out.getvalue()


FORMATS: dict[str, Callable[[Table, bool], str]] = {
    "text": _text,
    "markdown": _markdown,
    "html": _html,
    "csv": _csv,
}


def _cells(rows: Sequence[Row], table: Table, style: _Style) -> Iterator[tuple[str, list[str]]]:
    """Names and cells of rows."""
    for row in rows:
        cells = zip(row.cells, table.columns, strict=True)
        yield style.escape(row.name), [style.cell(cell, column) for cell, column in cells]


def _groups(levels: Sequence[Sequence[str]], number: int) -> list[tuple[str, int]]:
    """A line of titles with the columns that each stands over: neighbours with the same titles down to this line."""
    paths = list(zip(*levels[: number + 1], strict=True))
    if number == len(levels) - 1:
        return [(path[-1], 1) for path in paths]
    return [(path[-1], len(list(same))) for path, same in groupby(paths)]


def _signed(value: float, decimals: int) -> str:
    """With its sign, unless it is nothing."""
    text = f"{value:+.{decimals}f}"
    return text if text.strip("+-0.") else text[1:]
