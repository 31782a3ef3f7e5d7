"""What every method holds to, whatever the files, the blocks and the threads: the bytes of the reference."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.executors.threads import ThreadExecutor
from ramerge.methods import METHODS
from ramerge.planning.build import make_plan
from ramerge.run import execute
from tests import reference
from tests.checkpoints import (
    families,
    read_checkpoint,
    recipe,
    simple,
    write_checkpoint,
    write_simple,
)
from tests.reference import Stored

FULL = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}


def run(folder: Path, source: dict, out: str, *, block: int = 1 << 19, workers: int = 3) -> ramerge.Record:
    """Merge with blocks of a given size, however small."""
    from dataclasses import replace

    plan = make_plan(source, folder / out)
    plan = replace(plan, resources=replace(plan.resources, block_elements=block))
    return execute(plan, ThreadExecutor(workers))


def expected(base: dict, agents: list[dict], method: str, dtype: str | None, parameters: dict) -> dict[str, Stored]:
    epsilon, scope = parameters.get("epsilon", 1e-5), parameters.get("scope", "model")
    rescale = {key: value for key, value in parameters.items() if key in ("r", "alpha")}

    def group(name: str) -> str:
        return {"model": "", "layer": name.rsplit(".", 1)[0], "tensor": name}[scope]

    counts: dict[str, np.ndarray] = {}
    for name, tensor in base.items():
        if tensor.is_float:
            found = reference.count(tensor, [agent[name] for agent in agents], epsilon)
            counts[group(name)] = counts.get(group(name), np.zeros_like(found)) + found
    return {
        name: reference.merge(
            tensor,
            [agent[name] for agent in agents],
            reference.lambdas(counts[group(name)], method, **rescale),
            epsilon,
            dtype or tensor.dtype,
        )
        if tensor.is_float
        else tensor
        for name, tensor in base.items()
    }


def same(found: dict[str, Stored], wanted: dict[str, Stored]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].bits.shape == tensor.bits.shape, name
        assert found[name].bits.tobytes() == tensor.bits.tobytes(), name


@pytest.mark.parametrize("method", list(METHODS))
@settings(max_examples=25)
@given(data=st.data())
def test_bytes_of_the_reference(method: str, data: st.DataObject) -> None:
    base, agents = data.draw(families())
    dtype = data.draw(st.sampled_from([None, None, *FULL]))
    parameters = {"epsilon": data.draw(st.sampled_from([1e-5, 0.0, 1e-3]))}
    if method != "ram":
        parameters |= {"r": data.draw(st.sampled_from([0.0, 0.1, 0.37]))}
        parameters |= {"scope": data.draw(st.sampled_from(["model", "layer", "tensor"]))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "base", base, shards=data.draw(st.integers(1, 3)))
        for place, agent in enumerate(agents):
            order = data.draw(st.permutations(list(agent)))
            shuffled = {key: agent[key] for key in order}
            write_checkpoint(folder / f"a{place}", shuffled, shards=data.draw(st.integers(1, 3)))
        more = {"dtype": dtype} if dtype else {}
        source = recipe(folder, [f"a{place}" for place in range(len(agents))], method, parameters=parameters, **more)
        wanted = expected(base, agents, method, FULL[dtype] if dtype else None, parameters)
        overflows = any(np.isinf(tensor.numbers(np.float64)).any() for tensor in wanted.values() if tensor.is_float)
        if overflows:
            with pytest.raises(ramerge.WeightsError, match="overflow"):
                run(folder, source, "out")
            assert not (folder / "out").exists()
            return
        block, workers = data.draw(st.sampled_from([1, 3, 8, 1000])), data.draw(st.integers(1, 4))
        run(folder, source, "out", block=block, workers=workers)
        same(read_checkpoint(folder / "out"), wanted)


@pytest.mark.parametrize("method", list(METHODS))
def test_layout_of_files_threads_and_blocks_change_nothing(method: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    run(tmp_path, recipe(tmp_path, names, method), "one", block=7, workers=1)
    for place, name in enumerate(["base", *names]):
        tensors = simple(place, moved=[0.0, 0.05, 0.4, 0.5][place])
        write_checkpoint(tmp_path / "sharded" / name, dict(reversed(tensors.items())), shards=3)
    other = recipe(tmp_path / "sharded", names, method)
    run(tmp_path, other, "many", block=1000, workers=4)
    same(read_checkpoint(tmp_path / "many"), read_checkpoint(tmp_path / "one"))
    assert len(list((tmp_path / "many").glob("*.safetensors"))) == 3


def test_ram_plus_without_strength_is_ram(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names, "ram"), tmp_path / "ram")
    ramerge.merge(recipe(tmp_path, names, "ram+", parameters={"r": 0.0}), tmp_path / "plus")
    assert (tmp_path / "ram/model.safetensors").read_bytes() == (tmp_path / "plus/model.safetensors").read_bytes()


def test_statistics_are_those_of_the_whole_model(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    base, agents = simple(0), [simple(place, moved=moved) for place, moved in ((1, 0.05), (2, 0.4), (3, 0.5))]
    counts = sum(reference.count(base[name], [agent[name] for agent in agents], 1e-5) for name in base)
    for method in METHODS:
        record = ramerge.merge(recipe(tmp_path, names, method), tmp_path / method)
        for agent, (active, unique), scale in zip(
            record.statistics, counts.T.tolist(), reference.lambdas(counts, method), strict=True
        ):
            assert (agent.total, agent.active, agent.unique) == (3 * 640, active, unique)
            assert agent.shared == active - unique
            assert agent.density == active / 1920
            assert agent.rho == (active - unique) / unique
            assert agent.lambda_ == scale


@pytest.mark.parametrize(("unique", "rho", "scale"), [(0.063, 14.9, 1.200), (0.408, 1.45, 1.145), (0.475, 1.11, 1.111)])
def test_known_answers_of_the_paper(unique: float, rho: float, scale: float) -> None:
    from ramerge.methods import AgentCounts
    from ramerge.methods import rho as ratio

    counts = AgentCounts(10_000_000, 1_000_000, round(unique * 1_000_000))
    method = METHODS["ram+"]
    assert ratio(counts) == pytest.approx(rho, rel=5e-3)
    assert method.rescale(counts, method.parameters()) == pytest.approx(scale, abs=5e-4)


def test_ratios_at_the_edges() -> None:
    from ramerge.methods import AgentCounts
    from ramerge.methods import rho as ratio

    all_shared, nothing = AgentCounts(10, 4, 0), AgentCounts(10, 0, 0)
    assert ratio(all_shared) == float("inf")
    assert ratio(nothing) == 0.0
    for name, shared_scale in (("ram", 1.0), ("ram+", 1.2), ("ram+s", 1.1)):
        method = METHODS[name]
        assert method.rescale(all_shared, method.parameters()) == pytest.approx(shared_scale)
        assert method.rescale(nothing, method.parameters()) == 1.0


def test_the_official_preset_clips_at_one(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    record = ramerge.merge(recipe(tmp_path, names, "ram+", preset="official"), tmp_path / "out")
    assert record.parameters == {"epsilon": 1e-5, "r": 0.2, "alpha": 1.0, "scope": "model"}
    assert record.statistics[0].rho > 1
    assert record.statistics[0].lambda_ == 1.2
