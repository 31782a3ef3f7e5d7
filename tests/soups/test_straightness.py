"""How straight a run is: known runs, in the terminal, as JSON and as a page."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import floats, write_checkpoint
from tests.commands import ramerge as command
from tests.messages import Messages

SHAPES = {"model.embed_tokens.weight": (50, 20), "model.layers.0.w": (40, 20), "model.layers.1.w": (40, 20)}


def write_line(folder: Path, turn: bool) -> None:
    """A run whose second layer turns off after half of its steps."""
    rng = np.random.default_rng(6)
    base = {name: rng.normal(0, 0.05, shape) for name, shape in SHAPES.items()}
    along, aside = ({name: rng.normal(0, 1e-3, shape) for name, shape in SHAPES.items()} for _ in range(2))
    write_checkpoint(folder / "base", {name: floats(values, "F32") for name, values in base.items()})
    for step in range(1, 9):
        moved = {name: values + along[name] * step for name, values in base.items()}
        if turn and step > 4:
            name = "model.layers.1.w"
            moved[name] = base[name] + 4 * along[name] + 6 * (step - 4) * aside[name]
        tensors = {name: floats(values, "F32") for name, values in moved.items()}
        write_checkpoint(folder / "run" / f"step_{10 * step}", tensors)


@pytest.mark.parametrize("turn", [False, True])
def test_a_straight_run_and_one_that_turns(turn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_line(tmp_path, turn)
    monkeypatch.chdir(tmp_path)
    done = command("soup", "run", "--base", "base", "--analyze", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == [10, 20, 30, 40, 50, 60, 70, 80]
    assert found["layers"].keys() == {"model.embed_tokens.weight", "model.layers.0", "model.layers.1"}
    straight = found["layers"]["model.layers.0"]
    assert straight["share"] == pytest.approx(1, abs=1e-4)
    assert straight["fit"] == pytest.approx(1, abs=1e-4)
    assert straight["coordinates"] == pytest.approx([step / 8 for step in range(1, 9)], abs=1e-3)
    turned = found["layers"]["model.layers.1"]
    assert (turned["fit"] < 0.95) == turn
    text = command("soup", "run", "--base", "base", "--analyze").stdout
    assert ("the run is straight" in text) == (not turn)
    assert "whole model" in text
    text = command("soup", "run", "--base", "base", "--analyze", "--last", "2").stdout
    assert "can be told from 3 different checkpoints on" in text


@pytest.mark.parametrize("count", [3, 6, 12])
def test_a_random_walk_is_not_straight(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    base = {name: rng.normal(0, 0.05, shape) for name, shape in SHAPES.items()}
    write_checkpoint(tmp_path / "base", {name: floats(values, "F32") for name, values in base.items()})
    at = base
    for step in range(1, count + 1):
        at = {name: old + rng.normal(0, 1e-3, old.shape) * (rng.random(old.shape) < 0.1) for name, old in at.items()}
        write_checkpoint(tmp_path / "run" / f"step_{step}", {name: floats(new, "F32") for name, new in at.items()})
    monkeypatch.chdir(tmp_path)
    analyzed = command("soup", "run", "--base", "base", "--analyze").stdout
    assert "the run is not straight" in analyzed
    merged = command("soup", "run", "out", "--strategy", "relex", "--base", "base", "--set", "at=100")
    assert merged.returncode == 0, merged.stderr
    # both say the same of the same checkpoint, also where the whole run's share alone looks straight
    if count > 3:
        [shares] = [line for line in analyzed.splitlines() if "holds only" in line]
        assert f"{shares.partition(':')[0]}: the run does not follow one line" in merged.stderr
    found = json.loads(command("soup", "run", "--base", "base", "--analyze", "--json").stdout)
    record = json.loads((tmp_path / "out/ramerge.json").read_text())
    assert found["shares"] == pytest.approx([agent["straight"] for agent in record["agents"].values()])


def test_the_share_is_that_of_the_decomposition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    base = rng.normal(0, 0.05, (30, 20)).astype(np.float32)
    write_checkpoint(tmp_path / "base", {"w": floats(base, "F32")})
    models = [(base + rng.normal(0, 0.01, base.shape)).astype(np.float32) for _ in range(5)]
    for step, model in enumerate(models, 1):
        write_checkpoint(tmp_path / "run" / f"step_{step}", {"w": floats(model, "F32")})
    monkeypatch.chdir(tmp_path)
    found = json.loads(command("soup", "run", "--base", "base", "--analyze", "--json").stdout)
    vectors = np.stack([(model.astype(np.float64) - base).reshape(-1) for model in models])
    values = np.linalg.svd(vectors, compute_uv=False)
    assert found["model"]["share"] == pytest.approx(values[0] ** 2 / (values**2).sum(), rel=1e-5)
    assert found["model"]["length"] == pytest.approx(np.linalg.norm(vectors[-1]), rel=1e-5)


@pytest.mark.full  # needs the libraries of the extra report
def test_a_page_with_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    write_line(tmp_path, turn=True)
    monkeypatch.chdir(tmp_path)
    done = command("soup", "run", "--base", "base", "--analyze", "--html", "run.html", "--quiet")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "run.html").read_text()
    assert "How straight the run is" in page
    assert "model.layers.1" in page
    done = command("soup", "run", "--analyze")
    messages.check(done.stderr)
