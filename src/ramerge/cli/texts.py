"""Results as lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ramerge.core.engine.record import Record


def points(records: Sequence[Record], out: str) -> list[str]:
    """The points of a sweep: what varies, what the method reports of every agent, and where each checkpoint is."""
    from ramerge.cli.terminal import table
    from ramerge.core.engine.columns import figure
    from ramerge.core.methods.registry import METHODS
    from ramerge.core.recipe.points import folders_of

    columns = METHODS[records[0].method].columns[-1:]  # the figure that parameters change: lambda, or the kept share
    names = folders_of([record.point for record in records])
    # names of folders say what varies, unless they would be too long
    varied = [key.removeprefix("parameters.") for key in records[0].point if names[0].startswith("point-")]
    head = ["point", *varied, *(f"{column.title} {agent}" for agent in records[0].agents for column in columns)]
    rows = [
        [
            name,
            *([str(value) for value in record.point.values()] if varied else []),
            *(figure(agent, column) for agent in record.agents.values() for column in columns),
        ]
        for record, name in zip(records, names, strict=True)
    ]
    return [
        *table(head, rows),
        f"{len(records)} checkpoints, the first in {out.rstrip('/')}/{names[0]}, in {records[0].seconds:.1f} s",
        "next: `ramerge eval --model NAME=FOLDER ...` scores them; `ramerge search` merges and scores point by point",
    ]


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
