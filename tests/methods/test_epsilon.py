"""Thresholds in units of each agent's task vector, and warnings where a threshold tells nothing."""

import math
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.methods.moved import WHERE_TO_BEGIN
from ramerge.core.methods.ram import AgentCounts
from ramerge.core.planning.explain import _agents_by_kind
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint, write_simple
from tests.messages import Messages
from tests.tiers import some

HALF = {"epsilon": {"relative": 0.5}}


def sizes(folder: Path, names: list[str]) -> dict[str, float]:
    """Root mean squares by the book."""
    base, found = read_checkpoint(folder / "base"), {}
    for name in names:
        agent = read_checkpoint(folder / name)
        squares = [tau**2 for key in base for tau in agent[key].numbers(np.float64) - base[key].numbers(np.float64)]
        flat = np.concatenate([square.reshape(-1) for square in squares])
        found[name] = math.sqrt(math.fsum(flat.tolist()) / flat.size)
    return found


@pytest.mark.parametrize("method", some(["ram", "ram+", "ram+s", "isolate"], fast=["ram+"], full=()))
def test_the_record_shows_the_threshold_of_each_agent(method: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    record = ramerge.merge(recipe(tmp_path, names, method, parameters=HALF), tmp_path / "out")
    wanted = sizes(tmp_path, names)
    assert {agent.name: agent.epsilon for agent in record.agents.values()} == pytest.approx(
        {name: size / 2 for name, size in wanted.items()}, rel=1e-14
    )
    assert record.parameters["epsilon"] == {"relative": 0.5}
    assert "epsilon" in (tmp_path / "out/README.md").read_text()
    again = ramerge.merge(tmp_path / "out/ramerge.yaml", tmp_path / "again")
    assert again.parameters == record.parameters
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()
    plain = ramerge.merge(recipe(tmp_path, names, method), tmp_path / "plain")
    assert not any("epsilon" in agent.values for agent in plain.agents.values())


def test_a_scaled_agent_moves_the_same_elements(tmp_path: Path) -> None:
    base = {"w": floats(np.zeros(1000), "F32")}
    tau = np.random.default_rng(0).normal(0, 1, 1000)
    write_checkpoint(tmp_path / "base", base)
    densities = []
    for scale in (1.0, 2.0**-14, 2.0**20):
        write_checkpoint(tmp_path / "code", {"w": floats(tau * scale, "F32")})
        record = ramerge.merge(
            recipe(tmp_path, ["code"], "ram", parameters=HALF),
            tmp_path / "out",
            options=ramerge.Options(overwrite=True, cache=False),
        )
        densities.append(next(iter(record.agents.values())).density)
    assert len(set(densities)) == 1 and 0.5 < densities[0] < 0.7


@pytest.mark.full
def test_an_agent_that_equals_the_base_moves_nothing(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.05, "tool": 0.4})
    source = recipe(tmp_path, [*names], "ram+", parameters=HALF)
    write_checkpoint(tmp_path / "still", read_checkpoint(tmp_path / "base"))
    source["agents"]["still"] = str(tmp_path / "still")
    *_, still = ramerge.merge(source, tmp_path / "out").agents.values()
    assert (still.epsilon, still.active, still.lambda_) == (0.0, 0, 1.0)


def test_each_rule_has_sizes_of_its_own(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    first = next(iter(read_checkpoint(tmp_path / "base")))
    source = recipe(tmp_path, names, "ram+", parameters=HALF, rules=[{"match": first, "parameters": {"r": 0.2}}])
    record = ramerge.merge(source, tmp_path / "out")
    assert len(record.parts) == 2
    assert len({figures["code"]["epsilon"] for figures in record.parts.values()}) == 2
    assert next(iter(record.agents.values())).epsilon is None


@pytest.mark.full
def test_sweeps_vary_it(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    varied = {"parameters.epsilon.relative": [0.0, 0.5, 2.0]}
    records = ramerge.sweep(recipe(tmp_path, names, "ram"), tmp_path / "out", vary=varied)
    densities = [[*record.agents.values()][1].density for record in records]
    assert densities[0] > densities[1] > densities[2] > 0
    assert [*records[0].agents.values()][1].epsilon == 0.0


@pytest.mark.full
@pytest.mark.parametrize("method", some(["ram", "ram+", "isolate", "ties"], fast=["ram+"], full=["ties"]))
def test_analyses_take_it(method: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    absolute = ramerge.analyze(recipe(tmp_path, names, "ram"))
    assert absolute.epsilon == 1e-5 and set(absolute.thresholds.values()) == {1e-5}
    if method == "ties":
        return
    found = ramerge.analyze(recipe(tmp_path, names, method, parameters=HALF))
    assert (found.epsilon, found.relative_epsilon) == (None, 0.5)
    assert found.thresholds == pytest.approx({name: size / 2 for name, size in sizes(tmp_path, names).items()})
    merged = ramerge.merge(recipe(tmp_path, names, "ram", parameters=HALF), tmp_path / "out")
    for part, agent in zip(found.model.agents, merged.agents.values(), strict=True):
        assert (part.active, part.shared_with[0]) == (agent.active, agent.unique)


def test_invalid_thresholds_are_refused(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for wrong, text in [
        ({"relatve": 1}, r"must be a number, or \{relative: x\}"),
        ({"relative": -1}, "relative: must be a number, 0 or more, not -1"),
        ("much", "must be a number, or"),
    ]:
        with pytest.raises(ramerge.RecipeError, match=text):
            ramerge.plan(recipe(tmp_path, names, "ram", parameters={"epsilon": wrong}))


def dense(folder: Path, dtype: str) -> list[str]:
    """Agents that moved everything."""
    rng = np.random.default_rng(0)
    base = rng.normal(0, 0.02, 1000)
    write_checkpoint(folder / "base", {"w": floats(base, dtype)})
    for name in ("code", "tool"):
        write_checkpoint(folder / name, {"w": floats(base + rng.normal(0, 1e-3, 1000), dtype)})
    return ["code", "tool"]


def test_agents_of_a_kind_are_named_together() -> None:
    kinds = {"code": "float32", "math": "a LoRA adapter", "tool": "float32", "chat": "a LoRA adapter", "web": "float32"}
    assert _agents_by_kind(kinds) == "code, tool and web are float32, math and chat are LoRA adapters"
    assert _agents_by_kind({"code": "float32", "math": "a LoRA adapter"}) == "code is float32, math is a LoRA adapter"


def test_float32_agents_are_warned_of(tmp_path: Path, messages: Messages) -> None:
    names = dense(tmp_path, "F32")
    source = recipe(tmp_path, names, "ram")
    forecast = ramerge.plan(source).forecast
    assert len(forecast) == 1 and "code and tool are float32: nearly" in forecast[0] and "relative: 1" in forecast[0]
    record = ramerge.merge(source, tmp_path / "out")
    (warning,) = [text for text in record.warnings if "epsilon" in text]
    assert "99% of code (float32), 99% of tool (float32)" in warning or "100% of code" in warning
    # RAM of three agents may keep more than their average, so nothing is said of that
    assert "hardly" not in warning + forecast[0]
    messages.check(warning)
    assert [text for text in ramerge.analyze(source).warnings if "epsilon" in text] == [warning]
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(source, tmp_path / "strict", options=ramerge.Options(strict=True))
    relative = recipe(tmp_path, names, "ram", parameters={"epsilon": {"relative": 1}})
    assert ramerge.plan(relative).forecast == ()
    assert ramerge.merge(relative, tmp_path / "relative", options=ramerge.Options(strict=True)).warnings == ()


def test_density_warning_depends_on_dtype(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "sparse").mkdir()
    names = write_simple(tmp_path / "sparse", {"code": 0.05, "tool": 0.3}, dtype="F32")
    record = ramerge.merge(recipe(tmp_path / "sparse", names, "ram"), tmp_path / "one")
    assert not any("epsilon" in text for text in record.warnings)
    (tmp_path / "dense").mkdir()
    names = dense(tmp_path / "dense", "BF16")
    assert ramerge.plan(recipe(tmp_path / "dense", names, "ram")).forecast == ()
    record = ramerge.merge(recipe(tmp_path / "dense", names, "ram"), tmp_path / "two")
    (warning,) = record.warnings
    assert WHERE_TO_BEGIN in warning
    messages.check(warning)
    alone = ramerge.merge(recipe(tmp_path / "dense", names[:1], "ram"), tmp_path / "three")
    assert alone.warnings == ()


def test_counts_with_different_thresholds_have_none() -> None:
    assert (AgentCounts(1, 1, 1, 0.5) + AgentCounts(1, 1, 1, 0.5)).epsilon == 0.5
    assert (AgentCounts(1, 1, 1, 0.5) + AgentCounts(1, 1, 1, 0.25)).epsilon is None
    assert reference.masks([np.ones(1)], 0.5)[0].all()
