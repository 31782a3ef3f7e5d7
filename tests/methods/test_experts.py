"""Experts that one tensor stacks, and weights stored as (in, out): solved for as if each expert had its own tensors."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.core.methods.registry import METHODS
from ramerge.core.tensors.orientation import orientation_of
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.methods.test_spectral import SPECTRAL

AGENTS = ["a", "b"]
SOLVERS = (*SPECTRAL, "wudi", "svc", "core+")
EXPERTS, HIDDEN, INNER = 3, 10, 6
MODULE = "model.layers.0.mlp.experts"


def weights(seed: int) -> dict[str, NDArray]:
    """Matrices of each expert as (out, in), gate and up as one: the base's, and an agent's for other seeds than 0."""
    shapes = {"gate_up_proj": (EXPERTS, 2 * INNER, HIDDEN), "down_proj": (EXPERTS, HIDDEN, INNER)}
    start, rng = np.random.default_rng(0), np.random.default_rng(seed)
    found = {key: start.standard_normal(shape) for key, shape in shapes.items()}
    return {key: value + bool(seed) * 1e-3 * rng.standard_normal(value.shape) for key, value in found.items()}


def merged(folder: Path, method: str, models: Mapping[str, Mapping[str, NDArray]], config: object = None) -> dict:
    """The update of each tensor."""
    for name, tensors in models.items():
        values = {key: floats(value, "F64") for key, value in tensors.items()}
        write_checkpoint(folder / name, values, config=config or {"model_type": "x"})
    ramerge.merge(recipe(folder, AGENTS, method), folder / "out")
    found = read_checkpoint(folder / "out")
    return {key: found[key].numbers(np.float64) - value for key, value in models["base"].items()}


def three(arranged) -> dict[str, dict[str, NDArray]]:
    return {name: arranged(weights(seed)) for seed, name in enumerate(("base", *AGENTS))}


def stacked(found):
    return {f"{MODULE}.{key}": value for key, value in found.items()}


def turned(found):
    return {f"{MODULE}.{key}": value.swapaxes(1, 2).copy() for key, value in found.items()}


def named(found):
    return {f"{MODULE}.{e}.{key}.weight": value[e] for key, value in found.items() for e in range(EXPERTS)}


@pytest.mark.parametrize("method", SOLVERS)
def test_experts_are_solved_for_however_they_are_stored(method: str, tmp_path: Path) -> None:
    of_names = merged(tmp_path / "named", method, three(named))
    of_stacks = merged(tmp_path / "stacked", method, three(stacked))
    of_turned = merged(tmp_path / "turned", method, three(turned))
    mean = {key: sum(weights(seed)[key] - weights(0)[key] for seed in (1, 2)) / 2 for key in weights(0)}
    for key, value in mean.items():
        wanted = np.array([of_names[f"{MODULE}.{e}.{key}.weight"] for e in range(EXPERTS)])
        assert np.abs(wanted - value).max() > 1e-4  # which is not the mean
        assert np.abs(of_stacks[f"{MODULE}.{key}"] - wanted).max() < 1e-9
        assert np.abs(of_turned[f"{MODULE}.{key}"].swapaxes(1, 2) - wanted).max() < 1e-9


def test_a_stack_of_experts_counts_as_one_tensor(tmp_path: Path) -> None:
    merged(tmp_path, "swudi", three(stacked))
    rules = [{"match": "*.down_proj", "take": "b"}, {"match": "*.gate_up_proj", "parameters": {"scale": 0.5}}]
    plan = ramerge.plan({**recipe(tmp_path, AGENTS, "swudi"), "rules": rules}).to_dict()
    assert [rule["tensors"] for rule in plan["rules"]] == [1, 1]
    assert (plan["tensors"], plan["merged_tensors"], plan["whole_matrices"]) == (2, 1, EXPERTS)
    assert plan["matrix_parameters"] == EXPERTS * 2 * INNER * HIDDEN


@pytest.mark.parametrize("method", [*SOLVERS, "core"])
def test_gpt2_layers_are_solved_transposed(method: str, tmp_path: Path) -> None:
    key = "h.0.mlp.c_fc.weight"
    plain = merged(tmp_path / "x", method, three(lambda found: {key: found["gate_up_proj"][0]}))
    of_gpt2 = three(lambda found: {key: found["gate_up_proj"][0].T.copy()})
    assert np.abs(merged(tmp_path / "y", method, of_gpt2, {"model_type": "gpt2"})[key].T - plain[key]).max() < 1e-9


@pytest.mark.parametrize("method", ["swudi", "regmean", "aim"])
def test_in_memory_shapes_tell_what_gpt2_is(method: str) -> None:
    """Without a configuration: a square weight, whose own shape says nothing, and recorded inputs of it."""
    rng = np.random.default_rng(0)
    plain = three(lambda found: {"h.0.mlp.c_proj.weight": found["gate_up_proj"][0, :HIDDEN]})
    for tensors in plain.values():
        tensors["h.0.attn.c_attn.weight"] = np.ones((3 * HIDDEN, HIDDEN))
    of_gpt2 = {name: {key: value.T for key, value in tensors.items()} for name, tensors in plain.items()}
    inputs = {name: {"h.0.mlp.c_proj.weight": rng.standard_normal((20, HIDDEN))} for name in AGENTS}

    def result(models: Mapping[str, Mapping[str, NDArray]]) -> NDArray:
        sides = {name: {"inputs": inputs[name]} if METHODS[method].side else {} for name in AGENTS}
        agents = {name: {"model": models[name], **sides[name]} for name in AGENTS}
        found = ramerge.merge_state_dicts(models["base"], agents, method)
        return found["h.0.mlp.c_proj.weight"] - models["base"]["h.0.mlp.c_proj.weight"]

    total = sum(plain[name]["h.0.mlp.c_proj.weight"] - plain["base"]["h.0.mlp.c_proj.weight"] for name in AGENTS)
    assert np.abs(result(plain) - total).max() > 1e-5
    assert np.abs(result(of_gpt2).T - result(plain)).max() < 1e-9


@pytest.mark.parametrize("method", ["regmean", "aim"])
def test_memory_inputs_fit_stacked_experts(method: str) -> None:
    rng = np.random.default_rng(0)
    widths = {"gate_up_proj": HIDDEN, "down_proj": INNER}
    rows = {n: {key: rng.standard_normal((20, d)) for key, d in widths.items()} for n in AGENTS}

    def result(arranged: Callable) -> dict[str, NDArray]:
        models = three(arranged)
        inputs = {n: {f"{MODULE}.{key}[1]": value for key, value in rows[n].items()} for n in AGENTS}
        agents = {name: {"model": models[name], "inputs": inputs[name]} for name in AGENTS}
        return ramerge.merge_state_dicts(models["base"], agents, method)

    plain, transposed = result(stacked), result(turned)
    for key in plain:
        assert np.abs(plain[key] - transposed[key].swapaxes(1, 2)).max() < 1e-9


@pytest.mark.parametrize("method", [*SOLVERS, "core"])
@pytest.mark.parametrize("shape", [(12, 7), (9, 9)])
def test_which_methods_need_no_orientation(method: str, shape: tuple[int, int], tmp_path: Path) -> None:
    key = "model.layers.0.mlp.up_proj.weight"
    rng = np.random.default_rng(0)
    models = {
        name: {key: np.zeros(shape) if name == "base" else rng.standard_normal(shape)} for name in ["base", "a", "b"]
    }
    plain = merged(tmp_path / "x", method, models)[key]
    of_transposed = {name: {key: tensors[key].T.copy()} for name, tensors in models.items()}
    other = merged(tmp_path / "y", method, of_transposed)[key].T
    assert (np.abs(plain - other).max() < 1e-9) == METHODS[method].is_transposable


@pytest.mark.parametrize(
    ("shapes", "config", "transposed"),
    [
        ({"gate_up_proj": (8, 12, 10), "down_proj": (8, 10, 6)}, {}, False),  # Qwen3.5
        ({"gate_up_proj": (8, 10, 12), "down_proj": (8, 6, 10)}, {}, True),  # Llama 4
        ({"gate_up_proj": (8, 10, 20), "down_proj": (8, 10, 10)}, {}, True),  # gpt-oss: one of them square
        ({"gate_up_proj": (8, 10, 10), "down_proj": (8, 10, 5)}, {}, False),
        ({"gate_up_proj": (8, 10, 12)}, {}, None),
        ({"gate_up_proj": (8, 10, 12)}, {"hidden_size": 10}, True),
        ({"gate_up_proj": (8, 10, 12)}, {"text_config": {"hidden_size": 12}}, False),
        ({"up_proj": (8, 6, 10), "down_proj": (8, 10, 6)}, {}, None),
        ({"gate_proj": (8, 6, 10), "up_proj": (8, 6, 10), "down_proj": (8, 10, 6)}, {"hidden_size": 10}, False),
        ({"w1": (8, 10, 6), "w3": (8, 10, 6), "w2": (8, 6, 10)}, {"hidden_size": 10}, True),
        ({"gate_proj": (8, 6, 6), "up_proj": (8, 6, 6), "down_proj": (8, 6, 6)}, {"hidden_size": 6}, None),
        ({"input_linear": (8, 12, 10), "output_linear": (8, 10, 6)}, {"hidden_size": 10}, False),  # Granite
        ({"input_linear": (8, 6, 10), "output_linear": (8, 10, 6)}, {"hidden_size": 10}, False),  # JetMoE
        ({"fc1": (8, 10, 12), "fc2": (8, 6, 10)}, {}, True),  # Aria
        ({"gate_up_proj": (8, 12, 10), "down_proj": (8, 10, 7)}, {"hidden_size": 10}, None),  # they contradict
    ],
)
@pytest.mark.parametrize("ending", ["", ".weight"])
def test_shapes_tell_the_orientation(shapes, config, transposed, ending) -> None:
    named = {f"{MODULE}.{key}{ending}": shape for key, shape in shapes.items()}
    assert orientation_of(named, config).stacks == dict.fromkeys(named, transposed)


def test_what_is_no_stack_of_experts() -> None:
    shapes = {
        "model.layers.0.conv1d.weight": (8, 1, 4),
        "model.layers.0.mlp.up_proj.weight": (8, 4),
        "model.layers.0.mlp.experts.gate_up_proj_bias": (8, 4),
        "model.layers.0.mlp.experts.down_proj": (8, 0, 4),
        "projector.down_proj": (8, 4, 4),
    }
    assert orientation_of(shapes, {"hidden_size": 4}).stacks == {}


@pytest.mark.parametrize("method", ["swudi", "core+", "tsvm", "core", "ram"])
def test_plan_warns_of_unsolved_experts(method: str, tmp_path: Path) -> None:
    key = f"{MODULE}.down_proj"  # whose shape alone says nothing
    values = {"model.norm.weight": np.ones(20)}
    for name in ("base", *AGENTS):
        tensors = {key: np.ones((3, 10, 6)), **values}
        write_checkpoint(tmp_path / name, {one: floats(value, "F32") for one, value in tensors.items()})
    plan = ramerge.plan(recipe(tmp_path, AGENTS, method))
    told = [text for text in plan.warnings if "does not solve for the matrices" in text]
    assert len(told) == (method in ("swudi", "core+"))
    assert all(key in text and "90% of the parameters" in text and "which side" in text for text in told)


def test_all_solvers_are_tested() -> None:
    from ramerge.core.methods.base import Layer

    expert = Layer(f"{MODULE}.down_proj[0]", (HIDDEN, INNER))
    found = {name for name in METHODS if METHODS[name].solves(expert, METHODS[name].parameters())}
    assert found == {*SOLVERS, "core"}
