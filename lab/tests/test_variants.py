"""Variants of core: what is merged, and that every prediction is on its page."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab import situations, variants
from lab.model import read_model
from lab.situations import Agent, Situation
from lab.training import Schooling
from lab.variants import PREDICTIONS, VARIANTS, Variant

pytestmark = pytest.mark.full  # torch

FEW = (Situation("two kinds", (Agent("rl", 0), Agent("sft", 1)), "float32"),)
EXPERIMENT = Path(__file__).parents[2] / "lab/experiments/037-variants-of-core.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Agents of one seed."""
    for module in (situations, variants):
        monkeypatch.setattr(module, "SITUATIONS", FEW)
    monkeypatch.setattr(situations, "SCHOOLING", Schooling(steps=2, batch=2))
    short = {name: replace(how, steps=2) for name, how in situations.KINDS.items()}
    monkeypatch.setattr(situations, "KINDS", short)
    situations.scores_of(tmp_path, 5)
    return tmp_path / "seed-5"


def test_every_variant_is_scored_once(folder: Path) -> None:
    found = variants.scores_of(folder.parent, 5)
    assert found == {"two kinds": {variant.name: pytest.approx(50, abs=50) for variant in VARIANTS}}
    assert variants.scores_of(folder.parent, 5) == found


def test_tensors_that_match_come_from_the_sum(folder: Path) -> None:
    core, added, both = (
        variants._merged(folder, FEW[0], variant)
        for variant in (Variant("core"), Variant("sum", "task_arithmetic"), Variant("both", summed=("*norm*",)))
    )
    for name in core:
        assert torch.equal(both[name], added[name] if "norm" in name else core[name]), name


def test_small_moves_are_undone(folder: Path) -> None:
    path = variants._trimmed(folder, folder / "agents" / "sft-reverse-0", 1.0)
    base, agent, trimmed = (read_model(one) for one in (folder / "base", folder / "agents" / "sft-reverse-0", path))
    fewer = 0
    for name, weight in trimmed.items():
        moved = weight != base[name]
        tau = (agent[name] - base[name]).abs()
        assert torch.equal(weight[moved], agent[name][moved])
        assert (tau[~moved] <= tau.square().mean().sqrt()).all()
        fewer += int((agent[name] != base[name]).sum() - moved.sum())
    assert fewer > 0


def test_every_prediction_is_in_the_decision() -> None:
    text = EXPERIMENT.read_text(encoding="utf-8")
    for one in PREDICTIONS:
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {one.number} | ") and "minus" in line)
        low, high = (f"{value:+g}" if value else "0" for value in (one.expected.low, one.expected.high))
        assert line.endswith(f"| {low} to {high} |"), line
    names = {variant.name for variant in VARIANTS}
    assert {one.variant for one in PREDICTIONS} == names
