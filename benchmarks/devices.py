"""Whole matrices on the CPU and on a GPU: `python -m benchmarks.devices [DEVICE] [SECONDS]`.

It prints lines, then JSON. For the shapes of Qwen2.5-0.5B and 7B and of a 70B model: three task vectors of random
numbers in bfloat16, with some strong directions. Each shape is solved for once by each method on the device (`cuda` by
default; `cpu` measures the CPU alone), and on the CPU while SECONDS (300) last, smallest first: one matrix a processor,
each with one thread of BLAS, as in a merge. Results are compared. The sum over a model's matrices is what solving
takes, without reading and writing; on a device it includes the way there and back. On one GPU all of it takes about ten
minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from benchmarks import machine
from ramerge.core.kernels.convert import convert
from ramerge.core.linalg.solver import CPU, Solver, is_slow_in_float64, is_sound
from ramerge.core.methods.base import NO_RESULTS
from ramerge.core.methods.core import solve as solve_core
from ramerge.core.methods.matrices import scale_solution
from ramerge.core.methods.registry import METHODS

SPECTRAL = ("swudi", "tsvm", "psa", "core+", "iso_c", "aswudi", "resmerge", "wudi", "iso_cts", "knots")
# hidden size, size of keys and values, inner size, layers
MODELS = {"0.5B": (896, 128, 4864, 24), "7B": (3584, 512, 18944, 28), "70B": (8192, 1024, 28672, 80)}
TENSOR = "model.layers.0.self_attn.q_proj.weight"  # of attention: ResMerge looks at the name
_AGENTS = 3
Matrix = NDArray[np.float32]


def shapes_of(model: str) -> dict[tuple[int, int], int]:
    """How many matrices of each shape a model has."""
    hidden_size, keys, inner, layers = MODELS[model]
    each = {(keys, hidden_size): 2, (hidden_size, hidden_size): 2, (inner, hidden_size): 2, (hidden_size, inner): 1}
    return {shape: layers * times for shape, times in each.items()}


def task_vectors(shape: tuple[int, int], *seed: int) -> list[Matrix]:
    """Random numbers with 16 strong directions, rounded to bfloat16."""
    rng = np.random.default_rng([*shape, *seed])
    vectors = []
    for _ in range(_AGENTS):
        tau = rng.standard_normal(shape, dtype=np.float32)
        left, right = (rng.standard_normal((side, 16), dtype=np.float32) for side in shape)
        tau += (left * (3 * 0.8 ** np.arange(16, dtype=np.float32))) @ right.T / 24
        words = np.empty(tau.size, np.uint16)
        convert("F32", (1e-4 * tau).reshape(-1).view(np.uint32), "BF16", words, tau.size)
        vectors.append((words.astype(np.uint32) << 16).view(np.float32).reshape(shape))
    return vectors


def solver(method: str, agents: int = _AGENTS) -> Callable[[list[Matrix], Solver], Matrix]:
    """A function that merges task vectors at a place."""
    parameters = METHODS[method].parameters()
    if method == "core+":
        return lambda taus, place: scale_solution(
            taus, (1.0,) * len(taus), 1.0, lambda ones: solve_core(TENSOR, ones, parameters, parameters.time), place
        )
    rule = METHODS[method].prepare(parameters, tuple(f"a{number}" for number in range(agents)), NO_RESULTS)
    return lambda taus, place: rule.solve(TENSOR, taus, place)


def on_cpu(solve: Callable[[list[Matrix], Solver], Matrix], taus: list[Matrix]) -> tuple[float, float, Matrix]:
    """Seconds for a matrix while every processor solves for one, its processor seconds, and the result."""
    cores = len(os.sched_getaffinity(0))
    copies = [[tau.copy() for tau in taus] for _ in range(cores)]
    with threadpoolctl.threadpool_limits(1, "blas"), ThreadPoolExecutor(cores) as pool:
        start, processor_start = time.perf_counter(), time.process_time()
        results = list(pool.map(lambda each: solve(each, CPU), copies))
        return (time.perf_counter() - start) / cores, (time.process_time() - processor_start) / cores, results[0]


def on_device(
    solve: Callable[[list[Matrix], Solver], Matrix], taus: list[Matrix], place: Solver
) -> tuple[float, Matrix]:
    """Seconds for a matrix, the second one: the first loads libraries; and the result."""
    for _ in range(2):
        copies = [tau.copy() for tau in taus]
        start = time.perf_counter()
        result = solve(copies, place)
        duration = time.perf_counter() - start
    return duration, result


def _tell(row: dict[str, Any]) -> None:
    print(" ".join(f"{key}={value:.3g}" if isinstance(value, float) else f"{value}" for key, value in row.items()))
    sys.stdout.flush()


def _main(device: str, most: float) -> None:
    warnings: list[str] = []
    place = Solver(device, warnings.append)
    if device != "cpu" and not is_sound(device):
        raise SystemExit(f"{device} does not compute as NumPy does")
    rows = _matrices(place, most, warnings)
    report = {"machine": machine.describe(), "device": device, "refines": is_slow_in_float64(device)}
    print(json.dumps(report | {"rows": rows, "warnings": warnings}))


def _matrices(place: Solver, most: float, warnings: list[str]) -> list[dict[str, Any]]:
    device, rows = place.device, list[dict[str, Any]]()
    total = 0.0
    least: dict[str, tuple[float, float]] = {}  # the last measured matrix of each method: its cube, and its seconds
    for model in MODELS:
        for shape, times in shapes_of(model).items():
            taus: list[Matrix] = []
            for method in SPECTRAL:
                row: dict[str, Any] = {"model": model, "shape": shape, "times": times, "method": method}
                cube, (before, duration) = float(min(shape) * math.prod(shape)), least.get(method, (1.0, 0.0))
                runs_here = total + duration * cube / before < most
                runs_there = device != "cpu" and not warnings
                if not taus and (runs_here or runs_there):
                    taus = task_vectors(shape)
                if runs_here:
                    row["cpu"], row["processor"], here = on_cpu(solver(method), taus)
                    least[method] = cube, row["cpu"] * len(os.sched_getaffinity(0))
                    total += least[method][1]
                if runs_there:
                    row["device"], there = on_device(solver(method), taus, place)
                if runs_here and runs_there:
                    row["difference"] = float(np.linalg.norm(there - here) / np.linalg.norm(here))
                rows.append(row)
                _tell(row)
    for model in MODELS:
        for method in SPECTRAL:
            ones = [row for row in rows if row["model"] == model and row["method"] == method]
            sums = {
                where: sum(row["times"] * row[where] for row in ones)
                for where in ("cpu", "processor", "device")
                if all(where in row for row in ones)
            }
            if sums:
                print(
                    f"{model} {method}: " + ", ".join(f"{where} {duration:.0f} s" for where, duration in sums.items())
                )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("seconds", nargs="?", type=float, default=300.0)
    flags = parser.parse_args()
    _main(flags.device, flags.seconds)
