"""Which cells of a table stand out, and how far they are from the base model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ramerge.evaluation.tables.model import Cell, Mark, TableColumn

Family = str | None


@dataclass(frozen=True)
class Entry:
    """A row in the making.

    Attributes:
        family: the base model it comes from.
        ranked: whether it is ranked; quoted rows are where the user wants them to be.
    """

    name: str
    merged: bool
    is_base: bool
    family: Family
    cells: tuple[Cell, ...]
    quoted: bool = False
    ranked: bool = True


def marked(
    entries: Sequence[Entry],
    columns: Sequence[TableColumn],
    specialists: Mapping[tuple[Family, str], str],
    *,
    together: bool = False,
) -> list[Entry]:
    """Rows with the marks of their cells. Values count as they are shown, so that equal figures share a mark.

    Args:
        specialists: names of rows by family and suite.
        together: rank rows of all families together, not each family by itself.
    """
    marks: dict[tuple[int, int], set[Mark]] = {}
    for index, column in enumerate(columns):
        for row, mark in _column(entries, index, column, together):
            marks.setdefault((row, index), set()).add(mark)
        for row in _above(entries, index, column, specialists):
            marks.setdefault((row, index), set()).add(Mark.BEATS)
    return [
        replace(
            entry,
            cells=tuple(
                replace(cell, marks=frozenset(marks.get((row, index), ()))) for index, cell in enumerate(entry.cells)
            ),
        )
        for row, entry in enumerate(entries)
    ]


def with_differences(entries: Sequence[Entry]) -> list[Entry]:
    """Rows whose cells know their difference to their family's base model."""
    bases = {(entry.family, entry.quoted): entry for entry in entries if entry.is_base}
    return [
        entry
        if entry.is_base or (entry.family, entry.quoted) not in bases
        else replace(entry, cells=tuple(_differences(entry, bases[entry.family, entry.quoted])))
        for entry in entries
    ]


def _differences(entry: Entry, base: Entry) -> Iterator[Cell]:
    for cell, start in zip(entry.cells, base.cells, strict=True):
        if cell.value is None or start.value is None:
            yield cell
        else:
            yield replace(cell, difference=cell.value - start.value)


def _column(entries: Sequence[Entry], index: int, column: TableColumn, together: bool) -> Iterator[tuple[int, Mark]]:
    """Ranks of one column."""
    values = {
        row: value
        for row, entry in enumerate(entries)
        if entry.ranked and (value := _shown(entry.cells[index], column)) is not None
    }
    pools = {row: None if together else entries[row].family for row in values}
    for pool in dict.fromkeys(pools.values()):
        own = {row: value for row, value in values.items() if pools[row] == pool}
        merged = {row: value for row, value in own.items() if entries[row].merged}
        ranks = sorted(set(merged.values()), reverse=True)
        if len(ranks) > 1:  # where all are equal, none is best
            for mark, rank in zip((Mark.BEST, Mark.SECOND), ranks, strict=False):
                yield from ((row, mark) for row, value in merged.items() if value == rank)
        if len(own) > len(merged) and len(set(own.values())) > 1:
            yield from ((row, Mark.TOP) for row, value in own.items() if value == max(own.values()))


def _above(
    entries: Sequence[Entry], index: int, column: TableColumn, specialists: Mapping[tuple[Family, str], str]
) -> Iterator[int]:
    """Merges above the specialist of the column's domain."""
    measured = {entry.name: entry for entry in entries if not entry.quoted}
    for row, entry in enumerate(entries):
        name = specialists.get((entry.family, column.suite))
        if entry.quoted or not entry.merged or name not in measured:
            continue
        value, to_beat = _shown(entry.cells[index], column), _shown(measured[name].cells[index], column)
        if value is not None and to_beat is not None and value > to_beat:
            yield row


def _shown(cell: Cell, column: TableColumn) -> float | None:
    return None if cell.value is None else round(cell.value, column.decimals)
