"""WUDI on one linear weight: `python -m benchmarks.wudi_layer OUT IN`; prints JSON.

The task vectors are those of the generated checkpoints: three agents that each moved a part of the elements.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.checkpoints import DENSITIES, base_words, from_bf16, moved_words
from ramerge.core.linalg import wudi


def _main(out: int, width: int) -> None:
    taus = task_vectors(out, width)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted again from here
    before, start = _memory("VmRSS"), time.perf_counter()
    result = wudi.closed_form(taus)
    duration, peak = time.perf_counter() - start, _memory("VmHWM")
    figures = {
        "seconds": duration,
        "bytes": peak - before,
        "objective": objective(result, taus),
        "objective_of_sum": objective(np.sum(taus, axis=0), taus),
    }
    print(json.dumps(figures))


def objective(tau: NDArray[Any], taus: Sequence[NDArray[Any]]) -> float:
    """The authors' loss, in float64; no task vector is 0."""
    wide = [np.asarray(each, np.float64) for each in taus]
    return sum(float(np.square((tau - each) @ each.T).sum() / np.square(each).sum()) for each in wide)


def task_vectors(out: int, width: int) -> list[NDArray[np.float32]]:
    """Those of the three agents of the generated checkpoints, of shape (out, width)."""
    generator = np.random.Generator(np.random.SFC64([out, width]))
    base = base_words(generator, out * width)
    agents = [moved_words(generator, base, density) for density in DENSITIES.values()]
    return [(from_bf16(words) - from_bf16(base)).reshape(out, width) for words in agents]


def _memory(kind: str) -> int:
    """Bytes that the process has or had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
