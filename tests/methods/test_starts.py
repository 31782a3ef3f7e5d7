"""Methods that start from another method's result: what comes of it, and what bad names and parameters get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.methods.base import Layer
from ramerge.core.methods.other_result import SUMS, OtherResult
from ramerge.core.methods.registry import METHODS

KEY = "model.layers.0.mlp.up_proj.weight"
RNG = np.random.default_rng(0)
BASE = {KEY: RNG.standard_normal((12, 8)).astype(np.float32), "norm": np.ones(8, np.float32)}
AGENTS = {
    name: {key: one + (0.1 * RNG.standard_normal(one.shape) * (RNG.random(one.shape) < 0.5)).astype(np.float32)
           for key, one in BASE.items()}
    for name in ("code", "tool", "search")
}  # fmt: skip
ROWS = {name: RNG.integers(-3, 4, (5, 8)).astype(np.float32) for name in AGENTS}


def merged(method: str, recorded: str = KEY, **parameters: Any) -> dict[str, np.ndarray]:
    agents: dict[str, Any] = dict(AGENTS)
    if method == "regmean":
        agents = {name: {"model": one, "inputs": {recorded: ROWS[name]}} for name, one in AGENTS.items()}
    return dict(ramerge.merge_state_dicts(BASE, agents, method, **parameters))


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("ram+", {"r": 0.3}),
        ("ties", {"density": 0.3, "weights": {"code": 1.0, "tool": 0.5, "search": 2.0}}),
        ("core+", {}),
        ("swudi", {"exp_time": 20.0}),
        ("dare", {"seed": 3}),
    ],
)
def test_large_ridge_approaches_the_start(method: str, given: dict[str, Any]) -> None:
    wanted = merged(method, **given)
    far = merged("regmean", towards=method, prior=given, ridge=1e9)
    near = merged("regmean", towards=method, prior=given, ridge=0.01)
    half = merged("regmean", towards=method, prior=given, ridge=1e9, share=0.5)
    assert far["norm"].tobytes() == wanted["norm"].tobytes()  # nothing was recorded
    assert np.allclose(far[KEY], wanted[KEY], atol=1e-6)
    assert np.abs(near[KEY] - wanted[KEY]).max() > 1e-3
    for key, base in BASE.items():
        assert np.allclose(half[key], base + (wanted[key] - base) / 2, atol=1e-6)


def test_what_another_method_must_count_is_counted() -> None:
    plan = {"method": "regmean", "parameters": {"towards": "ram+", "prior": {"r": 0.3}}}
    assert METHODS["regmean"].statistics(METHODS["regmean"].parameters(**plan["parameters"]), tuple(AGENTS)) == METHODS[
        "ram+"
    ].statistics(METHODS["ram+"].parameters(r=0.3), tuple(AGENTS))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"towards": "ramm"}, "must be sum, mean, zero or the name of a method, not 'ramm'"),
        ({"towards": "fisher"}, "fisher cannot be started from"),
        ({"towards": "linear"}, "linear cannot be started from"),
        ({"towards": "ram+", "prior": {"rr": 1}}, "prior: of ram+: rr: "),
        ({"towards": "ties", "prior": {"density": 2.0}}, "prior: of ties: density: "),
        ({"prior": {"r": 1}}, "sum takes none, so remove r"),
        ({"towards": "ties", "prior": {"weights": {"code": 1.0}}}, "prior.weights: has no value for tool, search"),
        ({"towards": "ties", "prior": {"weights": {"code": 1.0, "tools": 1.0}}}, "'tools'"),
    ],
)
def test_bad_starts_are_refused(parameters: dict[str, Any], text: str, tmp_path: Path) -> None:
    agents = {name: {"model": str(tmp_path), "inputs": str(tmp_path)} for name in AGENTS}
    recipe = {"method": "regmean", "base": str(tmp_path), "agents": agents, "parameters": parameters}
    with pytest.raises(ramerge.RecipeError) as caught:
        ramerge.plan(recipe)
    assert text in str(caught.value)


def test_equal_agents_are_calibrated_to_themselves() -> None:
    agents = dict.fromkeys(("one", "two", "three"), AGENTS["code"])
    found = dict(ramerge.merge_state_dicts(BASE, agents, "svc"))
    assert np.allclose(found[KEY], AGENTS["code"][KEY], atol=1e-6)
    assert np.allclose(found["norm"], BASE["norm"] + 3 * (AGENTS["code"]["norm"] - BASE["norm"]), atol=1e-6)


def test_what_agents_do_not_share_is_not_scaled() -> None:
    base = {KEY: np.zeros((4, 6), np.float32)}
    agents = {}
    for place, name in enumerate(("one", "two")):
        tau = np.zeros((4, 6), np.float32)
        tau[2 * place : 2 * place + 2, 3 * place : 3 * place + 3] = RNG.standard_normal((2, 3))
        agents[name] = {KEY: tau}
    found = dict(ramerge.merge_state_dicts(base, agents, "svc"))
    assert np.allclose(found[KEY], agents["one"][KEY] + agents["two"][KEY], atol=1e-6)


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_needs_nothing(name: str) -> None:
    other, layer = OtherResult(name, {}), Layer(KEY, (12, 8))
    assert (other.statistics(("a", "b")), other.unit(0.5, layer), other.scratch(layer, 2)) == ((), 1, 0)
    factor = {"sum": 0.5, "mean": 0.25, "zero": 0.0}[name]
    assert other.start(0.5, ("a", "b"), {})([np.ones(3), 3 * np.ones(3)]).tolist() == [4 * factor] * 3


def test_another_method_needs_what_it_needs_alone() -> None:
    other, layer = OtherResult("swudi", {}), Layer(KEY, (12, 8))
    alone = METHODS["swudi"]
    parameters = alone.parameters()
    assert other.unit(1.0, layer) == alone.unit(layer, parameters) == 12 * 8
    assert other.scratch(layer, 3) > alone.scratch(layer, parameters, 3) > 0
    assert OtherResult("ram+", {}).statistics(("a", "b")) == METHODS["ram+"].statistics(
        METHODS["ram+"].parameters(), ("a", "b")
    )


def test_paper_preset_averages_without_inputs() -> None:
    found = dict(
        ramerge.merge_state_dicts(
            BASE,
            {name: {"model": one, "inputs": {KEY: ROWS[name]}} for name, one in AGENTS.items()},
            method="regmean",
            recipe={"preset": "paper"},
        )
    )
    mean = {key: np.mean([one[key] for one in AGENTS.values()], axis=0) for key in BASE}
    assert np.allclose(found["norm"], mean["norm"], atol=1e-6)
    assert np.abs(found[KEY] - mean[KEY]).max() > 1e-3
