"""The forecast of `core`: against singular value decompositions, and where the answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import ramerge
from ramerge.analysis.cores import sums_of
from ramerge.analysis.results import read_analysis
from ramerge.core.methods.core import CoreParameters
from tests.checkpoints import floats, write_checkpoint
from tests.commands import ramerge as command
from tests.reference import core_sum

WEIGHT = "model.layers.0.mlp.up_proj.weight"
OTHER = "model.layers.1.mlp.up_proj.weight"


def slow(taus: list[np.ndarray], rank: int, power: float) -> np.ndarray:
    """Of each agent n b and n a, by whole decompositions."""
    found = []
    for tau in taus:
        u, s, vt = np.linalg.svd(tau, full_matrices=False)
        u, s, v = u[:, :rank], s[:rank], vt[:rank].T
        g, own, all_of_them = np.outer(s, s) ** (2 * power), u.T @ tau @ v, u.T @ sum(taus) @ v
        g /= np.sum(g * own**2)
        found.append(np.sum(tau**2) * np.array([np.sum(g * all_of_them * own), np.sum(g * all_of_them**2)]))
    return np.transpose(found)


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 20), st.sampled_from([0.5, 0.75, 1.0]))
def test_sums_are_those_of_whole_decompositions(seed: int, agents: int, rank: int, power: float) -> None:
    draws = np.random.default_rng(seed)
    taus = [draws.normal(size=(12, 20)) * 10.0 ** draws.integers(-3, 3) for _ in range(agents)]
    kept = max(range(agents), key=lambda place: np.sum(taus[place] ** 2))
    taus = [tau for tau in taus if np.sum(tau**2) > 1e-11 * np.sum(taus[kept] ** 2)]
    found = sums_of(WEIGHT, taus, CoreParameters(rank=rank, power=power))
    assert_allclose(found[0], [np.sum(tau**2) for tau in taus])
    assert_allclose(found[2:], slow(taus, rank, power), rtol=1e-6)
    weights = found[1] / found[0]
    assert_allclose(sum(w * tau for w, tau in zip(weights, taus, strict=True)), core_sum(taus, rank, power), atol=1e-4)


def write(folder: Path, *agents: dict[str, np.ndarray]) -> dict[str, object]:
    """A recipe whose agents have these task vectors on a base of zeros, in float32."""
    shapes = {name: values.shape for name, values in agents[0].items()}
    write_checkpoint(folder / "base", {name: floats(np.zeros(shape), "F32") for name, shape in shapes.items()})
    for index, taus in enumerate(agents):
        write_checkpoint(folder / f"agent-{index}", {name: floats(tau, "F32") for name, tau in taus.items()})
    named = {f"agent-{index}": str(folder / f"agent-{index}") for index in range(len(agents))}
    return {"base": str(folder / "base"), "agents": named}


def forecast(recipe: object, **options: object) -> ramerge.Analysis:
    found = ramerge.analyze(recipe, cores=True, options=ramerge.Options(cache=False, **options))
    assert found.cores is not None
    return found


def test_copies_share_one_update(tmp_path: Path) -> None:
    tau = np.random.default_rng(1).normal(size=(30, 40))
    cores = forecast(write(tmp_path, *[{WEIGHT: tau}] * 3)).cores
    assert cores.model.factor == pytest.approx(1 / 3)
    assert list(cores.model.coefficients.values()) == pytest.approx([1 / 3] * 3)
    assert "parameters.scale=0.33 is forecast to be best" in cores.sentence


def test_agents_in_different_places_are_summed(tmp_path: Path) -> None:
    upper, lower = np.zeros((2, 32, 32))
    upper[:16, :16], lower[16:, 16:] = np.random.default_rng(2).normal(size=(2, 16, 16))
    cores = forecast(write(tmp_path, {WEIGHT: upper}, {WEIGHT: lower})).cores
    assert cores.model.factor == pytest.approx(1) and "about right" in cores.sentence
    assert list(cores.model.coefficients.values()) == pytest.approx([1, 1])


def test_opposite_agents_have_no_best_factor_but_zero(tmp_path: Path) -> None:
    tau = np.random.default_rng(3).normal(size=(20, 20))
    cores = forecast(write(tmp_path, {WEIGHT: tau}, {WEIGHT: -tau})).cores
    assert cores.model.factor is None and "cancel out" in cores.sentence


def test_layers_and_roles_are_of_their_own_tensors(tmp_path: Path) -> None:
    draws = np.random.default_rng(4)
    one = draws.normal(size=(20, 24))
    still = np.zeros((20, 24))
    norm = {"model.norm.weight": np.zeros(24)}
    found = forecast(write(tmp_path, norm | {WEIGHT: one, OTHER: one}, norm | {WEIGHT: one, OTHER: still}))
    first, second = found.cores.layers
    assert (first.name, second.name) == ("layer 0", "layer 1")
    assert first.factor == pytest.approx(0.5)
    assert second.factor == pytest.approx(1) and second.coefficients == {"agent-0": pytest.approx(1), "agent-1": None}
    roles = {part.name: part for part in found.cores.roles}
    assert roles["norm"].factor is None and roles["norm"].coefficients == {"agent-0": None, "agent-1": None}
    # agent-0 counts half in either layer, agent-1 in the first one only
    assert found.cores.model.factor == pytest.approx((2 / 2 + 1 / 2 + 2) / (4 / 2 + 1 / 2 + 4))


def test_threads_and_memory_do_not_matter(tmp_path: Path) -> None:
    draws = np.random.default_rng(5)
    taus = [{WEIGHT: draws.normal(size=(96, 80)), "model.embed_tokens.weight": draws.normal(size=(900, 8))}] * 2
    recipe = write(
        tmp_path, *[{name: tau + draws.normal(size=tau.shape) for name, tau in each.items()} for each in taus]
    )
    assert forecast(recipe, threads=1).cores == forecast(recipe, threads=3).cores


def test_the_command_shows_it_and_the_json_holds_it(tmp_path: Path) -> None:
    recipe = write(tmp_path, *({WEIGHT: tau} for tau in np.random.default_rng(6).normal(size=(3, 24, 24))))
    flags = ["--base", str(recipe["base"]), *(f"--agent={name}={path}" for name, path in recipe["agents"].items())]
    told = command("analyze", "--cores", *flags, "--json-file", str(tmp_path / "analysis.json"), "--no-cache").stdout
    cores = read_analysis(tmp_path / "analysis.json").cores
    assert f"parameters.scale={cores.model.factor:.2f} is forecast to be best" in told
    assert json.loads((tmp_path / "analysis.json").read_text())["cores"]["layers"][0]["name"] == "layer 0"
    assert cores == forecast(recipe).cores
    assert ramerge.analyze(recipe).cores is None


@pytest.mark.needs("altair", "itables", "jinja2", "vl_convert")
@pytest.mark.parametrize("forecast_asked", [True, False])
def test_the_page_shows_it_where_it_was_asked_for(forecast_asked: bool, tmp_path: Path) -> None:
    from ramerge.analysis.report.page import page as page_of

    recipe = write(tmp_path, *({WEIGHT: tau} for tau in np.random.default_rng(6).normal(size=(3, 24, 24))))
    found = ramerge.analyze(recipe, cores=forecast_asked)
    page = page_of(found.to_dict(), None, None)
    assert ("Forecast for the sum" in page) is forecast_asked
    assert ("What core would keep" in page) is forecast_asked
    if forecast_asked:
        sentence = found.cores.sentence
        assert sentence[0].upper() + sentence[1:] in page
        assert f'<td data-label="sum&#39;s factor">{found.cores.roles[0].factor:.2f}</td>' in page
