"""Warnings: what can be merged and probably is not what is wanted; with `strict` an error."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.errors import InputError
from tests.checkpoints import floats, recipe, simple, write_checkpoint, write_simple
from tests.test_cli import ramerge as command

LAX = {"allow": {"missing_tensors": True, "extra_tensors": True}}


@pytest.fixture
def little(tmp_path: Path) -> dict[str, object]:
    """A recipe of an agent of which hardly anything is used."""
    write_simple(tmp_path, {"code": 0.1, "tool": 0.1})
    tensors = simple(1, moved=0.1)
    name = next(iter(tensors))
    write_checkpoint(tmp_path / "tool", {name: tensors[name], "other.weight": floats(np.ones(100_000))})
    return recipe(tmp_path, ["code", "tool"], **LAX)


def test_an_agent_that_adds_next_to_nothing_is_warned_of(little: dict, tmp_path: Path) -> None:
    record = ramerge.merge(little, tmp_path / "out")
    assert len(record.warnings) == 1 and "only 640 of its 100,640 elements are used" in record.warnings[0]
    assert "agents.tool" in record.warnings[0]
    assert json.loads((tmp_path / "out/ramerge.json").read_text())["warnings"] == list(record.warnings)
    assert record.warnings[0] in (tmp_path / "out/README.md").read_text()
    assert ramerge.plan(little).warnings == record.warnings
    assert ramerge.analyze(little).warnings == record.warnings


@pytest.mark.parametrize(
    "run",
    [
        lambda one, out: ramerge.merge(one, out, strict=True),
        lambda one, out: ramerge.sweep(one, out, vary={"parameters.r": [0, 0.1]}, strict=True),
        lambda one, _: ramerge.analyze(one, strict=True),
    ],
)
def test_strict_makes_an_error_of_it(run: Callable[[dict, Path], object], little: dict, tmp_path: Path) -> None:
    (warning,) = ramerge.plan(little).warnings
    with pytest.raises(InputError) as caught:
        run(little, tmp_path / "out")
    assert caught.value.problems == (warning,)
    assert not (tmp_path / "out").exists()
    made = ramerge.plan(little, strict=True)
    assert made.problems == (warning,) and not made.warnings


def test_no_flag_hides_warnings(little: dict, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(little))
    (warning,) = ramerge.plan(path).warnings
    for words in (("plan", path, "--json"), ("merge", path, tmp_path / "out", "--quiet")):
        done = command(*words)
        assert (done.returncode, done.stderr) == (0, f"warning: {warning}\n")
    done = command("merge", path, tmp_path / "other", "--quiet", "--strict")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {warning}\n")


def test_an_agent_that_adds_nothing_is_refused(tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1})
    write_checkpoint(tmp_path / "tool", {"other.weight": floats(np.ones(10))})
    with pytest.raises(ramerge.PlanError, match=r"agents\.tool.*none of its tensors is used"):
        ramerge.merge(recipe(tmp_path, ["code", "tool"], **LAX), tmp_path / "out")
