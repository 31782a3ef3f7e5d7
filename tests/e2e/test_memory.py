"""The plan's peak memory is an upper bound, and the same for models of every size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ramerge
from tests.checkpoints import floats, write_checkpoint
from tests.tiers import some

pytestmark = pytest.mark.full  # checkpoints of 100 MB

SIZES = (4_000_000, 24_000_000)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    import numpy as np

    made = {}
    for size in SIZES:
        folder = tmp_path_factory.mktemp(f"size-{size}")
        values = np.random.default_rng(0).normal(0, 0.02, (4, size // 4))
        for name, factor in (("base", 1.0), ("a", 1.01), ("b", 0.99)):
            write_checkpoint(folder / name, {f"w{i}": floats(row * factor) for i, row in enumerate(values)})
        made[size] = ["--base", str(folder / "base"), "--agent", f"a={folder / 'a'}", "--agent", f"b={folder / 'b'}"]
    return made


def run(command: str, *arguments: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "ramerge.cli.main", command, *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("budget", some([None, "251MB"], full=["251MB"]))
def test_peak_stays_below_plan_and_budget(budget: str | None, inputs, tmp_path: Path) -> None:
    limit = ["--max-memory", budget] if budget else []
    run("merge", *inputs[SIZES[0]], str(tmp_path / "warm"))  # compiling takes memory that a compiled kernel does not
    peaks = []
    for size in SIZES:
        planned = run("plan", *inputs[size], *limit)["peak_memory_bytes"]
        peak = run("merge", *inputs[size], str(tmp_path / f"out-{size}"), *limit)["peak_memory_bytes"]
        assert peak <= planned
        assert budget is None or peak <= 192_000_000
        peaks.append(peak)
    assert abs(peaks[1] - peaks[0]) < 40_000_000


def test_one_worker_keeps_a_tight_budget(inputs, tmp_path: Path) -> None:
    flags = inputs[SIZES[0]]
    base, *agents = (part.rpartition("=")[2] for part in flags[1::2])
    source = {"base": base, "agents": dict(zip("ab", agents, strict=True))}
    least = ramerge.plan(
        source, options=ramerge.Options(threads=64, max_memory="1MB")
    ).details.resources.peak_memory_bytes
    limit = ["--threads", "64", "--max-memory", str(least)]
    assert run("plan", *flags, *limit)["workers"] == 1
    run("merge", *flags, str(tmp_path / "warm"))
    assert run("merge", *flags, str(tmp_path / "out"), *limit)["peak_memory_bytes"] <= least
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "warm")]
    assert files[0] == files[1]


@pytest.mark.parametrize("method", some(["breadcrumbs", "ties"], full=["ties"]))
def test_counts_of_small_blocks_stay_within_the_budget(method: str, tmp_path: Path) -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    for name in ("base", "a", "b", "c"):
        tensors = {f"w{i:03}": floats(draw.normal(0, 0.02, 5000), "F32") for i in range(400)}
        write_checkpoint(tmp_path / name, tensors)
    flags = ["--base", str(tmp_path / "base"), *(f"--agent={name}={tmp_path / name}" for name in "abc")]
    flags += ["--method", method, *(["--set", "parameters.trim=tensor"] if method == "ties" else [])]
    run("merge", *flags, str(tmp_path / "warm"))
    planned = run("plan", *flags)["peak_memory_bytes"]
    peak = run("merge", *flags, "--no-cache", str(tmp_path / "out"))["peak_memory_bytes"]
    assert peak <= planned


@pytest.mark.parametrize("asked", some(["--rank 8", "--energy 0.9"], full=["--energy 0.9"]))
def test_decompositions_stay_within_the_plan(asked: str, tmp_path: Path) -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    base = {f"layers.{i}.w.weight": draw.normal(0, 0.02, (900, 1500)) for i in range(2)}
    for name in ("base", "a"):
        moved = {
            key: floats(values + (name == "a") * draw.normal(0, 1e-3, values.shape)) for key, values in base.items()
        }
        write_checkpoint(tmp_path / name, moved)
    flags = ["--base", str(tmp_path / "base"), "--agent", f"a={tmp_path / 'a'}", "--method", "task_arithmetic"]
    flags += ["--as-adapter", *asked.split()]
    run("merge", *flags, str(tmp_path / "warm"))
    planned = run("plan", *flags)["peak_memory_bytes"]
    found = run("merge", *flags, str(tmp_path / "out"))
    assert found["peak_memory_bytes"] <= planned
    assert set(found["adapter"]) == {"layers.0.w", "layers.1.w"}
