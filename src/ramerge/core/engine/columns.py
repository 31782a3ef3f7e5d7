"""Columns of the table of agents: a merge's figures, their formats and explanations."""

from __future__ import annotations

from collections.abc import Sequence

from ramerge.core.engine.record import AgentStatistics, Record
from ramerge.core.foundation.text import quantity
from ramerge.core.methods.base import Column
from ramerge.core.methods.registry import METHODS


def columns_of(record: Record) -> tuple[Column, ...]:
    """Return the columns of agents' figures: the method's own, and the effects of rounding to the output's dtype."""
    columns = tuple(
        column
        for column in METHODS[record.method].columns
        if not column.optional or any(column.key in agent.values for agent in record.agents.values())
    )
    dtype = "the output's dtypes" if record.dtype == "mixed" else record.dtype
    erasure = erased_means("", dtype, stochastic=record.rounding_seed is not None)
    figures = (
        Column("erased_share", "erased", ".1%", erasure),
        Column("effective_lambda", "effective", ".3f", effective_means(), none="-", of="nominal_lambda"),
    )
    further_columns = [
        column for column in figures if all(column.key in agent.values for agent in record.agents.values())
    ]
    return (*columns, *further_columns)


def erased_means(merge: str, dtype: str, *, stochastic: bool) -> str:
    """Return the explanation of the column `erased`.

    Args:
        merge: the merge that the column belongs to, such as ` in a ram merge`; empty if there is only one.
        dtype: the output's dtype.
        stochastic: whether rounding was stochastic, which enlarges some updates as much as it erases others.
    """
    consolation = "; others grew instead, so the mean is kept" if stochastic else ""
    return f"share of the agent's changes{merge} that rounding to {dtype} undoes{consolation}"


def effective_means() -> str:
    """Return the explanation of the column `effective`."""
    return "factor on the agent's update after rounding, of that before it; a sample of parameters that only it moved"


def meanings(columns: Sequence[Column], record: Record) -> list[str]:
    """Return the legend of the columns, and where to find figures that are counted separately for each part."""
    texts = [f"{column.title}: {column.meaning}" for column in columns]
    if record.parts:
        texts.append(
            f"by part: {quantity(len(record.parts), 'part has', 'parts have')} figures under parts in ramerge.json"
        )
    return texts


def figure_text(agent: AgentStatistics, column: Column) -> str:
    """Format one figure of an agent as its column specifies."""
    values = [agent.values[key] for key in (column.key, column.of) if key]
    return column.none if None in values else " of ".join(format(value, column.format) for value in values)
