"""What TIES and DARE say of themselves: what is kept next to what was asked for, and how mergekit's differ."""

from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests.checkpoints import floats, recipe, write_checkpoint, write_simple


@pytest.fixture
def coarse(tmp_path: Path) -> list[str]:
    """Agents whose steps are of two sizes: 10 of 1,000 large, 40 small and all alike."""
    base = np.ones(1_000)
    write_checkpoint(tmp_path / "base", {"w": floats(base)})
    for name, start in (("a", 0), ("b", 500)):
        moved = base.copy()
        moved[start : start + 10] += 0.5
        moved[start + 10 : start + 50] += 2**-7
        write_checkpoint(tmp_path / name, {"w": floats(moved)})
    return ["a", "b"]


@pytest.mark.full
@pytest.mark.parametrize("method", ["ties", "dare_ties"])
def test_ties_of_magnitude_are_kept_and_noted(method: str, coarse: list[str], tmp_path: Path) -> None:
    parameters = {"density": 0.02, **({"p": 0.0} if method == "dare_ties" else {})}
    record = ramerge.merge(recipe(tmp_path, coarse, method, parameters=parameters), tmp_path / "out")
    for agent in record.agents.values():
        assert (agent.kept, agent.kept_share, agent.asked_share) == (50, 0.05, 0.02)
        assert f"{agent.name}: 5.0% are kept where 2.0% were asked for" in "\n".join(record.notes)
    card = (tmp_path / "out/README.md").read_text()
    assert "| agent | threshold | asked | kept |" in card and "| 2.0% | 5.0% |" in card


@pytest.mark.parametrize("density", [0.01, 0.05, 0.5, 1.0])
def test_nothing_is_said_where_no_more_is_kept(density: float, coarse: list[str], tmp_path: Path) -> None:
    source = recipe(tmp_path, coarse, "ties", parameters={"density": density})
    assert not any("asked for" in note for note in ramerge.merge(source, tmp_path / "out").notes)


@pytest.mark.full
@pytest.mark.parametrize("method", ["dare", "dare_ties"])
def test_other_coins_than_mergekits_are_noted(method: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    source = recipe(tmp_path, names, method, parameters={"p": {"code": 0.0, "tool": 0.5, "memory": 0.0}})
    words = "drops other elements in each run, and rescales each tensor to its l1 norm"
    for notes in (ramerge.plan(source).notes, ramerge.merge(source, tmp_path / "out").notes):
        (note,) = (note for note in notes if words in note)
        assert note.startswith(f"{method}: mergekit's `dare_")
    without = recipe(tmp_path, names, method, parameters={"p": 0.0})
    assert not any(words in note for note in ramerge.plan(without).notes)
