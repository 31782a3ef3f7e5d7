"""Methods that solve for whole matrices: processor seconds of a matrix by NumPy, and by torch on the CPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import threadpoolctl

from benchmarks.devices import solver
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import Spread, spread, tell
from benchmarks.wudi import shapes_of
from benchmarks.wudi_layer import task_vectors
from ramerge.core.linalg.solver import CPU, TORCH_CPU, Solver

METHODS = ("swudi", "core+", "tsvm", "psa", "iso_c")
_SLOWER = 1.2


def measure(options: Options) -> dict[str, Any]:
    """Each shape of matrix once on either, in turns, with one thread of BLAS."""
    import torch

    torch.set_num_threads(1)
    places = {"numpy": CPU, "torch": Solver(TORCH_CPU)}
    shapes = shapes_of(options.size)
    runs: dict[str, dict[str, dict[str, list[float]]]] = {}
    with threadpoolctl.threadpool_limits(1):
        for shape in shapes:
            taus = task_vectors(*map(int, shape.split(" x ")))
            for method in METHODS:
                solve = solver(method)
                seconds: dict[str, list[float]] = {name: [] for name in places}
                for turn in range(options.runs + 1):
                    for name, place in places.items():
                        # first a small one, for what is loaded and compiled
                        copies = [tau.copy() if turn else tau[:128, :896].copy() for tau in taus]
                        start = time.process_time()
                        solve(copies, place)
                        if turn:
                            seconds[name].append(time.process_time() - start)
                runs.setdefault(method, {})[shape] = seconds
                tell(f"matrices {options.size}: {method}, {shape}")
    return {"size": options.size, "shapes": shapes, "methods": runs}


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table of matrices, and the bar of torch."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    rows, goals, size = [], [], data["size"]
    for method, by_shape in data["methods"].items():
        sums: dict[str, list[float]] = {"numpy": [], "torch": []}
        for shape, seconds in by_shape.items():
            times = data["shapes"][shape]
            cells = [spread(seconds[name]).text() for name in sums]
            rows.append((f"`{method}`", shape, str(times), *cells, _ratio(seconds).text()))
            for name, one in sums.items():
                one.append(times * spread(seconds[name]).median)
        totals = [sum(one) for one in sums.values()]
        rows.append((f"`{method}`", "all", "", *(f"{one:.0f}" for one in totals), f"{totals[1] / totals[0]:.2f}"))
        ratio = spread([totals[1] / totals[0]])
        goals.append(Bar(f"matrices.{size}.{method}", f"{size}, `{method}`: torch over NumPy", ratio, _SLOWER))
    return [
        f"Matrices of Qwen2.5-{size}, three agents, one thread: seconds of the processor, which other processes "
        "disturb less than those of a clock. *All* is the sum over the model's matrices, without reading and writing.",
        table(("method", "matrix", "in the model", "NumPy, s", "torch, s", "torch over NumPy"), rows),
        bars(goals),
    ]


def _ratio(seconds: Mapping[str, list[float]]) -> Spread:
    return spread([torch / numpy for numpy, torch in zip(seconds["numpy"], seconds["torch"], strict=True)])


SECTION = Section("matrices", "Whole matrices", has_sizes=True, measure=measure, render=render)
