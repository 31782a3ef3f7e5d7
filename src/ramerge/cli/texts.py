"""Results as lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ramerge.foundation.text import brief

if TYPE_CHECKING:
    from ramerge.engine.record import Record
    from ramerge.planning.model import Plan


def summary(record: Record, out: object) -> list[str]:
    """A merged checkpoint at `out` in a few lines."""
    from rich.filesize import decimal

    from ramerge.engine.card import columns_of, figure, meanings
    from ramerge.foundation.terminal import table

    columns = columns_of(record)
    lines: list[str] = []
    if columns:
        rows = [[agent.name, *[figure(agent, column) for column in columns]] for agent in record.statistics]
        lines += table(["agent", *[column.title for column in columns]], rows)
        lines += [f"  {text}" for text in meanings(columns, record)]
    if record.counts != "read":
        lines.append("counts: from an earlier read of the same files (--no-cache counts again)")
    lines += [f"note: {note}" for note in record.notes]
    rate = int((record.bytes_read + record.bytes_written) / max(record.seconds, 1e-9))
    lines += [
        f"dtypes: {_dtypes(record.input_dtypes, record.dtype)}",
        f"{out}: {record.method}, {record.parameters_count:,} parameters, {decimal(record.bytes_written)}",
        f"{record.seconds:.1f} s, {decimal(rate)}/s in and out, {decimal(record.peak_memory_bytes)} of memory",
    ]
    return lines


def _dtypes(inputs: Mapping[str, str], output: str) -> str:
    """The dtypes of all inputs and of the output."""
    return ", ".join([*[f"{name} {dtype}" for name, dtype in inputs.items()], f"output {output}"])


def points(records: Sequence[Record], out: str) -> list[str]:
    """The points of a sweep: what varies, what the method reports of every agent, and where each checkpoint is."""
    from ramerge.engine.card import figure
    from ramerge.foundation.terminal import table
    from ramerge.methods.table import METHODS
    from ramerge.recipe.points import folders_of

    columns = METHODS[records[0].method].columns
    varied = [key.removeprefix("parameters.") for key in records[0].point]
    shown = columns[-1:]  # the figure that parameters change: lambda, or the kept share
    agents = [f"{column.title} {agent.name}" for agent in records[0].statistics for column in shown]
    folders = [f"{out.rstrip('/')}/{name}" for name in folders_of([record.point for record in records])]
    width = max(map(len, folders))  # texts stand at the left
    rows = [
        [
            *[str(value) for value in record.point.values()],
            *[figure(agent, column) for agent in record.statistics for column in shown],
            folder.ljust(width),
        ]
        for record, folder in zip(records, folders, strict=True)
    ]
    lines = [line.rstrip() for line in table([*varied, *agents, "folder".ljust(width)], rows)]
    return [
        *lines,
        f"{out}: {len(records)} checkpoints in {records[0].seconds:.1f} s",
        "next: `ramerge eval --model NAME=FOLDER ...` scores them; `ramerge search` merges and scores point by point",
    ]


def plan(made: Plan) -> list[str]:
    """A plan for people."""
    values = made.as_dict()

    def place(name: str, folder: str) -> str:
        return f"{folder} ({values['formats'][name]})" if name in values["formats"] else folder

    default = "" if "method" in made.recipe.model_fields_set else ", the default"
    settings = ", ".join(f"{k} = {v}" for k, v in values["parameters"].items())
    rows = [
        *([("method", f"{values['method']}{default} ({settings})")] if made.method.combines else []),
        *([("base", place("base", values["base"]))] if made.recipe.base is not None else []),
        *([("base", "none needed")] if made.recipe.base is None and made.method.combines else []),
        *[
            (f"agent {name}" if made.method.combines else name, place(name, folder))
            for name, folder in values["agents"].items()
        ],
    ]
    if made.tensors:
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in values["dtypes"].items())
        shards = values["shards"]
        rows += [
            ("dtypes", _dtypes(values["input_dtypes"], made.dtype)),
            *([("rounding", f"stochastic, seed {made.recipe.seed}")] if made.recipe.seed is not None else []),
            ("tensors", f"{values['tensors']:,} ({dtypes}), {values['parameters_count']:,} parameters"),
            ("shards", f"{len(shards)} ({shards[0]}{', ...' if len(shards) > 1 else ''})"),
            ("other files", brief(", ".join(values["companions"]), 500) or "none"),
            (
                "read",
                f"{_bytes(values['bytes_read'])} in {_many(values['passes'], 'pass', 'es')}"
                + (" and a sample" if made.guessed else ""),
            ),
            ("write", _bytes(values["bytes_written"]) + (" at most, as a delta" if made.below else "")),
            *([("counts", "from an earlier read of the same files")] if values["counts"] != "read" else []),
            ("runs on", values["runs_on"]),
            *(
                [("time", f"about {_duration(values['solving_seconds'])} to solve")]
                if values["solving_seconds"]
                else []
            ),
            ("peak memory", f"at most {_bytes(values['peak_memory_bytes'])}, {_many(values['workers'], 'thread')}"),
        ]
    if made.disk_free is not None:
        rows += [("output", str(made.out)), ("free disk", _bytes(made.disk_free))]
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  {text}" for label, text in rows]
    lines += [f"note: {note}" for note in made.notes]
    lines.append(
        f"problems: {len(made.objections)}"
        if made.objections
        else f"ready to {'merge' if made.method.combines else 'convert'}"
    )
    return lines


def _many(count: int, what: str, ending: str = "s") -> str:
    return f"{count} {what}{'' if count == 1 else ending}"


def _duration(seconds: float) -> str:
    """A rough time."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "a second"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _bytes(size: int) -> str:
    from rich.filesize import decimal

    return f"{decimal(size)} ({size:,} bytes)" if size >= 1000 else f"{size} bytes"


def methods(described: Mapping[str, Mapping[str, Any]]) -> None:
    for name, method in described.items():
        click.echo(f"{name}: {method['title']}\n    {method['formula']}\n    {method['source']}")
        if method["differs"]:
            click.echo(f"    mergekit: {method['differs']}")
        for key, field in method["parameters"].items():
            default = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
            where = "".join(f"with {name}: {value}: " for name, value in field["only"].items())
            click.echo(f"    {key} = {default}  ({field['range']})\n        {where}{field['description']}")
        for preset, values in method["presets"].items():
            click.echo(f"    preset {preset}: " + ", ".join(f"{key} = {value}" for key, value in values.items()))
        click.echo()
