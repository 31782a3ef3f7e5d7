"""Short results of the core's commands: a merge, a sweep, the merging methods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ramerge.cli.terminal import table
from ramerge.core.engine.columns import columns_of, figure_text, meanings
from ramerge.core.engine.record import Record
from ramerge.core.foundation.text import quantity
from ramerge.core.methods.registry import METHODS
from ramerge.core.planning.explain import dtypes_of
from ramerge.core.recipe.points import folders_of

_MOST_NAMES = 4


def summary(record: Record, out: object, *, explain: bool = False) -> list[str]:
    """Describe a merged checkpoint at `out` in a few lines, the result first.

    Args:
        explain: explain the columns, and add details.
    """
    from rich.filesize import decimal

    names = ", ".join(record.agents) if len(record.agents) <= _MOST_NAMES else f"{len(record.agents)} agents"
    what = f"{record.method} of {names}"
    if record.method == "passthrough":
        agent_name = record.parameters.get("agent") or next(iter(record.agents))
        what = "one model" if len(record.agents) == 1 else f"one model, {agent_name}"
    lines = [
        f"{out}: {what}; {record.parameters_count:,} parameters, {decimal(record.bytes_written)}, "
        f"in {record.seconds:.1f} s and {decimal(record.peak_memory_bytes)} of memory"
    ]
    columns = columns_of(record)
    if columns:
        rows = [[agent.name, *[figure_text(agent, column) for column in columns]] for agent in record.agents.values()]
        lines += table(["agent", *[column.title for column in columns]], rows)
    if explain:
        lines += [f"  {text}" for text in meanings(columns, record)]
        rate = int((record.bytes_read + record.bytes_written) / max(record.seconds, 1e-9))
        lines.append(f"speed: {decimal(rate)}/s in and out")
    if explain and record.counts != "read":
        lines.append("counts: cached by an earlier run on the same files (--no-cache counts again)")
    if explain or {*record.input_dtypes.values()} != {record.dtype}:
        lines.append(f"dtypes: {dtypes_of(record.input_dtypes, record.dtype)}")
    return [*lines, *(f"note: {note}" for note in record.notes)]


def sweep_summary(records: Sequence[Record], out: str) -> list[str]:
    """Describe the points of a sweep: their values, the method's figures for every agent, and the path of each
    checkpoint.
    """
    columns = METHODS[records[0].method].columns[-1:]  # the figure that parameters change: lambda, or the kept share
    names = folders_of([record.point for record in records])
    # names of folders show the varied values, unless they would be too long; alone they would be no table
    has_values = names[0].startswith("point-") or not columns
    keys = [key.removeprefix("parameters.") for key in records[0].point if has_values]
    head = ["point", *keys, *(f"{column.title} {agent}" for agent in records[0].agents for column in columns)]
    rows = [
        [
            name,
            *([str(value) for value in record.point.values()] if keys else []),
            *(figure_text(agent, column) for agent in record.agents.values() for column in columns),
        ]
        for record, name in zip(records, names, strict=True)
    ]
    return [
        *table(head, rows),
        f"{quantity(len(records), 'checkpoint')}, the first in {out.rstrip('/')}/{names[0]}, "
        f"in {records[0].seconds:.1f} s",
        "next: `ramerge eval --model NAME=FOLDER ...` scores them; `ramerge search` merges and scores point by point",
    ]


def method_texts(descriptions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describe merging methods, as returned by `methods.registry.describe`, in lines for `ramerge methods NAME`."""
    lines = []
    for name, method in descriptions.items():
        lines += [f"{name}: {method['title']}", f"    {method['formula']}", f"    {method['source']}"]
        if method["differs"]:
            lines.append(f"    mergekit: {method['differs']}")
        for key, field in method["parameters"].items():
            default = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
            where = "".join(f"with {name}: {value}: " for name, value in field["only"].items())
            lines += [f"    {key} = {default}  ({field['range']})", f"        {where}{field['description']}"]
        for preset, values in method["presets"].items():
            lines.append(f"    preset {preset}: " + ", ".join(f"{key} = {value}" for key, value in values.items()))
        lines.append("")
    return lines
