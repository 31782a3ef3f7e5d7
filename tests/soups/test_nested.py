"""An agent that is a soup: the same as merging the soups that were written to the disk, without writing them."""

import json
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.core.foundation.errors import PlanError, RecipeError
from ramerge.core.recipe.paths import portable
from tests.checkpoints import read_checkpoint, write_checkpoint
from tests.messages import Messages
from tests.soups.test_soup import same, write_run


def chain_of(run: Path, steps: list[int]) -> dict[str, Any]:
    """Checkpoints of a run as a chain of deltas."""
    agents: dict[str, Any] = {}
    for step in steps:
        over = {"over": f"s{step - 10}"} if agents else {}
        agents[f"s{step}"] = {"delta": str(run / f"step_{step}"), **over}
    return agents


def whole(run: Path, steps: list[int]) -> dict[str, Any]:
    return {f"s{step}": str(run / f"global_step_{step}") for step in steps}


@pytest.mark.parametrize("method", ["ram+", "ties", "uniform"])
def test_nested_soups_equal_written_soups(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [10, 20, 30, 40]
    for name in ("code", "tool"):
        write_run(tmp_path / name, 4)  # both runs begin with the same base
    code, tool = tmp_path / "code", tmp_path / "tool"
    ema = {"method": "ema", "parameters": {"half_life": 20}}
    for name, agents in (("code", whole(code / "run", steps)), ("tool", whole(tool / "run", steps[2:]))):
        source = {**ema, "agents": agents, "dtype": "float32"}
        ramerge.merge(source, tmp_path / f"{name}-soup")
    wanted = {"code": "code-soup", "tool": "tool-soup"}
    recipe = {"method": method, "base": str(code / "base")}
    ramerge.merge({**recipe, "agents": wanted}, "wanted")
    folded: dict[str, Any] = {
        "code": {"soup": {**ema, "agents": chain_of(code / "chain", steps)}},
        "tool": {"soup": {**ema, "agents": whole(tool / "run", steps[2:])}},
    }
    record = ramerge.merge({**recipe, "agents": folded}, "out")
    same(tmp_path / "out", read_checkpoint(tmp_path / "wanted"))
    assert record.agents["tool"].to_dict()["model"].startswith("ema of ")
    assert "(0.7071), " in record.agents["tool"].to_dict()["model"]
    ramerge.merge("out/ramerge.yaml", "again")
    same(tmp_path / "again", read_checkpoint(tmp_path / "out"))


def test_other_weights_have_their_own_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("code", "tool"):
        write_run(tmp_path / name, 3)
    recipe: dict[str, Any] = {"base": "code/base", "agents": {"tool": "tool/run/global_step_30"}}
    digests = set()
    for decay in (0.2, 0.8):
        soup = {"method": "ema", "parameters": {"decay": decay}, "agents": whole(Path("code/run"), [10, 20])}
        plan = ramerge.plan({**recipe, "agents": {**recipe["agents"], "code": {"soup": soup}}})
        assert plan.problems == ()
        values = [source.tensor.origin.weights for source in plan.details.tensors[0].sources if source.owner == "code"]
        digests.add(tuple(values))
    assert len(digests) == 2


def test_problems_of_a_soup_name_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    monkeypatch.chdir(tmp_path)
    models = write_run(tmp_path, 2)
    base = {"base": "base"}
    for soup, text in (
        ({"method": "ties", "agents": {"a": "run"}}, "agents.code.soup: method: ties is no weighted mean"),
        ({"parameters": {"decay": 1}, "agents": {"a": "run"}}, "agents.code.soup: parameters.decay: unknown parameter"),
        ({"agents": {"a": {"soup": {"agents": {"b": "run"}}}}}, "agents of a soup must be checkpoints"),
        ({"agents": {}}, "agents.code.soup"),
        ({"agents": {"a": {"delta": "x", "over": "b"}}}, "unknown agent listed earlier 'b'"),
    ):
        with pytest.raises(RecipeError, match=text):
            ramerge.read_recipe({**base, "agents": {"code": {"soup": soup}}})
    other = {name: tensor for name, tensor in models[0].items() if name != "model.norm.weight"}
    write_checkpoint(tmp_path / "other", other)
    recipe = {**base, "agents": {"code": {"soup": {"agents": {"a": "other", "b": "run/global_step_20"}}}}}
    with messages.raises(PlanError):
        ramerge.merge(recipe, "out")


def test_soup_side_inputs_follow_the_recipe_folder(tmp_path: Path) -> None:
    """Searches write such recipes: they name side inputs as they name models, from their own folder."""
    (tmp_path / "runs" / "importance").mkdir(parents=True)
    (tmp_path / "runs" / "step").mkdir()
    agents = {"code": {"soup": {"agents": {"step": "./step"}}, "importance": "./importance"}}
    (tmp_path / "runs" / "recipe.yaml").write_text(json.dumps({"method": "fisher", "base": "./step", "agents": agents}))
    moved = portable(ramerge.read_recipe(tmp_path / "runs" / "recipe.yaml"), tmp_path / "out" / "deep").agents["code"]
    assert moved.soup is not None and moved.soup.agents["step"].model == "../../runs/step"
    assert moved.importance == "../../runs/importance"
