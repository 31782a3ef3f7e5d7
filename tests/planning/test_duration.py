"""How long solving takes: what methods state, over what a machine does in a second."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.planning import duration
from tests.checkpoints import floats, recipe, write_checkpoint

NAME = "model.layers.{}.mlp.weight"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models of two matrices, 40 times 60 and 10 times 20, on a machine of two processors whose speed is known."""
    monkeypatch.setattr(duration, "_speed", lambda threads: duration._Speed(1e6 / threads, 1e5 / threads))
    monkeypatch.setattr(duration, "processors", lambda: 2)
    for name in ("base", "code", "tool"):
        shapes = [(40, 60), (10, 20)]
        tensors = {NAME.format(i): floats(np.zeros(shape), "F32") for i, shape in enumerate(shapes)}
        write_checkpoint(tmp_path / name, {**tensors, "model.norm.weight": floats(np.zeros(60), "F32")})
    return tmp_path


def seconds(folder: Path, method: str, **options: Any) -> float | None:
    plan = ramerge.plan(recipe(folder, ["code", "tool"], method), options=ramerge.Options(**options))
    return plan.details.resources.solving_seconds


def test_work_stated_becomes_seconds(folder: Path) -> None:
    # Iso-C: a Gram matrix and the product with it, and one decomposition of the smaller side
    plan = ramerge.plan(recipe(folder, ["code", "tool"], "iso_c"), options=ramerge.Options(threads=1))
    works = [
        plan.details.method.work(tensor.layer, plan.details.points[0].parameters[0], 2)
        for tensor in plan.details.tensors
        if tensor.merged
    ]
    assert sorted(work.decompositions for work in works) == [0, 10**3, 40**3]
    assert plan.details.resources.solving_seconds == pytest.approx(
        sum(work.products for work in works) / 1e6 + (40**3 + 10**3) / 1e5
    )


def test_no_thread_is_faster_than_its_largest_matrix(folder: Path) -> None:
    # two threads that share what one has do twice as much at a time, each at half the speed: the larger matrix decides
    one, two = seconds(folder, "iso_c", threads=1), seconds(folder, "iso_c", threads=2)
    assert one is not None and two is not None
    assert one < two < 2 * one


@pytest.mark.parametrize("method", ["ram+", "ties", "slerp"])
def test_nothing_is_solved(method: str, folder: Path) -> None:
    plan = ramerge.plan(recipe(folder, ["code", "tool"], method))
    assert plan.details.resources.solving_seconds is None
    assert not any(line.startswith("time ") for line in plan.explain().splitlines())


@pytest.mark.parametrize(
    ("slower", "text"), [(1, "a second"), (100, "65 s"), (1000, "11 minutes"), (10_000, "1.8 hours")]
)
def test_plans_say_it(slower: int, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "_speed", lambda _threads: duration._Speed(1e12, 1e5 / slower))
    plan = ramerge.plan(recipe(folder, ["code", "tool"], "iso_c"), options=ramerge.Options(threads=1))
    assert plan.details.resources.solving_seconds == pytest.approx(0.65 * slower, rel=1e-4)
    (line,) = [line for line in plan.explain().splitlines() if line.startswith("time ")]
    assert line.split(maxsplit=1)[1] == f"about {text} to solve"


def test_a_machine_is_measured() -> None:
    speed = duration._speed(1)
    assert 1e7 < speed.decompositions < speed.products
    assert duration._speed(1) is speed
