"""DARE's random draws: the generator's known answers, rate, independence, and what they leave on average."""

from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint

SIZE = 400_000


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers_of_threefry(counter: tuple[int, int], key: tuple[int, int], answer: tuple[int, int]) -> None:
    low, high = (np.array([word], np.uint32) for word in counter)
    assert tuple(int(word[0]) for word in reference.threefry(low, high, key)) == answer


def dropped(folder: Path, **parameters: object) -> dict[str, dict[str, np.ndarray]]:
    """For each agent and tensor what DARE leaves of a task vector of ones: 0 or 1 / (1 - p)."""
    zero, one = floats(np.zeros(SIZE), "F32"), floats(np.ones(SIZE), "F32")
    left: dict[str, dict[str, np.ndarray]] = {}
    for name in ("a", "b"):
        if not (folder / name).exists():
            write_checkpoint(folder / "base", {"x": zero, "y": zero})
            write_checkpoint(folder / name, {"x": one, "y": one})
        out = folder / f"out-{name}"
        ramerge.merge(
            recipe(folder, [name], "dare", parameters=parameters), out, options=ramerge.Options(overwrite=True)
        )
        left[name] = {key: tensor.numbers(np.float32) for key, tensor in read_checkpoint(out).items()}
    return left


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate_and_mean(p: float, tmp_path: Path) -> None:
    for tensors in dropped(tmp_path, p=p).values():
        for values in tensors.values():
            assert set(np.unique(values)) == {np.float32(0), np.float32(1 / (1 - p))}
            sigma = np.sqrt(p * (1 - p) / SIZE)
            assert abs((values == 0).mean() - p) < 5 * sigma
            assert abs(values.mean() - 1) < 5 * sigma / (1 - p)


def test_coins_are_independent(tmp_path: Path) -> None:
    left, other = dropped(tmp_path, p=0.5), dropped(tmp_path, p=0.5, seed=1)
    rows = [left["a"]["x"], left["a"]["y"], left["b"]["x"], left["b"]["y"], other["a"]["x"], np.roll(left["a"]["x"], 1)]
    together = np.corrcoef([row > 0 for row in rows])
    assert np.abs(together - np.eye(len(rows))).max() < 5 / np.sqrt(SIZE)
    assert all(np.array_equal(left[a][t], dropped(tmp_path, p=0.5)[a][t]) for a in "ab" for t in "xy")


def test_coins_ignore_the_other_agents(tmp_path: Path) -> None:
    alone = dropped(tmp_path, p=0.5)
    ramerge.merge(recipe(tmp_path, ["b", "a"], "dare", parameters={"p": 0.5}), tmp_path / "both")
    both = {key: tensor.numbers(np.float32) for key, tensor in read_checkpoint(tmp_path / "both").items()}
    assert all(np.array_equal(both[key], alone["a"][key] + alone["b"][key]) for key in "xy")
