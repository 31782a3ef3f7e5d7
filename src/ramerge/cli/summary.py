"""Summaries of merges, in a few lines for the terminal."""

from __future__ import annotations

from ramerge.cli.terminal import table
from ramerge.core.engine.columns import columns_of, figure, meanings
from ramerge.core.engine.record import Record
from ramerge.core.planning.explain import dtypes_of

_NAMED = 4


def summary(record: Record, out: object, *, explain: bool = False) -> list[str]:
    """A merged checkpoint at `out` in a few lines, the result first.

    Args:
        record: of the merge.
        out: the output, as the user named it.
        explain: whether columns are explained, and what usually needs no line is said, too.
    """
    from rich.filesize import decimal

    names = ", ".join(record.agents) if len(record.agents) <= _NAMED else f"{len(record.agents)} agents"
    what = "one model" if record.method == "passthrough" else f"{record.method} of {names}"
    lines = [
        f"{out}: {what}; {record.parameters_count:,} parameters, {decimal(record.bytes_written)}, "
        f"in {record.seconds:.1f} s and {decimal(record.peak_memory_bytes)} of memory"
    ]
    columns = columns_of(record)
    if columns:
        rows = [[agent.name, *[figure(agent, column) for column in columns]] for agent in record.agents.values()]
        lines += table(["agent", *[column.title for column in columns]], rows)
    if explain:
        lines += [f"  {text}" for text in meanings(columns, record)]
        rate = int((record.bytes_read + record.bytes_written) / max(record.seconds, 1e-9))
        lines.append(f"speed: {decimal(rate)}/s in and out")
    if explain and record.counts != "read":
        lines.append("counts: from an earlier read of the same files (--no-cache counts again)")
    if explain or {*record.input_dtypes.values()} != {record.dtype}:
        lines.append(f"dtypes: {dtypes_of(record.input_dtypes, record.dtype)}")
    return [*lines, *(f"note: {note}" for note in record.notes)]
