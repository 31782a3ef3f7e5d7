"""Core coefficients: what they are in cases that can be told without the formula, and how good the range finder is."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ramerge.core.linalg.spectral import Array
from ramerge.core.methods.base import Layer
from ramerge.core.methods.core import CORE, CORE_PLUS, CoreParameters, core_factors, matrix_of, solve
from tests import reference

NAME = "model.layers.0.mlp.up_proj.weight"


def low_rank(generator: np.random.Generator, shape: tuple[int, int], rank: int = 8) -> Array:
    """A matrix with a few directions, and noise."""
    u, v = generator.standard_normal((shape[0], rank)), generator.standard_normal((rank, shape[1]))
    made: Array = (u * 0.7 ** np.arange(rank)) @ v + 0.05 * generator.standard_normal(shape)
    return made.astype(np.float32)


def coefficients(*taus: NDArray[np.float32], **parameters: float) -> list[float]:
    return core_factors(NAME, taus, CoreParameters.model_validate(parameters))


@pytest.mark.parametrize("shape", [(1, 40), (12, 9), (200, 120), (120, 200)])
def test_copies_share_one_update(shape: tuple[int, int]) -> None:
    tau = low_rank(np.random.default_rng(0), shape)
    assert coefficients(tau, tau.copy(), tau.copy()) == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_agents_that_do_not_meet_are_summed() -> None:
    first, second = np.zeros((2, 100, 160), np.float32)
    first[:50, :80] = low_rank(np.random.default_rng(1), (50, 80))
    second[50:, 80:] = low_rank(np.random.default_rng(2), (50, 80)) * 1e-3
    assert coefficients(first, second) == pytest.approx([1, 1], abs=1e-3)


def test_one_mover_is_copied() -> None:
    tau = low_rank(np.random.default_rng(3), (90, 70))
    assert coefficients(np.zeros_like(tau), tau, tau * np.float32(1e-7)) == [0, 1, 0]
    assert np.array_equal(solve(NAME, [np.zeros_like(tau), tau], CoreParameters()), tau)


def test_opposite_agents_get_what_is_allowed() -> None:
    tau = low_rank(np.random.default_rng(4), (30, 40))
    found = coefficients(tau, -tau)
    assert all(0 <= factor <= 1 for factor in found)


@pytest.mark.full
@pytest.mark.parametrize("shape", [(300, 200), (150, 500)])
def test_the_range_finder_is_near_the_exact_directions(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(5)
    common = low_rank(generator, shape)
    taus = [common + low_rank(generator, shape) for _ in range(3)]
    assert max(coefficients(*taus)) < 0.9
    exact = reference.core_sum([tau.astype(np.float64) for tau in taus])
    found = solve(NAME, taus, CoreParameters())
    assert np.linalg.norm(found - exact) <= 2e-3 * np.linalg.norm(exact)
    again = solve(NAME, taus, CoreParameters(seed=1))
    assert np.linalg.norm(found - again) <= 2e-3 * np.linalg.norm(exact)


def test_matrices_of_tensors() -> None:
    assert matrix_of(Layer("model.norm.weight", (64,))) == (1, 64)
    assert matrix_of(Layer("model.scale", ())) == (1, 1)
    assert matrix_of(Layer("model.embed_tokens.weight", (150_000, 896))) == (8192, 896)
    assert matrix_of(Layer(NAME, (18_944, 3584))) == (18_944, 3584)
    assert matrix_of(Layer("model.layers.0.mlp.experts.gate_up_proj", (8, 64, 128))) == (64, 128)
    assert matrix_of(Layer("model.layers.0.conv1d.weight", (96, 1, 4))) == (96, 4)


def test_memory_is_planned() -> None:
    layer, parameters = Layer(NAME, (896, 4864), 4), CORE.parameters()
    task_vectors = 3 * 4 * 896 * 4864
    assert task_vectors < CORE.scratch(layer, parameters, 3) < 3 * task_vectors
    assert CORE.scratch(layer, parameters, 3) < CORE_PLUS.scratch(layer, CORE_PLUS.parameters(), 3)
    rows = Layer("model.embed_tokens.weight", (150_000, 896), 4)
    assert CORE.scratch(rows, parameters, 3) < 3e8
