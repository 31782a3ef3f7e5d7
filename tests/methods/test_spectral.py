"""Methods that take matrices apart: the authors' numbers, the obvious reference, and what must not change a result."""

import math
import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.core.linalg import curvature, spectral
from ramerge.core.methods.base import Layer
from ramerge.core.methods.iso_cts import _own_directions
from ramerge.core.methods.registry import METHODS
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint

SPECTRAL = ("tsvm", "iso_c", "iso_cts", "swudi", "aswudi", "resmerge", "psa", "knots")
NAME = "model.layers.0.weight"
SHAPES = [(1, 1), (1, 7), (7, 1), (6, 40), (20, 30), (40, 6), (12, 12)]


def merged(method: str, taus: list[NDArray], tensor: str = NAME, **parameters: Any) -> NDArray:
    """The merged task vector."""
    names = tuple(f"a{place}" for place in range(len(taus)))
    prepared = METHODS[method].prepare(METHODS[method].parameters(**parameters), names, {})
    return prepared.solve(tensor, [tau.copy() for tau in taus])


def by_reference(method: str, taus: list[NDArray], **parameters: Any) -> NDArray:
    base = {NAME: floats(np.zeros(taus[0].shape), "F64")}
    agents = {f"a{place}": {NAME: floats(tau, "F64")} for place, tau in enumerate(taus)}
    return getattr(reference, method)(base, agents, **parameters)[NAME].numbers(np.float64)


def random(shape, count=3, seed=0, scale=1e-3):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) * scale for _ in range(count)]


def orthogonal(size: int, seed: int) -> NDArray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def low_rank(shape, count=3, rank=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1])) for _ in range(count)]


def equal_values(shape, count=3):
    """Task vectors with clusters of equal singular values, in which every cut of a rank falls."""
    values = np.zeros(shape)
    np.fill_diagonal(values, [2.0] * (min(shape) // 2) + [1.0] * (min(shape) - min(shape) // 2))
    return [orthogonal(shape[0], 2 * t) @ values @ orthogonal(shape[1], 2 * t + 1) for t in range(count)]


def same(found: NDArray, wanted: NDArray, tolerance: float = 1e-10) -> None:
    """Compare, relative to the largest element."""
    assert np.isfinite(found).all()
    assert np.abs(found - wanted).max() <= tolerance * max(np.abs(wanted).max(), np.abs(found).max())


# --- the authors' code -----------------------------------------------------------------------------------------------

# Elements (0, 0), (1, 2) and the last one, and the norm, of what the authors' code makes of `waves`:
# tsvm: AntoAndGar/task_singular_vectors a6c9718, compute_and_sum_svd_mem_reduction; iso_*: danielm1405/iso-merging
# d34010a; swudi, aswudi: WalkerWorldPeace/MLLMerging 5f8a458, LLaMA-Factory/swudi_aswudi.py, float32; resmerge:
# sunyd0303-cpu/ResMerge-release e990128 with MERGE_DTYPE float64; psa: minsik-choi126/PSA 8b19ded, pipeline/merge.py
# without column weights, float32; knots: gstoica27/KnOTS baa35e8, masking_ops.py behind the SVD of task_merger.py.
AUTHORS: list[tuple[str, dict[str, Any], tuple[int, int], tuple[float, float, float, float], float]] = [
    ("tsvm", {}, (6, 10), (0.01100970744557, 0.004804318519552, 0.008865091390216, 0.0703929524185), 1e-12),
    ("tsvm", {}, (10, 6), (-0.001551021923307, 0.01131190473912, -0.005895495572823, 0.07210201897259), 1e-12),
    ("iso_c", {}, (6, 10), (0.001077939208642, 0.003231305783025, 0.0002356534996574, 0.07620689863146), 1e-12),
    ("iso_c", {}, (10, 6), (-0.002103790024446, 0.008782652324374, 0.006475360155935, 0.08104321863046), 1e-12),
    (
        "iso_cts",
        {"common_space_fraction": 0.5},
        (6, 10),
        (0.01288266779985, 0.007740593419779, -0.01660565494753, 0.08867206175909),
        1e-12,
    ),
    (
        "iso_cts",
        {"common_space_fraction": 0.5},
        (10, 6),
        (-0.005783513102602, 0.009265878630389, -0.002452460648807, 0.09338138808609),
        1e-12,
    ),
    ("swudi", {}, (6, 10), (-0.003730338998139, 0.00369258178398, 0.002305588219315, 0.05574120504949), 3e-06),
    ("swudi", {}, (10, 6), (-0.004751256201416, 0.006168093997985, -0.004093122668564, 0.05853486420313), 3e-06),
    (
        "swudi",
        {"filter_type": "none", "init_mode": "mean", "truncate_rank_ratio": 0.4},
        (4, 20),
        (-0.004762087482959, 0.01004550978541, -0.002925459295511, 0.09299048869031),
        3e-06,
    ),
    (
        "swudi",
        {"exp_time": 3.0, "truncate_rank_ratio": 0.85},
        (6, 10),
        (-0.003621000796556, 0.005773592740297, -0.001461927662604, 0.06289676623481),
        3e-06,
    ),
    (
        "aswudi",
        {"auto_rank_method": "participation_sqrt"},
        (6, 10),
        (-0.003065050113946, 0.00551736028865, 6.049498915672e-05, 0.0587262504856),
        3e-06,
    ),
    (
        "aswudi",
        {"auto_rank_method": "participation_sqrt"},
        (10, 6),
        (-0.002559256739914, 0.004469027742743, -0.003398552071303, 0.04455909092185),
        3e-06,
    ),
    (
        "aswudi",
        {"auto_rank_method": "participation"},
        (4, 20),
        (-0.004387084394693, 0.01125239674002, 0.0007933736778796, 0.09749320778925),
        3e-06,
    ),
    (
        "aswudi",
        {"auto_rank_method": "entropy"},
        (6, 10),
        (-0.003548282664269, 0.00537469657138, 0.001702017150819, 0.05656667730804),
        3e-06,
    ),
    (
        "aswudi",
        {"auto_rank_method": "stable_rank"},
        (10, 6),
        (-0.006448826752603, 0.001511548180133, -0.003068016842008, 0.06246827904887),
        3e-06,
    ),
    (
        "aswudi",
        {"auto_rank_method": "gavish_donoho"},
        (4, 20),
        (-0.003759003942832, 0.008237134665251, 0.002491160295904, 0.09189631850003),
        3e-06,
    ),
    (
        "aswudi",
        {"auto_rank_method": "cumvar_0.9"},
        (6, 10),
        (-0.003730338998139, 0.00369258178398, 0.002305588219315, 0.05574120504949),
        3e-06,
    ),
    ("resmerge", {}, (6, 10), (-0.002500940123246, -0.0002742096588687, -0.001819265471664, 0.02292557190182), 1e-07),
    ("resmerge", {}, (10, 6), (0.0004973933781778, 0.001770900007756, 0.001682454312518, 0.02458279747644), 1e-07),
    (
        "resmerge",
        {"rank_topk": 2},
        (4, 20),
        (0.007571279874377, 0.001363056753924, 0.0007800962250028, 0.0340111954167),
        1e-07,
    ),
    ("psa", {}, (6, 10), (-0.006602733861655, 0.01061205007136, 0.0001011800850392, 0.09221281498291), 3e-08),
    ("psa", {}, (10, 6), (0.004053278360516, 0.01525230705738, 0.002427459927276, 0.09227653357625), 3e-08),
    ("knots", {}, (6, 10), (0.002085611303178, 0.005519581487015, -0.001454900092894, 0.02792296849307), 1e-12),
    ("knots", {}, (10, 6), (0.001539135554675, 0.007612008573347, -0.002121207055818, 0.02910585073644), 1e-12),
]


def waves(shape, count=3):
    i, j = np.meshgrid(np.arange(1, shape[0] + 1), np.arange(1, shape[1] + 1), indexing="ij")
    return [1e-2 * np.sin((2 + t) * i * j + t * i * i + np.sqrt(j)) for t in range(count)]


@pytest.mark.parametrize(("method", "parameters", "shape", "numbers", "tolerance"), AUTHORS)
def test_numbers_of_the_authors_code(method, parameters, shape, numbers, tolerance):
    taus = waves(shape)
    if parameters.get("rank_topk") == 2:  # heads that agree
        taus = [taus[0] + 0.5 * tau for tau in taus]
    found = merged(method, taus, "model.layers.0.self_attn.q_proj.weight", **parameters)
    for one, number in zip((found[0, 0], found[1, 2], found[-1, -1], np.linalg.norm(found)), numbers, strict=True):
        assert abs(one - number) <= tolerance * numbers[-1]


# --- the obvious reference -------------------------------------------------------------------------------------------

KINDS = {
    "random": random,
    "low rank": low_rank,
    "with a zero": lambda shape, count: [*random(shape, count)[1:], np.zeros(shape)],
    "duplicates": lambda shape, count: random(shape, 1) * count,
    "disjoint": lambda shape, count: [
        tau * (np.arange(shape[1]) % count == t) for t, tau in enumerate(random(shape, count))
    ],
}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *[(method, {}) for method in SPECTRAL],
    ("swudi", {"filter_type": "none", "truncate_rank_ratio": 1.0}),
    ("swudi", {"exp_time": 3.0, "init_mode": "mean", "truncate_rank_ratio": 1.0}),
    *[("aswudi", {"auto_rank_method": rule}) for rule in ("participation", "entropy", "stable_rank", "gavish_donoho")],
    ("iso_cts", {"common_space_fraction": 0.0}),
    ("resmerge", {"rank_topk": 3}),
    ("psa", {"energy": 0.5}),
    ("knots", {"density": 0.3}),
]


@pytest.mark.parametrize(("method", "parameters"), SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_obvious_reference(method, parameters, kind):
    for shape, count in product(SHAPES, (1, 2, 3)):
        taus = KINDS[kind](shape, count)
        if not any(tau.any() for tau in taus):
            continue
        found, wanted = merged(method, taus, **parameters), by_reference(method, taus, **parameters)
        # the noise of Gram matrices: 1e-8 of the largest singular value
        assert np.abs(found - wanted).max() <= 1e-7 * max(np.abs(tau).max() for tau in (wanted, *taus))


# --- what changes nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SPECTRAL)
@pytest.mark.parametrize(("make", "shape"), [(random, (12, 18)), (low_rank, (18, 12)), (equal_values, (12, 18))])
def test_rotations_of_rows_and_columns_rotate_the_result(method, make, shape):
    taus = make(shape)
    left = orthogonal(shape[0], 77)
    # signs within the shared basis of KnOTS are elected column by column
    right = np.eye(shape[1]) if method == "knots" else orthogonal(shape[1], 78)
    if method == "knots" and make is equal_values:
        return  # its basis is not determined
    same(merged(method, [left @ tau @ right for tau in taus]), left @ merged(method, taus) @ right, 1e-7)


@pytest.mark.parametrize("method", SPECTRAL)
@pytest.mark.parametrize("factor", [1e-4, 1e-140, 1e140])
def test_small_and_large_task_vectors_merge_alike(method, factor):
    for shape in ((6, 40), (40, 6)):
        taus = random(shape)
        same(merged(method, [factor * tau for tau in taus]) / factor, merged(method, taus))


@pytest.mark.parametrize("method", SPECTRAL)
def test_the_order_of_agents_changes_nothing(method):
    for shape in SHAPES:
        taus = random(shape)
        same(merged(method, taus[::-1]), merged(method, taus), 1e-9)


@pytest.mark.parametrize(
    "method", [method for method in SPECTRAL if "weights" in METHODS[method].parameters.model_fields]
)
def test_weights_multiply_task_vectors(method):
    taus = random((10, 8), 2)
    found = merged(method, taus, weights={"a0": -0.5, "a1": 3.0})
    same(found, merged(method, [-0.5 * taus[0], 3 * taus[1]]))


@pytest.mark.parametrize("method", SPECTRAL)
@pytest.mark.parametrize("shape", [(30, 200), (60, 40), (40, 60)])
def test_float32_loses_little(method, shape):
    taus = [tau.astype(np.float32) for tau in random(shape)]
    found, exact = merged(method, taus), merged(method, [tau.astype(np.float64) for tau in taus])
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() <= 2e-5 * exact.std()


def steep(shape, count=3):
    """Task vectors of a few directions a hundred times as strong as the others."""
    return [tau + 0.1 * strong for tau, strong in zip(random(shape, count), low_rank(shape, count), strict=True)]


@pytest.mark.parametrize(("make", "shape"), [(random, (264, 400)), (steep, (400, 264))])
@pytest.mark.parametrize(("method", "parameters"), [*((name, {}) for name in SPECTRAL), ("swudi", {"exp_time": 1e5})])
def test_large_matrices_are_decomposed_in_float32(method, parameters, shape, make, monkeypatch):
    decomposed: list[str] = []
    taus = [tau.astype(np.float32) for tau in make(shape)]
    exact = merged(method, [tau.astype(np.float64) for tau in taus], **parameters)
    monkeypatch.setattr(
        spectral.arrays, "eigh", lambda x, real=spectral.arrays.eigh: (decomposed.append(str(x.dtype)), real(x))[1]
    )
    found = merged(method, taus, **parameters)
    assert np.linalg.norm(found - exact) <= 1e-5 * np.linalg.norm(exact)
    if make is random and method in ("psa", "swudi") and not parameters:
        assert decomposed.count("float32") > decomposed.count("float64")
    if method in ("iso_c", "aswudi", "resmerge", "knots"):
        assert "float32" not in decomposed


# --- what each method promises ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(12, 18), (18, 12)])
def test_one_agent(shape):
    (tau,) = random(shape, 1)
    u, s, vt = np.linalg.svd(tau, full_matrices=False)
    for method in ("tsvm", "swudi", "aswudi"):
        same(merged(method, [tau]), tau)
    same(merged("knots", [tau], scale=1.0), tau)
    head = s[0] * np.outer(u[:, 0], vt[0])
    same(merged("resmerge", [tau]), tau - head + 0.2 * np.linalg.norm(tau - head) * np.outer(u[:, 0], vt[0]))
    assert np.linalg.norm(merged("psa", [tau])) == pytest.approx(np.linalg.norm(tau))
    same(merged("iso_c", [tau]), s.mean() * u @ vt)


def test_agents_that_do_not_interfere_are_summed():
    first, second = random((12, 18), 2)
    first[:, 9:] = 0
    second[:, :9] = 0
    for parameters in ({}, {"filter_type": "none"}, {"exp_time": 10.0, "truncate_rank_ratio": 1.0}):
        same(merged("swudi", [first, second], **parameters), first + second)
    first[6:], second[:6] = 0, 0
    same(merged("tsvm", [first, second]), first + second)


def test_equal_agents_count_once_for_the_minimum():
    (tau,) = random((12, 18), 1)
    same(merged("swudi", [tau] * 3, filter_type="none", truncate_rank_ratio=1.0), tau)
    same(merged("swudi", [tau] * 3, exp_time=0.0), 3 * tau)
    top = reference._triples(tau, 4)
    same(merged("tsvm", [tau] * 3), top[0] @ np.diag(top[1]) @ top[2].T)


def test_all_singular_values_become_their_mean():
    taus = random((12, 18))
    wanted = np.linalg.svd(sum(taus), compute_uv=False).mean()
    np.testing.assert_allclose(np.linalg.svd(merged("iso_c", taus), compute_uv=False), wanted)
    same(merged("iso_cts", taus, common_space_fraction=1.0), merged("iso_c", taus))
    assert [_own_directions(3, 2, 0.0), _own_directions(896, 3, 0.8), _own_directions(2, 5, 0.0)] == [1, 60, 0]


def test_linear_rules_do_not_see_the_shared_basis():
    """With one agent to elect among, KnOTS is the agent; without a sign conflict, the mean."""
    (tau,) = random((12, 18), 1)
    same(merged("knots", [tau, tau], scale=1.0), tau)
    same(merged("knots", [tau, 3 * tau], scale=1.0), 2 * tau)


def test_every_agents_share_keeps_its_norm():
    first, second = random((12, 18), 2)
    first[:6, :], second[6:, :], first[:, :9], second[:, 9:] = 0, 0, 0, 0
    found = merged("psa", [first, second])
    assert np.linalg.norm(found[6:]) == pytest.approx(np.linalg.norm(first))
    assert np.linalg.norm(found[:6]) == pytest.approx(np.linalg.norm(second))


# --- the spectral filter as a polynomial -----------------------------------------------------------------------------


@pytest.mark.parametrize("time", [0.0, 1.0, 5.0, 1e6])
@pytest.mark.parametrize("outlier", [0.0, 1.0])
def test_a_polynomial_is_as_exact(time, outlier, monkeypatch):
    taus = random((20, 200))
    for tau in taus:
        tau += outlier * np.outer(tau[:, 0], np.sin(np.arange(200)))
    exact = curvature.solve(taus, [1.0] * len(taus), curvature.Filter(time, len))
    asked = []
    monkeypatch.setattr(
        curvature,
        "_evaluate_polynomial",
        lambda *args, real=curvature._evaluate_polynomial: asked.append(1) or real(*args),
    )
    same(curvature.solve(taus, [1.0] * len(taus), curvature.Filter(time, None)), exact, 1e-12)
    assert len(asked) == (time <= (1 if outlier else 5))


def test_a_polynomial_of_one_term_takes_no_product():
    x, symmetric = np.ones((3, 4)), np.full((4, 4), np.nan)
    same(curvature._evaluate_polynomial(x, symmetric, 1.0, np.array([0.5])), np.full((3, 4), 0.5))


def test_the_bound_of_a_spectrum():
    for values in ([1.0] * 50, [*np.linspace(0, 1, 99), 30.0], [0.0] * 9 + [1.0], [3.0], np.logspace(-9, 0, 80)):
        turn = orthogonal(len(values), 5)
        bound = curvature.upper_bound(turn @ np.diag(values) @ turn.T)
        assert max(values) <= bound <= 1.5 * max(values)


def test_ranks_of_aswudi_by_hand():
    from ramerge.core.methods.swudi import _chosen_rank

    values = np.array([4.0, 4.0, 1.0, 1.0])
    for rule, rank in (("participation_sqrt", 4), ("participation", 3), ("stable_rank", 3), ("cumvar_0.9", 3)):
        assert _chosen_rank(rule, values, (9, 6)) == rank
    assert _chosen_rank("entropy", np.ones(5), (9, 6)) == 5
    assert _chosen_rank("gavish_donoho", np.array([100.0, 1, 1, 1]), (4, 4)) == 1


# --- whole merges ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SPECTRAL)
def test_agents_that_equal_the_base_give_the_base(method, tmp_path: Path):
    values = np.random.default_rng(0).standard_normal((6, 9))
    values[0] = -0.0
    for name in ("base", "a", "b"):
        write_checkpoint(tmp_path / name, {NAME: floats(values, "BF16"), "model.layers.0.x": floats(values[1], "BF16")})
    ramerge.merge(recipe(tmp_path, ["a", "b"], method), tmp_path / "out")
    out, base = (read_checkpoint(tmp_path / name) for name in ("out", "base"))
    assert all(out[name].bits.tobytes() == base[name].bits.tobytes() for name in base)


@pytest.mark.parametrize("method", SPECTRAL)
def test_what_is_not_finite_is_refused(method, tmp_path: Path):
    values = np.ones((6, 9))
    write_checkpoint(tmp_path / "base", {NAME: floats(values, "F32")})
    for place, bad in enumerate((math.nan, math.inf)):
        values[2, 3] = bad
        write_checkpoint(tmp_path / "a", {NAME: floats(values, "F32")})
        with pytest.raises(ramerge.WeightsError, match="a"):
            ramerge.merge(recipe(tmp_path, ["a"], method), tmp_path / f"out{place}")


@pytest.mark.parametrize("method", SPECTRAL)
@pytest.mark.parametrize("shape", [(1, 1), (9,), (3, 4, 5)])
def test_every_shape(method, shape, tmp_path: Path):
    rng = np.random.default_rng(0)
    for name in ("base", "a", "b", "c"):
        write_checkpoint(tmp_path / name, {NAME: floats(rng.standard_normal(shape), "BF16")})
    ramerge.merge(recipe(tmp_path, ["a", "b", "c"], method), tmp_path / "out")
    assert read_checkpoint(tmp_path / "out")[NAME].bits.shape == shape


def test_embeddings_and_norms_are_no_matrices():
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight"):
        for method in SPECTRAL:
            layer = Layer(name, (151_936, 896))
            parameters = METHODS[method].parameters()
            assert METHODS[method].unit(layer, parameters) == 1 and METHODS[method].scratch(layer, parameters, 3) == 0


@pytest.mark.parametrize("method", [*SPECTRAL, "wudi", "task_arithmetic"])
def test_plans_say_how_many_matrices_there_are(method, tmp_path: Path):
    names, rng = ["code", "tool"], np.random.default_rng(0)
    for name in ("base", *names):
        shapes = {"model.embed_tokens.weight": (9, 5), NAME: (1200, 5), "model.layers.1.mlp.up_proj.weight": (5, 7)}
        weights = {key: floats(rng.standard_normal(shape), "BF16") for key, shape in shapes.items()}
        write_checkpoint(tmp_path / name, weights)
    made = ramerge.plan(recipe(tmp_path, names, method))
    values, rows = made.to_dict(), [line for line in made.explain().splitlines() if line.startswith("whole matrices ")]
    solved = method != "task_arithmetic"
    assert (values["whole_matrices"], values["largest_matrix"]) == ((2, [1200, 5]) if solved else (0, []))
    assert [row.split("  ")[-1] for row in rows] == ["2, the largest 1,200 x 5; 99% of the parameters"] * solved


@pytest.mark.full  # large matrices
@pytest.mark.parametrize("method", SPECTRAL)
@pytest.mark.parametrize(("shape", "count"), [((100, 2000), 3), ((2000, 100), 1), ((500, 500), 3)])
def test_memory_is_what_was_planned(method, shape, count):
    taus = [tau.astype(np.float32) for tau in random(shape, count)]
    merged(method, random((3, 4), count))
    tracemalloc.start()
    try:
        merged(method, taus)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # what LAPACK takes for an eigendecomposition is not traced: it counts in the plan
    assert peak <= METHODS[method].scratch(Layer(NAME, shape, 4), METHODS[method].parameters(), count)
    assert spectral.noise(shape) < 1e-12
