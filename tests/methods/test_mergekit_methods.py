"""What mergekit's methods promise here: their special cases, their scale, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.conformance.test_merge import run
from tests.messages import Messages

Numbers = NDArray[np.float32]


def merged(
    folder: Path, method: str, base: Any, agents: list[Any], *, based: bool = True, **parameters: Any
) -> Numbers:
    """The result of a merge of one float32 tensor, in the name of whose layer there is a number."""
    names = [f"a{place}" for place in range(len(agents))]
    for name, values in zip(["base", *names], [base, *agents], strict=True):
        write_checkpoint(folder / name, {"model.layers.0.w": floats(np.asarray(values, np.float32), "F32")})
    source = recipe(folder, names, method, parameters=parameters)
    if not based:
        source.pop("base")
    ramerge.merge(source, folder / "out", options=ramerge.Options(overwrite=True))
    return read_checkpoint(folder / "out")["model.layers.0.w"].numbers(np.float32)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def same(found: Numbers, wanted: Any) -> None:
    assert found.tobytes() == np.asarray(wanted, np.float32).tobytes()


TASK_VECTORS = {
    "nuslerp": {},
    "multislerp": {},
    "model_stock": {},
    "sce": {"select_topk": 0.5},
    "della": {"rescale": "l1"},
    "della_linear": {"rescale": "probability"},
    "breadcrumbs": {"density": 0.5, "rescale": True},
    "breadcrumbs_ties": {"density": 0.5},
}
MODELS = {"slerp": {"t": 0.3}, "karcher": {}}


@pytest.mark.parametrize(("method", "parameters"), [*TASK_VECTORS.items(), *MODELS.items()])
def test_small_updates_are_merged_like_large_ones(method: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    agents = [rng(seed).normal(size=(30, 40)).astype(np.float32) for seed in (1, 2)]
    large = merged(tmp_path, method, np.zeros((30, 40)), agents, **parameters)
    small = merged(tmp_path, method, np.zeros((30, 40)), [agent * 2.0**-20 for agent in agents], **parameters)
    assert large.any()
    same(small, large * np.float32(2.0**-20))


@pytest.mark.parametrize(("method", "parameters"), [*TASK_VECTORS.items(), ("arcee_fusion", {})])
def test_unmoved_agents_give_the_base(method: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    base = np.array([[-0.0, 0.0, 1e-40, 3.0], [1, 2, 3, 4]], np.float32)
    same(merged(tmp_path, method, base, [base] * (1 if method == "arcee_fusion" else 2), **parameters), base)


@pytest.mark.parametrize(
    ("method", "based"),
    [("model_stock", True), *[(name, on) for name in ("slerp", "nuslerp", "multislerp", "karcher") for on in (1, 0)]],
)
def test_equal_agents_give_the_agent(method: str, based: bool, tmp_path: Path) -> None:
    base, agent = rng(0).normal(size=500), rng(1).normal(size=500).astype(np.float32)
    found = merged(tmp_path, method, base, [agent, agent], based=based)
    np.testing.assert_allclose(found, agent, rtol=1e-6, atol=1e-6)
    if not based or method in ("slerp", "karcher"):
        same(found, agent)


def test_the_ends_of_an_arc_are_the_agents(tmp_path: Path) -> None:
    agents = [rng(seed).normal(size=(7, 9)).astype(np.float32) for seed in (1, 2)]
    for t in (0, 1):
        same(merged(tmp_path, "slerp", agents[0], agents, based=False, t=t), agents[t])
        for per in ("tensor", "row", "column"):
            weights = {"a0": 1 - t, "a1": t}
            same(merged(tmp_path, "nuslerp", agents[0], agents, based=False, weights=weights, per=per), agents[t])


def test_orthogonal_task_vectors_keep_their_length(tmp_path: Path) -> None:
    agents = [[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0]]
    found = merged(tmp_path, "nuslerp", np.zeros(4), agents[:2])
    np.testing.assert_allclose(found, [2**-0.5, 2**-0.5, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(merged(tmp_path, "multislerp", np.zeros(4), agents), [0.5] * 4, rtol=1e-6)
    base = rng().normal(size=4).astype(np.float32)
    same(merged(tmp_path, "model_stock", np.zeros(4), agents), np.zeros(4))
    # one is opposed to the other: t has no value
    same(merged(tmp_path, "model_stock", base, [base + 1, base - 1]), base)


def test_directions_that_cancel_out(tmp_path: Path, messages: Messages) -> None:
    two = [[2.0, 0.0], [-1.0, 0.0]]
    np.testing.assert_allclose(merged(tmp_path, "multislerp", np.zeros(2), two), [0.5, 0])
    three = [[1.0, 0.0], [-0.5, 3**0.5 / 2], [-0.5, -(3**0.5) / 2]]
    with messages.raises(ramerge.WeightsError):
        merged(tmp_path, "multislerp", np.zeros(2), three, eps=1e-3)
    assert np.isfinite(merged(tmp_path, "karcher", np.zeros(2), three)).all()


def test_what_one_agent_moved_by_itself_stays_whole(tmp_path: Path) -> None:
    agents = np.zeros((3, 90), np.float32)
    for place, agent in enumerate(agents):
        agent[30 * place : 30 * place + 30] = rng(place).normal(size=30) * 10.0**place
    np.testing.assert_allclose(merged(tmp_path, "sce", np.zeros(90), list(agents)), agents.sum(0), rtol=1e-6)
    equal = [agents[0], agents[0]]
    same(merged(tmp_path, "sce", np.zeros(90), equal), agents[0])
    same(merged(tmp_path, "sce", np.zeros(90), equal, select_topk=0.99), np.zeros(90))


@pytest.mark.full
@pytest.mark.parametrize("count", [3, 5])
def test_sce_selection_ignores_agent_order(count: int, tmp_path: Path) -> None:
    # steps of bfloat16, in which many elements have the same variance
    base = rng().choice([0.25, 0.5, 1.0, 1.5], 20_000)
    moves = rng(1).integers(-2, 3, (count, 20_000)) * (rng(2).random((count, 20_000)) < 0.3)
    agents = list(base * (1 + moves * 2.0**-7))
    orders = [agents, agents[::-1], [*agents[1:], agents[0]]]
    found = [merged(tmp_path, "sce", base, order, select_topk=0.3) for order in orders]
    assert 0 < np.count_nonzero(found[0] != base.astype(np.float32)) < 0.5 * base.size
    for other in found[1:]:
        np.testing.assert_array_equal(other != base.astype(np.float32), found[0] != base.astype(np.float32))
        np.testing.assert_allclose(other, found[0], rtol=1e-6)


def test_what_breadcrumbs_keep(tmp_path: Path) -> None:
    steps = (rng().permutation(1000) + 1).astype(np.float32)
    found = merged(tmp_path, "breadcrumbs", np.zeros(1000), [steps], density=0.3, gamma=0.05)
    same(found, np.where((steps > 650) & (steps <= 950), steps, 0))
    # as many of the largest as the density leaves
    found = merged(tmp_path, "breadcrumbs", np.zeros(1000), [steps], density=0.9, gamma=0.5)
    same(found, np.where(steps <= 900, steps, 0))
    # a small tensor has no largest to lose
    found = merged(tmp_path, "breadcrumbs", np.zeros(10), [np.arange(10) + 1], density=0.3)
    same(found, [0, 0, 0, 0, 0, 0, 0, 8, 9, 10])
    found = merged(tmp_path, "breadcrumbs", np.zeros(1000), [steps], density=0.3, gamma=0.05, rescale=True)
    assert found.sum() == pytest.approx(steps.sum(), rel=1e-5)
    assert np.count_nonzero(found) == 300


def test_of_a_sparse_agent_arcee_fusion_takes_all(tmp_path: Path) -> None:
    base = rng().normal(size=(8, 50)).astype(np.float32)
    sparse = base + np.where(rng(1).random(base.shape) < 0.2, 0.1, 0).astype(np.float32)
    same(merged(tmp_path, "arcee_fusion", base, [sparse]), sparse)
    dense = base + rng(2).normal(size=base.shape).astype(np.float32)
    taken = merged(tmp_path, "arcee_fusion", base, [dense]) != base
    assert 0 < taken.mean() < 0.25


def kept(folder: Path, **parameters: Any) -> NDArray[np.bool_]:
    """What DELLA keeps of rows whose entries grow with the column."""
    steps = np.tile(np.arange(1, 101, dtype=np.float32), (2000, 1))
    return merged(folder, "della_linear", np.zeros(steps.shape), [steps], **parameters) != 0


def test_large_entries_are_kept_more_often(tmp_path: Path) -> None:
    rates = kept(tmp_path, density=0.5, epsilon=0.4).mean(0)
    np.testing.assert_allclose(rates, np.linspace(0.1, 0.9, 100), atol=0.06)
    assert abs(rates.mean() - 0.5) < 0.005
    assert np.array_equal(kept(tmp_path, density=0.5), kept(tmp_path, density=0.5))
    assert not np.array_equal(kept(tmp_path, density=0.5), kept(tmp_path, density=0.5, seed=1))


def test_without_epsilon_della_is_dare(tmp_path: Path) -> None:
    agents = [rng(seed).normal(size=(70, 31)) for seed in (1, 2)]
    theirs = merged(tmp_path, "dare", np.ones((70, 31)), agents, p=0.75)
    ours = {"density": 0.25, "epsilon": 0, "rescale": "probability"}
    same(merged(tmp_path, "della_linear", np.ones((70, 31)), agents, **ours), theirs)


def test_kept_elements_keep_the_sum(tmp_path: Path) -> None:
    agent = rng().normal(size=(50, 40))
    found = merged(tmp_path, "della_linear", np.zeros(agent.shape), [agent], density=0.3)
    assert np.abs(found).sum() == pytest.approx(np.abs(agent).sum(), rel=1e-5)
    found = merged(tmp_path, "della_linear", np.zeros(agent.shape), [agent], density=0.3, rescale="none")
    assert set(np.unique(found - agent.astype(np.float32))) - set(-agent.astype(np.float32).reshape(-1)) == {0}


@pytest.mark.parametrize(
    "parameters",
    [
        {"density": 0.9},
        {"density": 0.1, "epsilon": 0.1},
        {"density": {"a0": 0.5, "a1": 0.6}, "epsilon": {"a0": 0.1, "a1": 0.4}},
    ],
)
def test_probabilities_lie_between_0_and_1(parameters: dict[str, Any], tmp_path: Path, messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError):
        merged(tmp_path, "della", [0.0], [[1.0], [2.0]], **parameters)


EVERY = {**TASK_VECTORS, **MODELS, "arcee_fusion": {}, "passthrough": {}}


@pytest.mark.parametrize(("method", "parameters"), EVERY.items())
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_by_name(
    method: str, parameters: dict[str, Any], bad: float, tmp_path: Path, messages: Messages
) -> None:
    base, agent = np.ones((3, 4), np.float32), np.full((3, 4), 2, np.float32)
    agent[1, 2] = bad
    agents = [agent] if method == "arcee_fusion" else [agent, base + 0.5]
    with messages.raises(ramerge.WeightsError):
        merged(tmp_path, method, base, agents, **parameters)


@pytest.mark.parametrize(
    ("method", "agents"),
    [
        ("slerp", 3),
        ("nuslerp", 1),
        ("model_stock", 1),
        ("arcee_fusion", 2),
    ],
)
def test_how_many_agents(method: str, agents: int, tmp_path: Path, messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError):
        merged(tmp_path, method, [1.0], [[2.0]] * agents)


@pytest.mark.full  # kernels of all these methods
@pytest.mark.parametrize(("method", "parameters"), [*TASK_VECTORS.items(), *MODELS.items()])
def test_large_tensors_in_any_blocks(method: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    base = rng(0).normal(size=(401, 500))
    for seed, name in enumerate(["base", "a", "b"]):
        moved = rng(seed).normal(size=base.shape) if seed else 0.0
        tensors = {"model.layers.0.w": floats(base + moved, "BF16")}
        write_checkpoint(tmp_path / name, tensors)
    source = recipe(tmp_path, ["a", "b"], method, parameters=parameters)
    run(tmp_path, source, "one", block=1 << 20, workers=1)
    run(tmp_path, source, "many", block=2000, workers=3)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "many/model.safetensors").read_bytes()
