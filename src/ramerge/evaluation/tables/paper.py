"""The paper's own rows, to stand next to what was measured: quoted, never measured here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ramerge.foundation.errors import EvaluationError


@dataclass(frozen=True)
class Quoted:
    """A row as it was printed, in per cent.

    `role` is base, agent or merged; `average` and `family` (the base model) are None where the table has none.
    """

    name: str
    role: str
    values: tuple[float, ...]
    average: float | None = None
    family: str | None = None


def rows(table: str) -> list[Quoted]:
    """A table's rows.

    Raises:
        EvaluationError: the paper has no such table.
    """
    tables = _paper()["tables"]
    if table not in tables:
        raise EvaluationError(f"the paper has no rows for the table {table!r}; it has {', '.join(tables)}")
    return [
        Quoted(row["name"], row["role"], tuple(row["values"]), row.get("average"), row.get("family"))
        for row in tables[table]["rows"]
    ]


def source(table: str) -> str:
    """Where a table's rows are from."""
    return f"arXiv {_paper()['source']['arxiv']}, {table.replace('table', 'table ')}"


def inconsistencies(table: str) -> list[str]:
    """What does not fit in the printed table."""
    return list(_paper()["tables"][table]["inconsistencies"])


@cache
def _paper() -> dict[str, Any]:
    text = files("ramerge.evaluation").joinpath("paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
