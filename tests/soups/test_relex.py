"""RELEX against the singular value decomposition in NumPy, to 1e-6, and its special cases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.soups.relex import Line
from tests.checkpoints import floats, read_checkpoint, write_checkpoint
from tests.tiers import at_most


def predicted(vectors: Any, steps: Any, at: float) -> Any:
    """The authors' formula: project on the first right singular vector, fit a line to the coordinates."""
    right = np.linalg.svd(vectors, full_matrices=False)[2][0]
    return np.polyval(np.polyfit(steps, vectors @ right, 1), at) * right


@settings(max_examples=at_most(100), deadline=None)
@given(data=st.data())
def test_coefficients_give_what_the_decomposition_gives(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 9999)))
    count, at = data.draw(st.integers(2, 40)), data.draw(st.sampled_from([0.0, 12.5, 300.0, -40.0]))
    steps = np.sort(rng.choice(200, count, replace=False)).astype(float)
    noise = data.draw(st.sampled_from([0.01, 0.1, 0.5]))
    vectors = np.outer(steps + 5, rng.normal(size=200)) + noise * steps.max() * rng.normal(size=(count, 200))
    found = Line.from_products(vectors @ vectors.T, steps).coefficients(at) @ vectors
    wanted = predicted(vectors, steps, at)
    assert np.linalg.norm(found - wanted) <= 1e-6 * max(np.linalg.norm(wanted), 1e-3 * np.linalg.norm(vectors))


def run_of(folder: Path, count: int, noise: float) -> dict[str, Any]:
    """Checkpoints in float32 along a line: embeddings, a matrix, a norm, and a tensor that does not move."""
    rng = np.random.default_rng(4)
    shapes = {"model.embed_tokens.weight": (50, 40), "model.layers.0.w": (60, 40), "model.norm": (40,), "still": (3, 3)}
    base = {name: rng.normal(0, 0.05, shape) for name, shape in shapes.items()}
    lines = {name: rng.normal(0, 1e-4, shape) * (name != "still") for name, shape in shapes.items()}
    write_checkpoint(folder / "base", {name: floats(values, "F32") for name, values in base.items()})
    for place in range(1, count + 1):
        moved = {
            name: values + lines[name] * (place + noise * rng.normal(size=values.shape))
            for name, values in base.items()
        }
        write_checkpoint(folder / f"step_{place * 10}", {name: floats(each, "F32") for name, each in moved.items()})
    agents = {f"step-{place * 10}": str(folder / f"step_{place * 10}") for place in range(1, count + 1)}
    return {"method": "relex", "base": str(folder / "base"), "agents": agents, "parameters": {"at": 500}}


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_merge_equals_the_decomposition(noise: float, tmp_path: Path) -> None:
    recipe = run_of(tmp_path, 7, noise)
    record = ramerge.merge(recipe, tmp_path / "out")
    base, found = read_checkpoint(tmp_path / "base"), read_checkpoint(tmp_path / "out")
    models = [read_checkpoint(Path(folder)) for folder in recipe["agents"].values()]
    for name, tensor in base.items():
        start = tensor.numbers(np.float64)
        vectors = np.stack([(model[name].numbers(np.float64) - start).reshape(-1) for model in models])
        wanted = start
        if vectors.any():
            wanted = start + predicted(vectors, np.arange(10.0, 80.0, 10.0), 500.0).reshape(start.shape)
        apart = np.abs(found[name].numbers(np.float64) - wanted).max()
        assert apart <= 1e-6 * np.abs(wanted).max(), name
    assert [agent.step for agent in record.agents.values()] == [10, 20, 30, 40, 50, 60, 70]
    assert record.agents["step-70"].straight > (0.99 if noise == 0 else 0.9)


def test_a_single_checkpoint_goes_through_the_base() -> None:
    line = Line.from_products(np.array([[4.0]]), [20.0])
    assert line.coefficients(60.0).tolist() == [3.0]
    assert (line.share, line.fit) == (1.0, 1.0)
    assert Line.from_products(np.array([[4.0]]), [0.0]).coefficients(60.0).tolist() == [1.0]


def test_equal_checkpoints_stay_where_they_are() -> None:
    line = Line.from_products(np.full((3, 3), 2.0), [10.0, 20.0, 30.0])
    assert line.coefficients(1000.0) == pytest.approx([1 / 3] * 3)


def test_nothing_moved_is_no_change() -> None:
    line = Line.from_products(np.zeros((3, 3)), [1.0, 2.0, 3.0])
    assert line.coefficients(9.0).tolist() == [0, 0, 0]
    assert line.share == 1


def test_a_prediction_may_be_negative() -> None:
    tau = np.array([1.0, 2.0, 3.0])
    line = Line.from_products(np.outer(tau, tau), [10.0, 20.0, 30.0])
    assert (line.coefficients(-10.0) @ tau) == pytest.approx(-1.0)
    assert line.direction.sum() > 0


def test_products_that_are_not_finite() -> None:
    assert np.isnan(Line.from_products(np.full((2, 2), np.nan), [1.0, 2.0]).coefficients(3.0)).all()
