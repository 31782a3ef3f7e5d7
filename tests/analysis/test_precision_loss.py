"""What `analyze` says of float32 agents: what bfloat16 would lose of them."""

from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ramerge
from tests.checkpoints import floats, recipe, simple, write_checkpoint
from tests.tiers import some


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "of_base"), some(product(["F32", "F64"], ["BF16", "F32"]), full=[("F32", "BF16")]))
def test_what_bfloat16_would_lose(dtype: str, of_base: str, tmp_path: Path) -> None:
    base = simple(0, of_base)
    rng = np.random.default_rng(5)
    numbers = {name: tensor.numbers(np.float64) for name, tensor in base.items()}
    agent = {
        name: floats(values + rng.choice([0, 1e-6, 3e-5, -2e-4], values.shape), dtype)
        for name, values in numbers.items()
    }
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "wide", agent)
    write_checkpoint(tmp_path / "narrow", simple(2, moved=0.3))
    found = ramerge.analyze(recipe(tmp_path, ["wide", "narrow"]))
    b = np.concatenate([values.reshape(-1) for values in numbers.values()])
    a = np.concatenate([tensor.numbers(np.float64).reshape(-1) for tensor in agent.values()])
    gone = a.astype(np.float32).astype(ml_dtypes.bfloat16) == b.astype(ml_dtypes.bfloat16)
    tau = a.astype(np.float32) - b.astype(np.float32) if dtype == "F32" else a - b
    moved, changed = np.abs(tau) > 1e-5, tau != 0
    ((name, figures),) = found.precision_loss.items()
    assert name == "wide"
    assert (figures["moved"], figures["moved_lost"]) == (moved.sum(), (moved & gone).sum())
    assert (figures["changed"], figures["changed_lost"]) == (changed.sum(), (changed & gone).sum())
    wide = tau.astype(np.float64)
    assert figures["norm_lost_share"] == pytest.approx(np.linalg.norm(wide[gone]) / np.linalg.norm(wide), rel=1e-6)
    assert "Converting wide to bfloat16" in found.findings[-1].text


@pytest.mark.full
def test_nothing_is_said_of_agents_in_bfloat16(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "a", simple(1, moved=0.3))
    found = ramerge.analyze(recipe(tmp_path, ["a"]))
    assert found.precision_loss == {} and len(found.findings) == 2
