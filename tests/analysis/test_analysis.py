"""Analyses against NumPy on awkward tensors, and what they say about agents that are easy to see through."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ramerge
from ramerge.analysis.analyze import carry_out, plan_analysis
from ramerge.analysis.observe import observe
from ramerge.analysis.parts import EXPONENTS, ULPS
from ramerge.analysis.task_vector_statistics import Tally
from ramerge.analysis.tensor_roles import ROLES, role_of
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.foundation.files import write_files
from ramerge.core.kernels import fixed
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.layers import layer_of
from tests.checkpoints import alike, families, floats, read_checkpoint, recipe, simple, write_checkpoint, write_simple
from tests.messages import Messages
from tests.reference import Stored, encode
from tests.tiers import at_most, some

EPSILONS = (1e-3, 1e-4, 1e-5, 0.0)


# --- the reference ----------------------------------------------------------------------------------------------------


def reference(base: Stored, agents: Sequence[Stored], epsilon: float) -> dict[str, NDArray]:
    """Everything that is counted of one tensor."""
    real = np.float64 if "F64" in {base.dtype, *(agent.dtype for agent in agents)} else np.float32
    b = base.numbers(real).reshape(-1)
    taus = [agent.numbers(real).reshape(-1) - b for agent in agents]
    moved = np.array([np.abs(tau) > real(epsilon) for tau in taus])
    movers, n = moved.sum(0), len(taus)
    total, kept = np.zeros_like(b), np.zeros_like(b)
    for tau, mine in zip(taus, moved, strict=True):
        kept, total = kept + np.where(mine, tau, real(0)), total + tau
    merges = [
        np.where(movers > 0, b + kept / np.maximum(movers, 1).astype(real), b),
        b + total / real(n),
    ]
    merges.append(merges[0])  # the merge that is asked for is RAM
    left = [encode(merged, base.dtype).numbers(real) - b for merged in merges]
    both = moved[:, None] & moved[None]
    agree = both & ((np.array(taus)[:, None] > 0) == (np.array(taus)[None] > 0)) & ~np.eye(n, dtype=bool)[:, :, None]
    by_epsilon = []
    for one in EPSILONS:
        active = np.array([np.abs(tau) > real(one) for tau in taus])
        by_epsilon.append([active.sum(1), (active & (active.sum(0) == 1)).sum(1)])
    return {
        "shared": np.array([[(mine & (movers == c + 1)).sum() for c in range(n)] for mine in moved]),
        "both": both.sum(2),
        "agree": agree.sum(2),
        "by_epsilon": np.array(by_epsilon),
        "exponents": np.array([np.bincount(_exponent_bins(tau), minlength=len(EXPONENTS)) for tau in taus]),
        "ulps": np.array([np.bincount(_ulp_bins(tau, b, base.dtype), minlength=len(ULPS)) for tau in taus]),
        "fates": np.array([[_fates(tau, d, mine) for tau, mine in zip(taus, moved, strict=True)] for d in left]),
        "dots": np.array([[np.dot(s.astype(float), t.astype(float)) for t in taus] for s in taus]),
        "left": np.array(
            [[np.dot(t[m].astype(float), d[m].astype(float)) for t, m in zip(taus, moved, strict=True)] for d in left]
        ),
        "moved": np.array(
            [[np.abs(taus[s][both[s, t]]).astype(float).sum() * (s != t) for t in range(n)] for s in range(n)]
        ),
        "total": np.array([np.abs(tau).astype(float).sum() for tau in taus]),
    }


def _exponents(values: NDArray) -> tuple[NDArray, NDArray]:
    bits = np.abs(values).astype(np.float32).view(np.uint32)
    return (bits >> 23).astype(int), bits == 0


def _exponent_bins(tau: NDArray) -> NDArray:
    exponent, zero = _exponents(tau)
    return np.where(zero, 0, np.clip(exponent - 127 + 40, 0, 47) + 1)


def _ulp_bins(tau: NDArray, b: NDArray, dtype: str) -> NDArray:
    exponent, zero = _exponents(tau)
    mantissa, least = {"BF16": (7, 1), "F16": (10, 113), "F32": (23, 1), "F64": (52, 1)}[dtype]
    unit = np.maximum(_exponents(b)[0], least) - mantissa
    return np.where(zero, 0, np.clip(exponent - unit + 16, 0, 31) + 1)


def _fates(tau: NDArray, d: NDArray, moved: NDArray) -> list[int]:
    gone, opposite = moved & (d == 0), moved & (tau * np.sign(d) < 0)
    enough = np.abs(d) >= np.abs(tau) * tau.dtype.type(0.99)
    rest = moved & ~gone & ~opposite
    return [int(one.sum()) for one in (rest & enough, rest & ~enough, opposite, gone)]


def tally_of(folder: Path, names: Sequence[str], threads: int = 2, block: int | None = None) -> dict[str, Tally]:
    """What is counted of each tensor, in blocks of so many elements."""
    plan, statistics = plan_analysis(
        open_recipe(recipe(folder, names, "ram")), EPSILONS, ramerge.Options(threads=threads)
    )
    assert not plan.findings.problems
    if block is not None:
        plan = replace(plan, resources=replace(plan.resources, block_elements=block))
    known = observe(plan, (statistics,), ThreadExecutor(threads)).results
    return {tensor.name: known[statistics, tensor.part("tensor")] for tensor in plan.tensors if tensor.merged}


# A kernel takes five seconds to compile, for each format and number of agents.
KINDS = [alike(1, "F16"), alike(2, "F32"), alike(2, "F64"), alike(3, "BF16")]


@pytest.mark.parametrize("kinds", [KINDS[-1:], pytest.param(KINDS, marks=pytest.mark.full)], ids=["one", "every"])
@settings(max_examples=at_most(60))
@given(data=st.data())
def test_counts_are_those_of_numpy(
    kinds: Sequence[Any], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base, agents = data.draw(families(kinds))
    folder = tmp_path_factory.mktemp("family")
    write_checkpoint(folder / "base", base)
    names = [f"a{place}" for place in range(len(agents))]
    for name, agent in zip(names, agents, strict=True):
        write_checkpoint(folder / name, agent)
    for name, tally in tally_of(folder, names).items():
        expected = reference(base[name], [agent[name] for agent in agents], 1e-5)
        assert tally.elements == base[name].bits.size
        for key in ("shared", "both", "agree", "by_epsilon", "exponents", "ulps", "fates"):
            np.testing.assert_array_equal(getattr(tally, key), expected[key], key)
        for key in ("dots", "left", "moved", "total"):
            scale = np.abs(expected["total"]).max() ** 2 + np.abs(expected["total"]).max()
            np.testing.assert_allclose(tally.sums[key], expected[key], rtol=1e-6, atol=1e-6 * scale, err_msg=key)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("block", [None, 128])
def test_threads_shards_and_order_change_no_bit(block: int | None, threads: int, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    one = tally_of(tmp_path, names, threads=1, block=block)
    for place, name in enumerate(["base", *names]):
        tensors = read_checkpoint(tmp_path / name)
        order = sorted(tensors, reverse=place % 2 == 0)
        write_checkpoint(tmp_path / "sharded" / name, {key: tensors[key] for key in order}, shards=1 + place % 3)
    many = tally_of(tmp_path / "sharded", names, threads=threads, block=block)
    assert many.keys() == one.keys()
    for name, tally in one.items():
        for key, value in vars(tally).items():
            np.testing.assert_array_equal(getattr(many[name], key), value, f"{name} {key}")


def test_block_size_changes_last_digits_only(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    whole, cut = tally_of(tmp_path, names), tally_of(tmp_path, names, block=128)
    for name, tally in whole.items():
        for key in ("elements", "shared", "both", "agree", "by_epsilon", "exponents", "ulps", "fates"):
            np.testing.assert_array_equal(getattr(cut[name], key), getattr(tally, key), f"{name} {key}")
        for key, sums in tally.sums.items():
            np.testing.assert_allclose(cut[name].sums[key], sums, rtol=1e-6, atol=1e-9, err_msg=f"{name} {key}")
    assert any(not np.array_equal(cut[name].limbs, tally.limbs) for name, tally in whole.items())


@given(values=st.lists(st.floats(-1e30, 1e30), max_size=20))
def test_sums_do_not_depend_on_the_order(values: list[float]) -> None:
    forwards, backwards = (np.zeros((1, fixed.LIMBS), np.int64) for _ in range(2))
    for value in values:
        fixed.encode(np.array([value]), forwards)
    for value in reversed(values):
        fixed.encode(np.array([value]), backwards)
    assert forwards.tobytes() == backwards.tobytes()
    assert fixed.decode(forwards)[0] == pytest.approx(math.fsum(values), rel=1e-15, abs=1e-90)


# --- what it says -----------------------------------------------------------------------------------------------------


def agents_of(tmp_path: Path, *moves: NDArray) -> ramerge.Analysis:
    """An analysis of agents that add these to a base of ones, in float32."""
    name = "model.layers.0.self_attn.q_proj.weight"
    ones = np.ones(moves[0].shape)
    write_checkpoint(tmp_path / "base", {name: floats(ones, "F32")})
    names = [f"a{place}" for place in range(len(moves))]
    for agent, move in zip(names, moves, strict=True):
        write_checkpoint(tmp_path / agent, {name: floats(ones + move, "F32")})
    return ramerge.analyze(recipe(tmp_path, names))


def test_disjoint_agents(tmp_path: Path, messages: Messages) -> None:
    found = agents_of(tmp_path, np.array([0.5, 0.5, 0, 0, 0, 0, 0, 0]), np.array([0, 0, 0.5, 0.25, 0, 0, 0, 0]))
    for agent in found.model.agents:
        assert (agent.active, agent.density, agent.unique_share, agent.rho) == (2, 0.25, 1.0, 0.0)
        assert agent.fates["ram"].retained == 1 and agent.fates["ram"].kept == 2
        assert agent.fates["average"].retained == 0.5 and agent.fates["average"].diluted == 2
    (pair,) = found.model.pairs
    assert (pair.both, pair.jaccard, pair.cosine, pair.expected) == (0, 0.0, 0.0, 0.5)
    messages.check(found.findings[2].text)


def test_alike_agents(tmp_path: Path, messages: Messages) -> None:
    move = np.array([0.5, -0.5, 0.25, 0, 0, 0, 0, 0])
    found = agents_of(tmp_path, move, 2 * move)
    (pair,) = found.model.pairs
    assert (pair.both, pair.jaccard, pair.sign_agreement, pair.magnitude_ratio) == (3, 1.0, 1.0, 0.5)
    assert pair.cosine == pytest.approx(1)
    first, second = found.model.agents
    assert math.isinf(first.rho) and first.lambdas == {"ram+": 1.2, "ram+ official": 1.2, "ram+s": 1.1}
    assert first.fates["ram"].retained == 1.5 and second.fates["ram"].retained == 0.75
    messages.check(found.findings[1].text)
    assert found.to_dict()["model"]["agents"][0]["rho"] is None


def test_opposite_agents(tmp_path: Path) -> None:
    found = agents_of(tmp_path, np.array([0.5, 0.5]), np.array([-0.5, -1.5]))
    first, second = found.model.agents
    assert (first.fates["ram"].lost, first.fates["ram"].flipped, second.fates["ram"].diluted) == (1, 1, 1)


def test_agents_that_equal_the_base(tmp_path: Path, messages: Messages) -> None:
    found = agents_of(tmp_path, np.zeros(4), np.zeros(4))
    messages.check(found.findings[0].text)
    json.loads(found.to_json())


@pytest.mark.full
def test_bf16_hides_small_steps(tmp_path: Path) -> None:
    """Agents in float32 of a base in bf16: what lies below half a last place is lost when a merge is rounded."""
    name = "w"
    write_checkpoint(tmp_path / "base", {name: floats(np.ones(4), "BF16")})
    steps = np.array([2.0**-10, 2.0**-9, 2.0**-7, 0])  # the last place of 1 is 2^-7
    write_checkpoint(tmp_path / "a", {name: floats(1 + steps, "F32")})
    found = ramerge.analyze(recipe(tmp_path, ["a"]))
    (agent,) = found.model.agents
    assert agent.ulps[ULPS.index(-3)] == agent.ulps[ULPS.index(-2)] == agent.ulps[ULPS.index(0)] == agent.ulps[0] == 1
    assert (agent.fates["ram"].lost, agent.fates["ram"].kept) == (2, 1)


def test_parts_add_up_and_rules_hold(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    found = ramerge.analyze(recipe(tmp_path, names))
    assert [layer.name for layer in found.layers] == ["layer 0", "layer 1", "layer 2"]
    assert sum(layer.agents[0].active for layer in found.layers) == found.model.agents[0].active
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    for agent, merged in zip(found.model.agents, record.agents.values(), strict=True):
        assert (agent.active, agent.unique_share, agent.rho, agent.lambdas["ram+"]) == (
            merged.active, merged.unique_share, merged.rho, merged.lambda_,
        )  # fmt: skip
    kept = ramerge.analyze(recipe(tmp_path, names, "ram", rules=[{"match": "*.0.*", "keep": "base"}]))
    assert [layer.name for layer in kept.layers] == ["layer 1", "layer 2"]


def test_tables(tmp_path: Path) -> None:
    from ramerge.analysis.tables import NAMES, csv_files

    found = ramerge.analyze(recipe(tmp_path, write_simple(tmp_path)))
    written = csv_files(found.tables(), tmp_path / "tables")
    write_files(written)
    assert [path.stem for path, _ in written] == list(NAMES)
    with (tmp_path / "tables/agents.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["kind"], first["agent"]) == ("model", "code")
    assert float(first["density"]) == found.model.agents[0].density


@pytest.mark.needs("pandas")
def test_frames(tmp_path: Path) -> None:
    import pandas

    frames = ramerge.analyze(recipe(tmp_path, write_simple(tmp_path))).frames()
    assert isinstance(frames["pairs"], pandas.DataFrame)
    assert len(frames["pairs"].query("kind == 'model'")) == 3


def test_what_cannot_be_analyzed(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    tensors = simple(1)
    next(iter(tensors.values())).bits[0, 0] = 0x7FC0
    write_checkpoint(tmp_path / "nan", tensors)
    with messages.raises(ramerge.WeightsError):
        ramerge.analyze(recipe(tmp_path, [*names[:2], "nan"]))
    with pytest.raises(ramerge.PlanError):
        ramerge.analyze(recipe(tmp_path, [*names, "missing"]))
    with messages.raises(ramerge.RecipeError):
        ramerge.analyze(recipe(tmp_path, names), epsilons=[-1.0])
    with pytest.raises(ramerge.RecipeError, match="bogus"):
        ramerge.analyze(recipe(tmp_path, names, "bogus"))
    source = recipe(tmp_path, names, "linear")
    del source["base"]
    with pytest.raises(ramerge.RecipeError, match="base"):
        ramerge.analyze(source)


@pytest.mark.parametrize(
    ("name", "layer", "role"),
    [
        ("model.embed_tokens.weight", None, "embedding"),
        ("lm_head.weight", None, "head"),
        ("model.norm.weight", None, "norm"),
        ("model.layers.3.input_layernorm.weight", 3, "norm"),
        ("model.layers.3.self_attn.q_proj.weight", 3, "attention q"),
        ("model.layers.3.self_attn.q_norm.weight", 3, "norm"),
        ("model.layers.3.self_attn.k_proj.bias", 3, "attention k"),
        ("model.layers.3.self_attn.o_proj.weight", 3, "attention o"),
        ("model.layers.3.mlp.gate_proj.weight", 3, "mlp gate"),
        ("model.layers.3.mlp.up_proj.weight", 3, "mlp up"),
        ("model.layers.3.mlp.down_proj.weight", 3, "mlp down"),
        ("model.layers.3.mlp.gate.weight", 3, "router"),
        ("model.layers.3.mlp.experts.17.down_proj.weight", 3, "experts down"),
        ("model.layers.3.mlp.shared_expert.up_proj.weight", 3, "experts up"),
        ("model.layers.3.block_sparse_moe.gate.weight", 3, "router"),
        ("model.layers.3.block_sparse_moe.experts.0.w1.weight", 3, "experts gate"),
        ("transformer.h.11.attn.c_attn.weight", 11, "attention qkv"),
        ("transformer.h.11.attn.c_proj.weight", 11, "attention o"),
        ("transformer.h.11.mlp.c_fc.weight", 11, "mlp up"),
        ("transformer.h.11.ln_1.weight", 11, "norm"),
        ("transformer.wte.weight", None, "embedding"),
        ("gpt_neox.layers.2.attention.query_key_value.weight", 2, "attention qkv"),
        ("gpt_neox.layers.2.attention.dense.weight", 2, "attention o"),
        ("gpt_neox.layers.2.mlp.dense_4h_to_h.weight", 2, "mlp down"),
        ("layers.0.attention.wq.weight", 0, "attention q"),
        ("anything", None, "other"),
    ],
)
def test_roles(name: str, layer: int | None, role: str) -> None:
    found = layer_of(name)
    assert ((found.number if found else None), role_of(name)) == (layer, role)
    assert role in ROLES


def test_a_plan_can_be_kept_and_carried_out(tmp_path: Path) -> None:
    plan, statistics = plan_analysis(open_recipe(recipe(tmp_path, write_simple(tmp_path))))
    found = carry_out(plan, statistics, ThreadExecutor(1))
    assert found.peak_memory_bytes > 0 and found.bytes_read == plan.bytes_read


@pytest.mark.full
def test_isolated_regions_and_the_shared_mean_rebuild_ram(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    base = read_checkpoint(tmp_path / "base")
    ramerge.merge(recipe(tmp_path, names, "ram"), tmp_path / "ram")
    rebuilt = {name: tensor.bits.copy() for name, tensor in base.items()}
    for agent in names:
        for region in ("unique", "shared"):
            parameters = {"agent": agent, "region": region}
            ramerge.merge(recipe(tmp_path, names, "isolate", parameters=parameters), tmp_path / f"{agent}-{region}")
        for name, tensor in read_checkpoint(tmp_path / f"{agent}-unique").items():
            own = tensor.bits != base[name].bits
            rebuilt[name][own] = tensor.bits[own]
    for name, tensor in base.items():
        b = tensor.numbers(np.float32)
        taus = [read_checkpoint(tmp_path / f"{agent}-shared")[name].numbers(np.float32) - b for agent in names]
        movers = sum((tau != 0).astype(np.float32) for tau in taus)
        mean = encode(b + sum(taus) / np.maximum(movers, 1), "BF16")
        rebuilt[name] = np.where(movers > 0, mean.bits, rebuilt[name])
        merged = read_checkpoint(tmp_path / "ram")[name]
        assert rebuilt[name].tobytes() == merged.bits.tobytes()


def test_isolate_names_an_agent(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    with messages.raises(ramerge.RecipeError):
        ramerge.plan(recipe(tmp_path, names, "isolate", parameters={"agent": "cod"}))


@pytest.mark.parametrize("dtype", some(["float16", "bfloat16", "float32", "float64"], full=["bfloat16"]))
def test_stochastic_rounding_to_any_dtype_counts_the_same(dtype: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    plain, drawn = (
        ramerge.analyze(recipe(tmp_path, names, dtype=dtype, rounding=rounding))
        for rounding in ("nearest", "stochastic")
    )
    for nearest, stochastic in zip(plain.model.agents, drawn.model.agents, strict=True):
        assert nearest.density == stochastic.density > 0 and nearest.unique_share == stochastic.unique_share
