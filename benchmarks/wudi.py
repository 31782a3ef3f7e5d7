"""WUDI: time and memory for each linear weight, and of a whole merge."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import SHAPES, family
from benchmarks.report import Options, RawResults, Section, table
from benchmarks.timing import command_line, run, spread, tell

_MOST_RUNS = 3


def measure(options: Options) -> dict[str, Any]:
    """Each shape in processes of their own, then merges."""
    runs = min(options.runs, _MOST_RUNS)
    by_shape: dict[str, list[dict[str, Any]]] = {}
    shapes = shapes_of(options.size)
    for shape in shapes:
        by_shape[shape] = []
        for turn in range(runs):
            result = run([sys.executable, "-m", "benchmarks.wudi_layer", *shape.split(" x ")])
            by_shape[shape].append(json.loads(result.output))
            tell(f"wudi {options.size}: {shape}, run {turn + 1}: {by_shape[shape][-1]['seconds']:.2f} s")
    return {
        "size": options.size,
        "layer_runs": runs,
        "shapes": shapes,
        "taken": by_shape,
        "merge": _merge(options, runs),
    }


def shapes_of(size: str) -> dict[str, int]:
    """How often each shape of a linear weight, `out x in`, occurs in a model."""
    shape = SHAPES[size]
    hidden_size, inner = shape.hidden_size, shape.intermediate
    keys = hidden_size // shape.heads * shape.key_value_heads
    each = {(keys, hidden_size): 2, (hidden_size, hidden_size): 2, (inner, hidden_size): 2, (hidden_size, inner): 1}
    return {f"{out} x {width}": shape.layers * times for (out, width), times in each.items()}


def _merge(options: Options, runs: int) -> dict[str, Any]:
    files, out = family(options.size, options.work), options.work / "merged"
    command = merging.command("wudi", files, out)
    processes = []
    for turn in range(runs):
        machine.make_warm(files.weights)
        processes.append(run(command, watch=True).to_dict())
        machine.remove(out)
        tell(f"wudi {options.size}: merge, run {turn + 1}: {processes[-1]['seconds']:.2f} s")
    planned_bytes = json.loads(run(merging.plan("wudi", files)).output)["peak_memory_bytes"]
    return {"command": command_line(command), "planned": planned_bytes, "taken": processes}


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table of layers, and a merge."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    merge = data["merge"]
    duration = spread([one["seconds"] for one in merge["taken"]])
    memory = spread([one["anonymous"] / 1e6 for one in merge["taken"]])
    head = ("weight", "in the model", "seconds", "MB", "objective")
    return [
        f"### Layers: Qwen2.5-{data['size']}",
        f"Task vectors of three agents on the CPU; runs of each: {data['layer_runs']}. Memory is "
        "what the solver takes beyond the task vectors. The objective is relative to that of the sum of the task "
        "vectors, from which the solver starts. It is that of the minimum itself (`proximity: 1e-10`); merges "
        "stay nearer to the sum by default, in the same time. A lower objective does not mean that a model performs "
        "better.",
        table(head, [_row(data, shape) for shape in data["shapes"]]),
        f"All linear weights one after another, by these medians: {_whole(data):,.0f} s.",
        f"    {merge['command']}",
        f"takes {duration.text(1, 's')} and {memory.text(0, 'MB')} without mapped files; `ramerge plan` promises to "
        f"stay below {merge['planned'] / 1e6:,.0f} MB.",
    ]


def _row(data: Mapping[str, Any], shape: str) -> tuple[str, ...]:
    ones = data["taken"][shape]
    return (
        shape,
        str(data["shapes"][shape]),
        spread([one["seconds"] for one in ones]).text(),
        spread([one["bytes"] / 1e6 for one in ones]).text(0),
        f"{ones[0]['objective'] / ones[0]['objective_of_sum']:.4g}",
    )


def _whole(data: Mapping[str, Any]) -> float:
    return sum(
        times * spread([one["seconds"] for one in data["taken"][shape]]).median
        for shape, times in data["shapes"].items()
    )


SECTION = Section("wudi", "WUDI", has_sizes=True, measure=measure, render=render, fewest=1)
