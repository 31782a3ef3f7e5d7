"""Factors of updates: the best of their rank, measured honestly, whatever finds them."""

from __future__ import annotations

import numpy as np
import pytest

import ramerge
from ramerge.deltas import factors
from ramerge.deltas.factors import Factors, Update, concatenated, decomposed, overall

SHAPES = [(40, 24), (24, 40), (1, 9), (9, 1), (64, 64)]


def update(seed: int, shape: tuple[int, int], decay: float = 0.9) -> np.ndarray:
    """A matrix whose singular values decay."""
    rng = np.random.default_rng(seed)
    side = min(shape)
    u, v = (np.linalg.qr(rng.standard_normal((n, side)))[0] for n in shape)
    return (u * decay ** np.arange(side)) @ v.T


def read(values: np.ndarray) -> Update:
    return Update(values.shape, lambda start, stop: values[start:stop].copy())


def settings(**given: object) -> ramerge.AsAdapter:
    return ramerge.AsAdapter(**given)  # type: ignore[arg-type]


def check(found: Factors | None, values: np.ndarray, rank: int, slack: float = 1e-4) -> None:
    """The error is measured with what is written, and as small as that of the truncated decomposition."""
    assert found is not None
    assert found.left.dtype == found.right.dtype == np.float32
    assert found.rank == rank
    lost = np.linalg.norm(values - found.left.astype(np.float64) @ found.right.astype(np.float64))
    assert found.error == pytest.approx(lost / np.linalg.norm(values), rel=1e-6, abs=1e-9)
    best = np.sqrt(np.square(np.linalg.svd(values)[1][rank:]).sum()) / np.linalg.norm(values)
    assert found.error <= best * (1 + slack) + 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 50, 1 << 20])
def test_exact_decomposition(shape: tuple[int, int], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "BLOCK_ELEMENTS", block)
    values = update(1, shape)
    for rank in (1, 5, 1000):
        check(decomposed(read(values), "w", settings(rank=rank)), values, min(rank, *shape))


@pytest.mark.parametrize("shape", [(300, 200), (200, 300)])
@pytest.mark.parametrize("decay", [0.9, 0.999])
def test_sketches_are_nearly_as_good(shape: tuple[int, int], decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "SMALL", 16)
    monkeypatch.setattr(factors, "_exact_svd", None)
    monkeypatch.setattr(factors, "BLOCK_ELEMENTS", 7000)
    values = update(2, shape, decay)
    found = decomposed(read(values), "w", settings(rank=20))
    check(found, values, 20, slack=0.01)
    again = decomposed(read(values), "w", settings(rank=20))
    assert found is not None
    assert again is not None
    assert again.left.tobytes() == found.left.tobytes()  # the draws depend on the name alone


@pytest.mark.parametrize("small", [16, 1024])
@pytest.mark.parametrize("energy", [0.5, 0.9, 0.99, 1.0])
def test_energy_chooses_the_smallest_rank(small: int, energy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "SMALL", small)
    monkeypatch.setattr(factors, "_FIRST_COLUMNS", 4)
    values = update(3, (120, 100))
    kept = np.cumsum(np.square(np.linalg.svd(values)[1]))
    found = decomposed(read(values), "w", settings(energy=energy))
    assert found is not None
    assert 1 - found.error**2 >= energy - 1e-7
    least = int(np.searchsorted(kept, energy * kept[-1] * (1 - 1e-9))) + 1
    assert least <= found.rank <= (least + (small == 16) if energy < 1 else 100)


def test_without_settings_most_of_an_update_is_kept() -> None:
    values = update(4, (60, 50))
    found = decomposed(read(values), "w", settings())
    assert found is not None
    assert 0.99 <= 1 - found.error**2 < 0.9999


def test_an_update_of_nothing_has_no_factors() -> None:
    assert decomposed(read(np.zeros((3, 4))), "w", settings(rank=2)) is None
    assert concatenated([(1.0, np.zeros((3, 2)), np.ones((2, 4)))], settings()) is None
    same = np.ones((3, 1)), np.ones((1, 4))
    assert concatenated([(1.0, *same), (-1.0, *same)], settings(rank=1)) is None


def products(seed: int, ranks: tuple[int, ...], shape: tuple[int, int]) -> list[tuple[float, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(), rng.standard_normal((shape[0], r)), rng.standard_normal((r, shape[1]))) for r in ranks]


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_concatenated(shape: tuple[int, int]) -> None:
    parts = products(5, (2, 3), shape)
    values = sum(factor * left @ right for factor, left, right in parts)
    found = concatenated(parts, settings())
    assert found is not None
    assert (found.rank, found.is_exact, found.error) == (5, True, 0.0)
    assert np.allclose(found.left.astype(np.float64) @ found.right, values, rtol=1e-5, atol=1e-5)
    for rank in (1, 4):
        check(concatenated(parts, settings(rank=rank)), values, min(rank, *shape))
    assert concatenated(parts, settings(rank=5)).is_exact  # type: ignore[union-attr]
    whole = concatenated(parts, settings(energy=1.0))
    assert whole is not None
    assert whole.error < 1e-6


def test_total_loss_sums_the_truncated_matrices() -> None:
    found = [concatenated(products(seed, (3, 3), (20, 20)), settings(rank=2)) for seed in (6, 7)]
    exact = concatenated(products(8, (1,), (20, 20)), settings(rank=2))
    assert None not in (*found, exact)
    lost, energy = (sum(getattr(one, key) for one in found) for key in ("loss", "energy"))
    assert overall([*found, exact]) == pytest.approx(np.sqrt(lost / energy))  # type: ignore[list-item]
    assert overall([exact]) == 0  # type: ignore[list-item]
