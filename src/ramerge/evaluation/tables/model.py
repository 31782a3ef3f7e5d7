"""A table, before it is text: rows of cells with their values, marks and intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Mark(Enum):
    """What a cell is singled out for; the value says it in the table's legend."""

    BEST = "best of the merged models"
    SECOND = "second best of the merged models"
    BEATS = "a merged model above the specialist of the domain"
    TOP = "best of all models"


@dataclass(frozen=True)
class TableColumn:
    """A column: what it shows, and its titles from the widest group down to its own.

    An average has no task; it is over the columns that have its suite, or over all where it has none, less the tasks
    that it leaves out.
    """

    titles: tuple[str, ...]
    suite: str = ""
    task: str = ""
    metric: str = ""
    decimals: int = 2
    without: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """All titles in one line."""
        return " ".join(filter(None, self.titles))


@dataclass(frozen=True)
class Cell:
    """A score in per cent, or another number; None where there is none.

    Attributes:
        interval: low and high of the 95 % bootstrap interval.
        samples: how many samples the value is over; None for averages and quoted values.
        failed: how many of them had no usable answer.
        difference: to the row of the base model.
    """

    value: float | None = None
    interval: tuple[float, float] | None = None
    samples: int | None = None
    failed: int = 0
    difference: float | None = None
    marks: frozenset[Mark] = frozenset()


@dataclass(frozen=True)
class Row:
    """A model. `quoted` rows come from a publication and were not measured."""

    name: str
    section: str
    cells: tuple[Cell, ...]
    quoted: bool = False


@dataclass(frozen=True)
class Table:
    """Rows stand in order, those of a section together. `first` is the title of the column of names."""

    title: str
    first: str
    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """The columns' titles, a line of them at a time, without lines that are empty."""
        depth = max(len(column.titles) for column in self.columns)
        padded = [column.titles + ("",) * (depth - len(column.titles)) for column in self.columns]
        return tuple(level for level in zip(*padded, strict=True) if any(level))

    def sections(self) -> Iterator[tuple[str, list[Row]]]:
        """Each section's title with its rows."""
        for title in dict.fromkeys(row.section for row in self.rows):
            yield title, [row for row in self.rows if row.section == title]

    def legend(self) -> list[Mark]:
        """The marks that occur."""
        used = {mark for row in self.rows for cell in row.cells for mark in cell.marks}
        return [mark for mark in Mark if mark in used]
