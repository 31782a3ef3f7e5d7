"""The compiled kernels next to a plain copy: bytes a second of one thread, on arrays larger than the caches.

On such arrays the distance from one to the next can double the time. So two are measured: that in the buffers of
`ramerge merge`, which the bars are for, and for comparison arrays that lie at distances of a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import checkpoints
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import Spread, ratios, seconds, spread, tell
from ramerge.core.kernels import ram
from ramerge.core.kernels.element_formats import uniform
from ramerge.core.tensors.arena import room

Words = NDArray[np.uint32]

_AGENTS = (2, 3, 5, 8)
_BARS = {2: 0.6, 3: 0.6, 5: 0.45, 8: 0.45}
_ELEMENTS = 1 << 26
_CHUNK = 1 << 21
_GOAL_LAYOUT = "as in a merge"
# Bytes between the end of an array and the beginning of the next.
_GAPS = {
    _GOAL_LAYOUT: room(2 * _ELEMENTS) - 2 * _ELEMENTS,
    "power of two": 0,
}
_EPSILON = 1e-5
_LAMBDAS = (1.2, 1.145, 1.111)
# A pair takes tens of milliseconds, so that five of them are little.
_PAIRS_PER_RUN = 5
_TITLES = {
    "count": "count (RAM+'s first pass)",
    "ram": "merge and count, and count what rounding erases (RAM)",
    "ram+": "merge with lambdas, and count what rounding erases (RAM+'s second pass)",
}


def measure(options: Options) -> dict[str, Any]:
    """Copy and kernel in turns, layout by layout."""
    tell("kernels: making arrays")
    arrays = _inputs(1 + max(_AGENTS))
    pairs = options.runs * _PAIRS_PER_RUN
    layouts = {layout: _layout(arrays, layout, gap, pairs) for layout, gap in _GAPS.items()}
    return {"array_bytes": arrays[0].nbytes, "pairs": pairs, "gaps": _GAPS, "layouts": layouts}


def _layout(arrays: list[Words], layout: str, gap: int, pairs: int) -> dict[str, dict[str, Any]]:
    """All kernels on arrays at one distance from each other: inputs, and after the last of them the output."""
    runs: dict[str, dict[str, Any]] = {name: {} for name in _TITLES}
    for n in _AGENTS:
        *inputs, out = _laid_out(arrays[: 1 + n], gap)
        for name, kernel in _kernels(inputs, out).items():
            runs[name][str(n)] = _in_turns(partial(np.copyto, out, inputs[0]), kernel, pairs)
            tell(f"kernels: {layout}, {name}, {n} agents: {_ratio(runs[name][str(n)], name, n).text()} of a copy")
    return runs


def _laid_out(arrays: list[Words], gap: int) -> list[Words]:
    """Copies of arrays in one region, and an array of zeros behind them."""
    stride = arrays[0].nbytes + gap
    region = np.zeros((len(arrays) + 1) * stride + 64, np.uint8)
    first = -region.ctypes.data % 64
    rows = [region[first + place * stride :][: arrays[0].nbytes].view(np.uint32) for place in range(len(arrays) + 1)]
    for row, array in zip(rows, arrays, strict=False):
        np.copyto(row, array)
    rows[-1][:] = 0
    return rows


def _inputs(rows: int) -> list[Words]:
    """A base and agents, filled in pieces, so that making them takes little memory."""
    densities = list(checkpoints.DENSITIES.values())
    generator = np.random.Generator(np.random.SFC64(0))
    arrays = [np.empty(_ELEMENTS, np.uint16) for _ in range(rows)]
    for start in range(0, _ELEMENTS, _CHUNK):
        piece = slice(start, start + _CHUNK)
        arrays[0][piece] = base = checkpoints.base_words(generator, _CHUNK)
        for place, array in enumerate(arrays[1:]):
            array[piece] = checkpoints.moved_words(generator, base, densities[place % len(densities)])
    return [array.view(np.uint32) for array in arrays]


def _kernels(inputs: list[Words], out: Words) -> dict[str, Callable[[], object]]:
    n, loop = len(inputs) - 1, uniform("BF16", len(inputs))
    counts = np.zeros((2, n), np.int64)
    lambdas = [_LAMBDAS[place % len(_LAMBDAS)] for place in range(n)]
    rounding = np.zeros((2, n), np.int64)
    return {
        "count": partial(ram.count, loop, inputs, (_EPSILON,), counts),
        "ram": partial(ram.merge, loop, inputs, (_EPSILON,), None, out, counts, rounding=rounding),
        "ram+": partial(ram.merge, loop, inputs, (_EPSILON,), lambdas, out, rounding=rounding),
    }


def _in_turns(copy: Callable[[], object], kernel: Callable[[], object], pairs: int) -> dict[str, list[float]]:
    kernel()  # compiles it, or loads it from the cache
    runs: dict[str, list[float]] = {"copy": [], "kernel": []}
    for _ in range(pairs):
        runs["copy"].append(round(seconds(copy), 6))
        runs["kernel"].append(round(seconds(kernel), 6))
    return runs


def _traffic(name: str, n: int) -> int:
    """Arrays that a kernel reads and writes."""
    return 1 + n if name == "count" else 2 + n


def _ratio(runs: Mapping[str, list[float]], name: str, n: int) -> Spread:
    """The kernel's bytes a second over those of the copy before it."""
    traffic = _traffic(name, n)
    return ratios([traffic / duration for duration in runs["kernel"]], [2 / duration for duration in runs["copy"]])


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table of speeds with their bars."""
    data = by_size[""].data
    size = data["array_bytes"]
    gaps = ", ".join(f"{gap:,} ({layout})" for layout, gap in data["gaps"].items())
    rows, goals = [], []
    for layout, by_name in data["layouts"].items():
        for name, by_agents in by_name.items():
            for agents, runs in by_agents.items():
                n = int(agents)
                ratio = _ratio(runs, name, n)
                copy_speed = spread([2 * size / duration / 1e9 for duration in runs["copy"]])
                kernel_speed = spread([_traffic(name, n) * size / duration / 1e9 for duration in runs["kernel"]])
                rows.append((_TITLES[name], agents, layout, kernel_speed.text(1), copy_speed.text(1), ratio.text()))
                text = f"{_TITLES[name]}, {n} agents, over a copy"
                if layout == _GOAL_LAYOUT:
                    goals.append(Bar(f"kernels.{name}.{n}", text, ratio, _BARS[n], at_least=True))
    text = (
        f"`count` and `merge` of `kernels/ram.py` on one thread, bfloat16, arrays of {size / 1e6:,.0f} MB, compared "
        f"with `np.copyto` of one array in the same layout; all bytes read and written count. {data['pairs']} pairs "
        f"each. Layouts differ in the bytes between two arrays, whose size is a power of two: {gaps}. `ramerge merge` "
        "itself works on blocks of at most a megabyte for each input, which the caches hold. The bars are for the "
        f"layout `{_GOAL_LAYOUT}`; in the other, most kernels miss them."
    )
    head = ("kernel", "agents", "layout", "kernel, GB/s", "copy, GB/s", "ratio")
    return "\n\n".join([text, table(head, rows), bars(goals)])


SECTION = Section("kernels", "Kernels", has_sizes=False, measure=measure, render=render)
