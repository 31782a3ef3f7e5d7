"""Summary of a merge in a few lines for the terminal."""

from __future__ import annotations

from ramerge.cli.terminal import table
from ramerge.core.engine.card import columns_of, figure, meanings
from ramerge.core.engine.record import Record
from ramerge.core.planning.explain import dtypes_of


def summary(record: Record, out: object) -> list[str]:
    """A merged checkpoint at `out` in a few lines."""
    from rich.filesize import decimal

    columns = columns_of(record)
    lines: list[str] = []
    if columns:
        rows = [[agent.name, *[figure(agent, column) for column in columns]] for agent in record.agents.values()]
        lines += table(["agent", *[column.title for column in columns]], rows)
        lines += [f"  {text}" for text in meanings(columns, record)]
    if record.counts != "read":
        lines.append("counts: from an earlier read of the same files (--no-cache counts again)")
    lines += [f"note: {note}" for note in record.notes]
    rate = int((record.bytes_read + record.bytes_written) / max(record.seconds, 1e-9))
    what = "one model" if record.method == "passthrough" else record.method
    lines += [
        f"dtypes: {dtypes_of(record.input_dtypes, record.dtype)}",
        f"{out}: {what}, {record.parameters_count:,} parameters, {decimal(record.bytes_written)}",
        f"{record.seconds:.1f} s, {decimal(rate)}/s in and out, {decimal(record.peak_memory_bytes)} of memory",
    ]
    return lines
