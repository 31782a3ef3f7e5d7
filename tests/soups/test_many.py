"""More agents than a kernel takes: the bytes of the same sum, whatever groups, blocks and threads."""

from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.kernels.element_formats import uniform
from ramerge.core.kernels.elementwise import Inputs
from ramerge.core.kernels.sums import products, sums
from ramerge.core.methods.base import FEW
from ramerge.core.methods.registry import METHODS
from ramerge.core.methods.trim import every
from tests.checkpoints import floats, read_checkpoint, write_checkpoint
from tests.conformance.methods import ROWS
from tests.conformance.test_merge import close, run, same

SHAPES = {"model.embed_tokens.weight": (40, 9), "model.layers.0.w": (30, 8), "model.norm.weight": (33,)}


def write_many(folder: Path, count: int, dtypes: tuple[str, ...]) -> tuple[dict, dict]:
    """A base and so many agents that share a direction."""
    rng = np.random.default_rng(11)
    base = {name: rng.normal(0, 0.05, shape) for name, shape in SHAPES.items()}
    lines = {name: rng.normal(0, 0.01, shape) for name, shape in SHAPES.items()}
    write_checkpoint(folder / "base", {name: floats(values, dtypes[0]) for name, values in base.items()})
    for place in range(count):
        moved = {
            name: values + lines[name] * (1 + place / 10) + rng.normal(0, 0.003, values.shape)
            for name, values in base.items()
        }
        dtype = dtypes[place % len(dtypes)]
        write_checkpoint(folder / f"s{place}", {name: floats(values, dtype) for name, values in moved.items()})
    agents = {f"s{place}": str(folder / f"s{place}") for place in range(count)}
    return agents, {name: read_checkpoint(Path(place)) for name, place in agents.items()}


@pytest.mark.parametrize(
    "dtypes", [pytest.param(("F32",), marks=pytest.mark.thorough), ("BF16",), ("BF16", "F32", "F16")]
)
@pytest.mark.parametrize("method", ["linear", "task_arithmetic", "relex", "model_stock", "karcher", "multislerp"])
def test_many_agents_are_merged_as_the_reference_does(method: str, dtypes: tuple[str, ...], tmp_path: Path) -> None:
    agents, models = write_many(tmp_path, 2 * FEW + 5, dtypes)
    more = {"weights": {name: 0.01 * (place + 1) for place, name in enumerate(agents)}}
    parameters = more if method in ("linear", "task_arithmetic") else {}
    source = {"method": method, "base": str(tmp_path / "base"), "agents": agents, "parameters": parameters}
    record = run(tmp_path, source, "out", block=100, workers=3)
    wanted = ROWS[method].reference(read_checkpoint(tmp_path / "base"), models, **parameters)
    (same if ROWS[method].exact else close)(read_checkpoint(tmp_path / "out"), wanted)
    assert len(record.agents) == len(agents)
    run(tmp_path, source, "other", block=1000, workers=1)
    same(read_checkpoint(tmp_path / "other"), read_checkpoint(tmp_path / "out"))


@pytest.mark.parametrize("method", ["linear", "task_arithmetic"])
def test_sum_ignores_agents_per_kernel(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents, _ = write_many(tmp_path, FEW, ("BF16",))
    source = {"method": method, "base": str(tmp_path / "base"), "agents": agents}
    ramerge.merge(source, tmp_path / "together")
    monkeypatch.setattr(f"ramerge.core.methods.{method}.FEW", 3)
    monkeypatch.setattr("ramerge.core.methods.formula.FEW", 3)
    ramerge.merge(source, tmp_path / "grouped")
    same(read_checkpoint(tmp_path / "grouped"), read_checkpoint(tmp_path / "together"))


def test_products_do_not_depend_on_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    words = [rng.normal(0, 1, 5000).astype(np.float32).view(np.uint32) for _ in range(9)]
    taken = (every, uniform("F32", 9), words, Inputs(8), products(8), 1000, 5000)
    together, _ = sums(*taken)
    monkeypatch.setattr("ramerge.core.kernels.sums._FEW", 3)
    tiled, flagged = sums(*taken)
    assert tiled.tobytes() == together.tobytes()
    assert not flagged


def test_limits() -> None:
    many = {name for name, method in METHODS.items() if method.limit > FEW}
    sums_of_agents = {"uniform", "ema", "scored", "extrapolate", "linear", "task_arithmetic"}
    assert many == sums_of_agents | {"relex", "model_stock", "karcher", "multislerp"}
