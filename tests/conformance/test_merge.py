"""What every method holds to, whatever the files, the blocks and the threads: the bytes of the reference."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import annotated_types
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.methods.base import INPUTS
from ramerge.core.methods.ram import AgentCounts
from ramerge.core.methods.registry import METHODS
from tests import reference
from tests.checkpoints import (
    EVERY_KIND,
    KINDS,
    families,
    floats,
    read_checkpoint,
    recipe,
    simple,
    write_checkpoint,
    write_inputs,
    write_simple,
)
from tests.conformance.methods import REPRESENTATIVES, ROWS, by_tier, one_of_each_kind
from tests.plans import planned
from tests.reference import Stored

FULL = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
Tensors = Mapping[str, Stored]


def run(folder: Path, source: dict, out: str, *, block: int = 1 << 19, workers: int = 3) -> ramerge.Record:
    """Merge with blocks of a given size, however small."""
    plan = planned(source, folder / out)
    plan = replace(plan, resources=replace(plan.resources, block_elements=block))
    return execute(plan, ThreadExecutor(workers))[0]


def same(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].bits.shape == tensor.bits.shape, name
        assert found[name].bits.tobytes() == tensor.bits.tobytes(), name


def close(found: Tensors, wanted: Tensors, tolerance: float = 1e-3) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if tensor.is_float:
            left, right = found[name].numbers(np.float64), tensor.numbers(np.float64)
            assert np.allclose(left, right, rtol=2**-7 if tensor.dtype == "BF16" else tolerance, atol=1e-5), name


def importances_for(agents: Mapping[str, Tensors], seed: int = 0) -> dict[str, Tensors]:
    """Importances of every agent: not negative, many 0."""
    made: dict[str, Tensors] = {}
    for place, (agent, tensors) in enumerate(agents.items()):
        rng = np.random.default_rng((seed, place))
        made[agent] = {
            name: floats(np.where(rng.random(t.bits.shape) < 0.3, 0, rng.exponential(1e-4, t.bits.shape)), "F32")
            for name, t in tensors.items()
            if t.is_float
        }
    return made


def inputs_for(tensors: Tensors, place: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Inputs of an agent's matrices, as they are after storing: some with fewer rows than they are wide, or none."""
    rng = np.random.default_rng(place)
    found = {}
    for name, tensor in tensors.items():
        if tensor.is_float and tensor.bits.ndim == 2 and tensor.bits.size:
            rows = rng.integers(0, 3 * tensor.bits.shape[1])
            x = rng.standard_normal((rows, tensor.bits.shape[1])).astype(ml_dtypes.bfloat16).astype(np.float64)
            found[name] = x, np.full(rows, 1 / max(rows, 1), np.float32).astype(np.float64)
    return found


def written(folder: Path, method: str, agents: Mapping[str, Tensors], **more: Any) -> tuple[dict, dict]:
    """A recipe for checkpoints under `folder`, with importances where needed, and what the reference takes besides."""
    source = recipe(folder, list(agents), method, **more)
    if METHODS[method].side is INPUTS:
        recorded = {name: inputs_for(tensors, place) for place, (name, tensors) in enumerate(agents.items())}
        for name, inputs in recorded.items():
            write_inputs(folder / f"{name}-inputs", inputs, folder / name)
            source["agents"][name] = {"model": str(folder / name), "inputs": str(folder / f"{name}-inputs")}
        return source, {"inputs": recorded}
    if not METHODS[method].needs_importance:
        return source, {}
    importances = importances_for(agents)
    for name, tensors in importances.items():
        write_checkpoint(folder / f"{name}-importance", tensors)
        source["agents"][name] = {"model": str(folder / name), "importance": str(folder / f"{name}-importance")}
    return source, {"importances": importances}


def plain(
    folder: Path, method: str, dtype: str = "BF16", *, number: int = 3, **more: Any
) -> tuple[dict, Tensors, dict[str, Tensors], dict]:
    """A recipe for so many ordinary agents, or fewer, the base, the agents, and what the reference takes besides."""
    names = write_simple(folder, dtype=dtype)[:number][: METHODS[method].most]
    agents = {name: read_checkpoint(folder / name) for name in names}
    source, extra = written(folder, method, agents, **more)
    return source, read_checkpoint(folder / "base"), agents, extra


def tossed(
    method: str,
    base: Tensors,
    agents: Mapping[str, Tensors],
    nearest: Tensors,
    seed: int,
    parameters: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> Tensors:
    """What random draws make of a merge that is `nearest` when it is rounded to nearest."""
    whole = ROWS[method].reference(base, agents, "F64", **parameters, **extra)
    exact = {name: whole[name] for name in nearest}
    owned = base if METHODS[method].needs_base else None
    inputs = [
        *([owned] if owned is not None else []),
        *agents.values(),
        *extra.get("importances", {}).values(),
    ]
    return reference.stochastic(exact, owned, inputs, {name: one.dtype for name, one in nearest.items()}, seed)


def as_many_as_it_takes(method: str, agents: list[Any]) -> list[Any]:
    """So many of the agents as the method takes; the first one again if there are too few."""
    fewest, most = METHODS[method].fewest, METHODS[method].most
    return [*agents, *agents[:1] * (fewest - len(agents))][:most]


def test_every_method_has_a_row() -> None:
    assert [name for name in METHODS if name not in ROWS] == []


@pytest.mark.parametrize("kinds", [KINDS, pytest.param(EVERY_KIND, marks=pytest.mark.thorough)], ids=["some", "every"])
@pytest.mark.parametrize("method", by_tier(ROWS))
@settings(max_examples=15)
@given(data=st.data())
def test_bytes_of_the_reference(method: str, kinds: Sequence[Any], data: st.DataObject) -> None:
    row = ROWS[method]
    base, listed = data.draw(families(kinds))
    agents = {f"a{place}": agent for place, agent in enumerate(as_many_as_it_takes(method, listed))}
    # an output of another dtype has a kernel of its own, unless the inputs are brought to one dtype first
    mixed = any(len({model[name].dtype for model in (base, *listed)}) > 2 for name in base)
    dtype = data.draw(st.sampled_from([None, None, *FULL] if mixed or kinds is EVERY_KIND else [None]))
    parameters: dict[str, Any] = {}
    for key, values in row.parameters.items():
        split = key in row.each and data.draw(st.booleans())
        parameters[key] = {name: data.draw(values) for name in agents} if split else data.draw(values)
    try:
        METHODS[method].parameters(**parameters)
    except ValueError:  # such as weights that sum to 0, which a mean refuses
        reject()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "base", base, shards=data.draw(st.integers(1, 3)))
        for agent, tensors in agents.items():
            order = data.draw(st.permutations(list(tensors)))
            shuffled = {key: tensors[key] for key in order}
            write_checkpoint(folder / agent, shuffled, shards=data.draw(st.integers(1, 3)))
        more: dict[str, Any] = {"dtype": dtype} if dtype else {}
        seed = data.draw(st.sampled_from([None, None, 0, -7, 2**40])) if row.exact else None
        if seed is not None:
            more |= {"rounding": "stochastic", "rounding_seed": seed}
        source, extra = written(folder, method, agents, parameters=parameters, **more)
        written_as = reference.dtypes(base, FULL[dtype] if dtype else None)
        merges = {each: row.reference(base, agents, each, **parameters, **extra) for each in {*written_as.values()}}
        wanted = {name: merges[each][name] for name, each in written_as.items()}
        overflows = any(not np.isfinite(t.numbers(np.float64)).all() for t in wanted.values() if t.is_float)
        if overflows:
            with pytest.raises(ramerge.WeightsError, match=r"overflow|cancel out"):
                run(folder, source, "out")
            assert not (folder / "out").exists()
            return
        if seed is not None:
            wanted = tossed(method, base, agents, wanted, seed, parameters, extra)
        block, workers = data.draw(st.sampled_from([1, 3, 8, 1000])), data.draw(st.integers(1, 4))
        run(folder, source, "out", block=block, workers=workers)
        (same if row.exact else close)(read_checkpoint(folder / "out"), wanted)


@pytest.mark.parametrize("method", one_of_each_kind(ROWS))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_layout_of_files_threads_and_blocks_change_nothing(method: str, rounding: str, tmp_path: Path) -> None:
    source, base, agents, _ = plain(tmp_path, method, number=2, rounding=rounding)
    one = run(tmp_path, source, "one", block=7, workers=1)
    for name, tensors in {"base": base, **agents}.items():
        write_checkpoint(tmp_path / "sharded" / name, dict(reversed(tensors.items())), shards=3)
    other, _ = written(tmp_path / "sharded", method, agents, rounding=rounding)
    many = run(tmp_path, other, "many", block=1000, workers=4)
    same(read_checkpoint(tmp_path / "many"), read_checkpoint(tmp_path / "one"))
    assert [agent.values for agent in many.agents.values()] == [agent.values for agent in one.agents.values()]
    assert len(list((tmp_path / "many").glob("*.safetensors"))) == 3


@pytest.mark.parametrize("method", one_of_each_kind(ROWS))
def test_close_to_the_reference_in_float64(method: str, tmp_path: Path) -> None:
    source, base, agents, extra = plain(tmp_path, method, "F32")
    run(tmp_path, source, "out")
    if "ram" in method:
        base = {name: _as_f64(tensor) for name, tensor in base.items()}
        wanted = ROWS[method].reference(base, agents, "F32")
    else:
        wanted = ROWS[method].reference(base, agents, None, np.float64, **extra)
    close(read_checkpoint(tmp_path / "out"), wanted, 1e-5)


def _as_f64(tensor: Stored) -> Stored:
    return floats(tensor.numbers(np.float64), "F64")


def _marks(method: str, dtype: str) -> list[pytest.MarkDecorator]:
    """Every method in BF16 is in the fast tier. F16 is packed as BF16 does, and F64 is read as F32 is, so that one
    formula of each kind shows that they are packed and read right.
    """
    if method in REPRESENTATIVES or dtype == "BF16":
        return []
    return [pytest.mark.full, *([pytest.mark.thorough] if dtype != "F32" else [])]


DTYPES = [pytest.param(*pair, marks=_marks(*pair)) for pair in product(ROWS, FULL.values())]


@pytest.mark.parametrize(("method", "dtype"), DTYPES)
def test_every_dtype(method: str, dtype: str, tmp_path: Path) -> None:
    # the loop over two agents in BF16 is compiled for other tests, too
    source, base, agents, extra = plain(tmp_path, method, dtype, number=2 if dtype == "BF16" else 3)
    run(tmp_path, source, "out", block=100)
    (same if ROWS[method].exact else close)(
        read_checkpoint(tmp_path / "out"), ROWS[method].reference(base, agents, **extra)
    )


@pytest.mark.parametrize("method", one_of_each_kind(ROWS))
def test_float32_agents_of_a_bfloat16_base(method: str, tmp_path: Path) -> None:
    base = simple(0)
    agents = {f"a{place}": simple(place, "F32", moved=0.4) for place in (1, 2)[: METHODS[method].most]}
    for name, tensors in {"base": base, **agents}.items():
        write_checkpoint(tmp_path / name, tensors)
    source, extra = written(tmp_path, method, agents, dtype="bfloat16")
    run(tmp_path, source, "out", block=100)
    (same if ROWS[method].exact else close)(
        read_checkpoint(tmp_path / "out"), ROWS[method].reference(base, agents, "BF16", **extra)
    )


@pytest.mark.parametrize("method", by_tier(name for name in ROWS if METHODS[name].symmetric))
def test_the_order_of_agents_changes_rounding_alone(method: str, tmp_path: Path) -> None:
    source, _, _, _ = plain(tmp_path, method, "F32")
    run(tmp_path, source, "one")
    run(tmp_path, {**source, "agents": dict(reversed(source["agents"].items()))}, "two")
    close(read_checkpoint(tmp_path / "two"), read_checkpoint(tmp_path / "one"), 1e-5)


@pytest.mark.parametrize("method", by_tier(ROWS))
@pytest.mark.parametrize("copies", [1, 3])
def test_identical_agents_and_one_agent(method: str, copies: int, tmp_path: Path) -> None:
    base, agent = simple(0, "F32"), simple(1, "F32", moved=0.4)
    agents = {f"a{place}": agent for place, agent in enumerate(as_many_as_it_takes(method, [agent] * copies))}
    write_checkpoint(tmp_path / "base", base)
    for name in agents:
        write_checkpoint(tmp_path / name, agent)
    source, extra = written(tmp_path, method, agents)
    run(tmp_path, source, "out")
    found = read_checkpoint(tmp_path / "out")
    (same if ROWS[method].exact else close)(found, ROWS[method].reference(base, agents, **extra))
    if method in ("ram", "linear"):
        close(found, agent)


@pytest.mark.parametrize("method", by_tier(ROWS))
def test_every_bound_of_every_parameter(method: str, tmp_path: Path) -> None:
    source, *_ = plain(tmp_path, method)
    for name, field in METHODS[method].parameters.model_fields.items():
        inside, outside = _bounds(name, field, each=name in ROWS[method].each)
        for value in inside:
            assert ramerge.plan({**source, "parameters": {name: value}}).problems == (), (name, value)
        for value in outside:
            with pytest.raises(ramerge.RecipeError, match=name):
                ramerge.plan({**source, "parameters": {name: value}})


def _bounds(name: str, field: FieldInfo, *, each: bool) -> tuple[list[Any], list[Any]]:
    """Values at the bounds of a parameter, and just beyond; of one that every agent may have if `each`."""
    by_agent = {
        "density": ([0, 1, {"code": 0.2, "tool": 1.0, "memory": 0.3}], [-0.1, 1.1]),
        "gamma": ([0, 1, {"code": 0.1, "tool": 1.0, "memory": 0.2}], [-0.1, 1.1]),
        "epsilon": ([0, 0.49, {"code": 0.1, "tool": 0.0, "memory": 0.2}], [-0.1, 1.1]),
        "p": ([0, 0.99], [1, -0.1]),
    }
    if name == "epsilon" and not each:
        inside, outside = [0, 1e-3, {"relative": 0}, {"relative": 0.5}], [-0.1, "much", True, None, [1], float("nan")]
        return inside, [*outside, {}, {"relative": -0.1}, {"relative": "much"}, {"code": 0.1}, {"relative": 1, "x": 1}]
    if name == "agent":
        return [None, "code"], ["nobody", "", 3, ["code"]]
    if not field.metadata and name in by_agent:
        inside, outside = by_agent[name]
        return inside, [*outside, "much", True, {"code": 0.1}, {"code": 0.1, "tool": 0.1, "memory": 0.1, "nobody": 0.1}]
    if name in ("steps", "scores") and field.annotation is not int:
        each = {"code": 3, "tool": 1.5, "memory": 2}
        wrong = [{**each, "nobody": 4}, {"code": 1}, {**each, "tool": "much"}, {**each, "tool": float("nan")}, 1]
        return [None, each], wrong
    if name in ("at", "half_life"):
        return [None, 100, 0.5], ["nonsense", [1], float("nan"), float("inf"), *([0] if name == "half_life" else [])]
    inside, outside = [], ["nonsense", None, [1]]
    if field.annotation is float:
        outside += [float("nan"), float("inf"), float("-inf")]
    for rule in field.metadata:
        if isinstance(rule, annotated_types.Ge):
            inside, outside = [*inside, rule.ge], [*outside, rule.ge - 0.01]
        if isinstance(rule, annotated_types.Gt):
            outside = [*outside, rule.gt]
        if isinstance(rule, annotated_types.Le):
            inside, outside = [*inside, rule.le], [*outside, rule.le + 0.01]
    return inside, outside


def test_ram_plus_without_strength_is_ram(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names, "ram"), tmp_path / "ram")
    ramerge.merge(recipe(tmp_path, names, "ram+", parameters={"r": 0.0}), tmp_path / "plus")
    assert (tmp_path / "ram/model.safetensors").read_bytes() == (tmp_path / "plus/model.safetensors").read_bytes()


def test_statistics_are_those_of_the_whole_model(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    base, agents = simple(0), [simple(place, moved=moved) for place, moved in ((1, 0.05), (2, 0.4), (3, 0.5))]
    counts = sum(reference.count(base[name], [agent[name] for agent in agents], 1e-5) for name in base)
    for method in ("ram", "ram+", "ram+s"):
        record = ramerge.merge(recipe(tmp_path, names, method), tmp_path / method)
        for agent, (active, unique), scale in zip(
            record.agents.values(), counts.T.tolist(), reference.lambdas(counts, method), strict=True
        ):
            assert (agent.total, agent.active, agent.unique) == (3 * 640, active, unique)
            assert agent.shared == active - unique
            assert agent.density == active / 1920
            assert agent.rho == (active - unique) / unique
            assert agent.lambda_ == scale


@pytest.mark.parametrize(("unique", "rho", "scale"), [(0.063, 14.9, 1.200), (0.408, 1.45, 1.145), (0.475, 1.11, 1.111)])
def test_known_answers_of_the_paper(unique: float, rho: float, scale: float) -> None:
    counts = AgentCounts(10_000_000, 1_000_000, round(unique * 1_000_000))
    assert counts.rho == pytest.approx(rho, rel=5e-3)
    assert METHODS["ram+"].parameters().rescaling(counts) == pytest.approx(scale, abs=5e-4)


def test_ratios_at_the_edges() -> None:
    all_shared, nothing = AgentCounts(10, 4, 0), AgentCounts(10, 0, 0)
    assert all_shared.rho == float("inf")
    assert nothing.rho == 0.0
    for name, shared_scale in (("ram", 1.0), ("ram+", 1.2), ("ram+s", 1.1)):
        parameters = METHODS[name].parameters()
        assert parameters.rescaling(all_shared) == pytest.approx(shared_scale)
        assert parameters.rescaling(nothing) == 1.0


def test_the_official_preset_clips_at_one(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    record = ramerge.merge(recipe(tmp_path, names, "ram+", preset="official"), tmp_path / "out")
    assert {**record.parameters} == {**record.parameters, "epsilon": 1e-5, "r": 0.2, "alpha": 1.0, "scope": "model"}
    assert next(iter(record.agents.values())).rho > 1
    assert next(iter(record.agents.values())).lambda_ == 1.2
