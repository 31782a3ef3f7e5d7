"""A spectral method on one matrix: `python -m benchmarks.spectral_layer TOOL METHOD OUT IN [FOLDER]`; prints JSON.

Seconds are those of a clock, and of the processor, which other processes disturb less.

TOOL is `ramerge`, or `fusion_bench` with the folder that its wheel is unpacked in. The task vectors are those of the
generated checkpoints. Both take one thread, as a worker of a merge does.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from benchmarks.devices import TENSOR, solver
from benchmarks.wudi_layer import task_vectors
from ramerge.core.linalg.solver import CPU


def _main(tool: str, method: str, shape: tuple[int, int], folder: str | None) -> None:
    taus = task_vectors(*shape)
    solve = _ours(method, len(taus)) if tool == "ramerge" else _theirs(method, str(folder))
    with threadpoolctl.threadpool_limits(1), contextlib.redirect_stdout(sys.stderr):
        solve([tau[:64, :64].copy() for tau in taus])  # what a first call loads
        start, processor_start = time.perf_counter(), time.process_time()
        result = solve(taus)
        duration, processor = time.perf_counter() - start, time.process_time() - processor_start
    print(
        json.dumps(
            {"seconds": duration, "processor": processor, "norm": float(np.linalg.norm(result.astype(np.float64)))}
        )
    )


def _ours(method: str, agents: int) -> Callable[[Sequence[NDArray[Any]]], NDArray[Any]]:
    solve = solver(method, agents)
    return lambda taus: solve([tau.copy() for tau in taus], CPU)


def _theirs(method: str, folder: str) -> Callable[[Sequence[NDArray[Any]]], NDArray[Any]]:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    utils = _modules(folder)
    solve = {
        "tsvm": lambda vectors: utils["tsvm"].compute_and_sum_svd_mem_reduction(vectors, accelerator="cpu"),
        "iso_c": lambda vectors: utils["iso"].iso_c(vectors, accelerator="cpu"),
        "iso_cts": lambda vectors: utils["iso"].iso_cts(vectors, common_space_fraction=0.8, accelerator="cpu"),
    }[method]
    return lambda taus: solve([{TENSOR: torch.tensor(tau)} for tau in taus])[TENSOR].numpy()


def _modules(folder: str) -> dict[str, Any]:
    """The files of fusion_bench with its arithmetic, without the packages around them, which import everything."""
    for name in ("fusion_bench", "fusion_bench.utils", "fusion_bench.utils.type"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["fusion_bench.utils"].__dict__["timeit_context"] = lambda _what: contextlib.nullcontext()
    sys.modules["fusion_bench.utils.type"].__dict__["StateDictType"] = dict
    modules = {}
    for key, path in (("tsvm", "task_singular_vector/utils/TSVM_utils"), ("iso", "isotropic_merging/iso_utils")):
        place = Path(folder, "fusion_bench", "method", f"{path}.py")
        spec = importlib.util.spec_from_file_location(f"peer_{key}", place)
        assert spec is not None and spec.loader is not None, str(place)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        modules[key] = module
    return modules


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], (int(sys.argv[3]), int(sys.argv[4])), sys.argv[5] if len(sys.argv) > 5 else None)
