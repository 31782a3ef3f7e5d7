"""Figures by layer and role, against the same counted in NumPy, and what is told of them before the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.analysis import cells
from ramerge.analysis.cells import CellFigures, HeatCell
from ramerge.core.foundation.progress import Progress
from ramerge.demo.run import AGENTS
from tests.checkpoints import floats, write_checkpoint

NAMES = (
    "embed_tokens.weight",
    "vision.blocks.0.attn.q_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.self_attn.q_proj.bias",
)
AGENT_NAMES = ("code", "tool")


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    random = np.random.default_rng(0)
    base = {name: random.standard_normal((40, 50)).astype(np.float32) for name in NAMES}
    values: dict[str, dict[str, Any]] = {"base": base}
    for agent in AGENT_NAMES:
        moved = {name: (random.random((40, 50)) < 0.3) * random.standard_normal((40, 50)) for name in NAMES}
        values[agent] = {name: (base[name] + moved[name]).astype(np.float32) for name in NAMES}
    for label, tensors in values.items():
        write_checkpoint(tmp_path / label, {name: floats(value, "F32") for name, value in tensors.items()})
    return tmp_path, values


def analyzed(folder: Path, **more: Any) -> ramerge.Analysis:
    source = {"base": str(folder / "base"), "agents": {name: str(folder / name) for name in AGENT_NAMES}, **more}
    return ramerge.analyze(source, options=ramerge.Options(cache=False))


def test_cells_are_those_of_numpy(models: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, values = models
    found = {(cell.layer, cell.role): cell for cell in analyzed(folder, method="ram").cells}
    assert list(found) == [
        ("model.layers 0", "attention q"),
        ("model.layers 1", "attention q"),
        ("vision.blocks 0", "attention q"),
        ("outside", "embedding"),
    ]
    cell = found["model.layers 1", "attention q"]
    assert (cell.tensors, cell.elements) == (2, 4000)
    of_cell = NAMES[3:]
    taus = [np.stack([values[name][part] - values["base"][part] for part in of_cell]) for name in AGENT_NAMES]
    moved = [np.abs(tau) > 1e-5 for tau in taus]
    both = moved[0] & moved[1]
    for t in range(2):
        assert cell.active[t] == moved[t].sum()
        assert cell.unique[t] == (moved[t] & ~moved[1 - t]).sum()
        assert cell.sign_agreement[t] == (both & (np.sign(taus[0]) == np.sign(taus[1]))).sum() / both.sum()
    # float32 stored as float32 loses nothing, so nothing is counted
    assert cell.precision_loss == cell.effective_lambda == (None,) * 2


@pytest.mark.full
def test_rounding_loss_of_one_cell_equals_the_models(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    base = random.standard_normal((64, 64)).astype(np.float32)
    for label, size in (("base", 0.0), ("code", 1e-3), ("tool", 1e-3)):
        moved = size * (random.random(base.shape) < 0.4) * random.standard_normal(base.shape)
        write_checkpoint(tmp_path / label, {NAMES[2]: floats(base + moved, "F32")})
    source = {
        "base": str(tmp_path / "base"),
        "agents": {name: str(tmp_path / name) for name in ("code", "tool")},
        "method": "ram+",
        "dtype": "bfloat16",
    }
    analysis = ramerge.analyze(source, options=ramerge.Options(cache=False))
    [cell] = analysis.cells
    assert cell.precision_loss == tuple(one["erased_share"] for one in analysis.rounding.values())
    assert cell.effective_lambda == tuple(one["effective_lambda"] for one in analysis.rounding.values())
    assert all(share > 0.1 for share in cell.precision_loss if share is not None)


def test_figures_are_told_while_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_SECONDS_BETWEEN", -1.0)
    heard: list[Progress] = []
    source = {
        "base": str(AGENTS / "base"),
        "agents": {name: str(AGENTS / name) for name in ("coder", "memory", "tool")},
    }
    analysis = ramerge.analyze(source, options=ramerge.Options(cache=False), on_progress=heard.append)
    told = [event for event in heard if isinstance(event, CellFigures)]
    assert len(told) > 10
    assert [event.done for event in told] == sorted(event.done for event in told)
    assert all(event.part["elements"] == event.done <= event.total for event in told)
    # the last one was told after the last block
    last = told[-1]
    assert last.done == last.total
    assert [agent["active"] for agent in last.part["agents"]] == [agent.active for agent in analysis.model.agents]
    assert tuple(HeatCell(**cell) for cell in last.cells) == analysis.cells
