import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramerge.core.linalg import wudi
from tests.checkpoints import read_checkpoint
from tests.tiers import at_most

SHAPES = [(1, 1), (1, 7), (7, 1), (6, 40), (20, 30), (40, 6), (24, 24)]


def agents(shape, count, scale=1e-3, seed=0, real=np.float32):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(shape) * scale).astype(real) for _ in range(count)]


def low_rank(shape, count, rank, seed=0):
    rng = np.random.default_rng(seed)
    out, width = shape
    return [rng.standard_normal((out, rank)) @ rng.standard_normal((rank, width)) * 1e-3 for _ in range(count)]


def literal(tau, taus):
    """L as the paper writes it, in float64."""
    loss = 0.0
    for each in (np.float64(each) for each in taus):
        if each.any():
            loss += np.linalg.norm((np.float64(tau) - each) @ each.T) ** 2 / np.linalg.norm(each) ** 2
    return loss


def factor(taus):
    return np.concatenate([np.float64(tau) / np.linalg.norm(np.float64(tau)) for tau in taus])


def least_squares(taus):
    """R S^+ from the singular values of A in float64."""
    targets = [np.float64(tau) @ np.float64(tau).T / np.linalg.norm(np.float64(tau)) for tau in taus]
    return np.concatenate(targets, axis=1) @ np.linalg.pinv(factor(taus).T, rcond=1e-9)


def authors(taus, steps=300, rate=1e-5):
    """The authors' solver: torch's Adam from the sum of the task vectors, in their dtype."""
    kind = taus[0].dtype.type
    moved = [tau for tau in taus if tau.any()]
    units = [(np.float64(tau) / np.linalg.norm(np.float64(tau))).astype(kind) for tau in moved]
    merged, mean, square = sum(taus), 0 * taus[0], 0 * taus[0]
    for step in range(1, steps + 1):
        gradient = sum(((merged - tau) @ unit.T * 2) @ unit for tau, unit in zip(moved, units, strict=True))
        mean += (gradient - mean) * 0.1
        square += (gradient**2 - square) * 0.001
        merged = merged - kind(rate / (1 - 0.9**step)) * mean / (np.sqrt(square / kind(1 - 0.999**step)) + kind(1e-8))
    return merged


@pytest.mark.parametrize("shape", [(50, 6), (5, 60), (7, 20)])
def test_closed_form_over_several_blocks(shape, monkeypatch):
    taus = agents(shape, 3)
    whole = wudi.closed_form(taus)
    monkeypatch.setattr(wudi, "_BLOCK", 45)
    monkeypatch.setattr(wudi, "_LONG", 11)
    np.testing.assert_allclose(wudi.closed_form(taus), whole, rtol=0, atol=1e-3 * 1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_closed_form_is_the_least_squares_solution(shape, count):
    taus = agents(shape, count)
    expected = least_squares(taus)
    merged = wudi.closed_form(taus)
    assert merged.dtype == np.float32 and merged.shape == shape
    np.testing.assert_allclose(merged, expected, rtol=0, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize(("shape", "rank"), [((20, 300), 2), ((300, 20), 2), ((64, 64), 4), ((128, 128), 8)])
def test_low_rank_closed_form_has_smallest_norm(shape, rank):
    taus = low_rank(shape, 3, rank)
    expected = least_squares(taus)
    merged = wudi.closed_form(taus)
    assert merged.dtype == np.float64
    # of the rounding error in directions that L does not see: PROXIMITY
    np.testing.assert_allclose(merged, expected, rtol=0, atol=1e-4 * abs(expected).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_single_agent_stays_as_it_is(shape):
    (tau,) = agents(shape, 1)
    nothing = np.zeros_like(tau)
    for taus in ([tau], [tau, nothing], [nothing, nothing, tau]):
        merged = wudi.closed_form(taus)
        assert merged.tobytes() == tau.tobytes()
        assert not any(np.shares_memory(merged, each) for each in taus)


def test_no_task_vector_at_all():
    taus = [np.zeros((4, 9), np.float32)] * 3
    assert not wudi.closed_form(taus).any()


@pytest.mark.parametrize("shape", [(6, 40), (40, 6)])
def test_agents_that_do_not_interfere_are_summed(shape):
    first, second = agents(shape, 2)
    half = shape[1] // 2
    first[:, half:] = 0
    second[:, :half] = 0
    assert wudi.closed_form([first, second]).tobytes() == (first + second).tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_agent_twice_counts_once(shape):
    (tau,) = agents(shape, 1)
    np.testing.assert_allclose(wudi.closed_form([tau, tau]), tau, rtol=0, atol=1e-8)
    # the weights 1/||tau||^2 let neither norm win
    np.testing.assert_allclose(wudi.closed_form([tau, 4 * tau]), 2.5 * tau, rtol=0, atol=1e-7)


@pytest.mark.parametrize("exponent", [-30, -12, 12, 18])
@pytest.mark.parametrize("shape", [(6, 40), (40, 6)])
def test_norms_of_any_size(shape, exponent):
    ordinary, other = agents(shape, 2, scale=1.0)
    other *= np.float32(10.0**exponent)
    merged = wudi.closed_form([ordinary, other])
    scale = max(1.0, 10.0**exponent)
    np.testing.assert_allclose(
        merged / scale, least_squares([ordinary, other]) / scale, rtol=0, atol=1e-5 * abs(merged).max() / scale
    )


def test_rows_and_columns_that_nobody_moved_stay():
    for shape in [(30, 60), (60, 30), (200, 20)]:
        taus = agents(shape, 3)
        for tau in taus:
            tau[3:, :] = 0
            tau[:, ::5] = 0
        merged = wudi.closed_form(taus)
        assert merged[:3].any() and not merged[3:].any() and not merged[:, ::5].any()


def sparse(taus, seed=1):
    rng = np.random.default_rng(seed)
    return [tau * (rng.random(tau.shape) < 0.03) for tau in taus]


def low_rank_32(taus):
    return [tau.astype(np.float32) for tau in low_rank(taus[0].shape, 3, 2)]


HARD = {
    "dense": lambda taus: taus,
    "sparse": sparse,
    "sparse rows": lambda taus: [tau * (np.arange(len(tau)) % 33 == k)[:, None] for k, tau in enumerate(taus)],
    "low rank": low_rank_32,
    "duplicates": lambda taus: [taus[0], taus[0], taus[2]],
    "scaled duplicates": lambda taus: [taus[0], 4 * taus[0], taus[2]],
    "rounded duplicates": lambda taus: [taus[0], taus[0] / 3, taus[0] * 7],
    "norms": lambda taus: [taus[0], taus[1] * np.float32(1e-6), taus[2] * np.float32(1e6)],
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("shape", [(40, 200), (200, 40)])
def test_closed_form_beats_adam_and_the_sum(shape, case):
    taus = HARD[case](agents(shape, 3))
    nothing = literal(np.zeros(shape), taus)
    loss = literal(wudi.closed_form(taus), taus)
    assert loss <= literal(authors(taus), taus) + 1e-9 * nothing
    assert loss <= literal(sum(taus), taus) + 1e-9 * nothing
    if case != "rounded duplicates":  # where the minimizer is the rounding error times 1e7
        assert loss == pytest.approx(literal(least_squares(taus), taus), rel=1e-3, abs=1e-6 * nothing)


@st.composite
def hard_agents(draw, real=np.float32):
    """Agents of any rank, sparsity and norm, some of them nearly parallel to one before."""
    shape = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    taus = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["full", "rank 1", "entries", "rows", "zero", "parallel", "nearly parallel"]))
        tau = rng.standard_normal(shape)
        if kind == "rank 1":
            tau = tau[:, :1] @ tau[:1]
        elif kind == "entries":
            tau *= rng.random(shape) < 0.2
        elif kind == "rows":
            tau *= rng.random((shape[0], 1)) < 0.3
        elif kind == "zero":
            tau *= 0
        elif "parallel" in kind and taus:
            noise = 10.0 ** draw(st.floats(-9, -1)) if kind == "nearly parallel" else 0
            tau = taus[draw(st.integers(0, len(taus) - 1))] * (1 + noise * tau)
        taus.append((tau * 10.0 ** draw(st.floats(-4, 2))).astype(real))
    return taus


thorough = settings(
    max_examples=at_most(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.full
@thorough
@given(hard_agents())
def test_closed_form_beats_the_authors_solver(taus):
    nothing = literal(0 * taus[0], taus)
    loss = literal(wudi.closed_form(taus), taus)
    assert loss <= literal(authors(taus), taus) + 1e-9 * nothing
    assert loss <= literal(sum(taus), taus) + 1e-9 * nothing


@thorough
@given(hard_agents(np.float64), st.floats(-6, -1))
def test_closed_form_keeps_its_bound_against_any_adam(taus, rate):
    """The bound of the docstring; float64 has no rounding of the result to hide behind."""
    other = authors(taus, 300, 10.0**rate)
    mu = wudi.PROXIMITY * sum(tau.any() for tau in taus)
    bound = mu / 2 * np.linalg.norm(other - sum(taus)) ** 2
    rounding = 1e-10 * literal(0 * taus[0], taus)
    assert literal(wudi.closed_form(taus), taus) <= literal(other, taus) + bound + rounding


@pytest.mark.parametrize("shape", [(6, 40), (40, 6)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_shows_in_the_result(value, shape):
    taus = agents(shape, 3)
    taus[1][2, 3] = value
    assert not np.isfinite(wudi.closed_form(taus)[2, 3])


@pytest.mark.full  # large matrices
@pytest.mark.parametrize(("real", "count"), [(np.float32, 3), (np.float64, 2), (np.float32, 1)])
@pytest.mark.parametrize("shape", [(2, 3), (300, 1200), (1500, 30), (600, 600)])
def test_scratch_memory_is_what_was_promised(shape, count, real):
    taus = agents(shape, count, real=real)
    wudi.closed_form(agents((2, 3), count, real=real))  # what a first call leaves behind
    tracemalloc.start()
    try:
        result = wudi.closed_form(taus)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    promised = wudi.scratch_bytes(shape, count)
    # what LAPACK takes for the inverse is not traced
    side = min(shape[1], count * shape[0])
    unseen = 2 * 8 * side**2
    assert peak - result.nbytes <= promised
    if count > 1:
        assert peak - result.nbytes + unseen >= promised / 2 - (1 << 17)


def test_results_repeat():
    taus = agents((100, 300), 3)
    assert wudi.closed_form(taus).tobytes() == wudi.closed_form(taus).tobytes()


@pytest.mark.full
def test_default_stays_near_the_sum():
    """On the agents of the demo, whose minimum lies 500 times as far from the base as the sum in one weight."""
    from ramerge.core.methods.wudi import WudiParameters
    from ramerge.demo.run import AGENTS

    base, *trained = (read_checkpoint(AGENTS / name) for name in ("base", "coder", "tool", "memory"))
    ratios = []
    for name, stored in base.items():
        if stored.bits.ndim == 2 and name.startswith(("model.layers.0.", "model.layers.3.")):
            taus = [agent[name].numbers(np.float32) - stored.numbers(np.float32) for agent in trained]
            merged = wudi.closed_form(taus, WudiParameters().proximity)
            ratios.append(np.linalg.norm(merged) / np.linalg.norm(sum(taus)))
            assert literal(merged, taus) < literal(authors(taus), taus)
    assert len(ratios) > 10
    assert max(ratios) < 6
