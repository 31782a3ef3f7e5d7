"""The search of the tab Choose: the command that it runs, and what it shows of a search."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import ramerge
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.recipe.document import Document
from ramerge.core.recipe.paths import portable
from ramerge.demo.run import AGENTS, copy_models
from ramerge.sdk.recipes import check
from ramerge.searches.commands import search as command
from ramerge.searches.results import read_search
from ramerge.ui.desk import Desk
from ramerge.ui.draft import checked_draft
from ramerge.ui.roots import Roots
from ramerge.ui.search import best_recipe, prompt_lines, search_view, search_words
from tests.messages import Messages

pytestmark = pytest.mark.full  # Gradio

SOURCE = {"base": str(AGENTS / "base"), "agents": {name: str(AGENTS / name) for name in ("coder", "memory")}}
RECIPE = json.dumps(SOURCE | {"method": "regmean", "parameters": {"ridge": 3}})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A page with prompts of two agents, and some that lie outside."""
    home = tmp_path / "home"
    (home / "rollouts").mkdir(parents=True)
    for place in (home / "add.jsonl", home / "rollouts" / "0.jsonl", tmp_path / "outside.jsonl"):
        place.write_text('{"prompt": "347+586="}\n')
    return Desk(Roots((home.resolve(), AGENTS.resolve())))


def words(
    desk: Desk, coder: str, memory: str, folder: str = "found", reward: str = "", *, generate: bool = False
) -> list[str]:
    return search_words(desk, RECIPE, f"coder= {coder} \n\n memory={memory}\n", reward, generate, 4, 12, folder)


def test_command_is_a_search_by_prompts(desk: Desk) -> None:
    given = words(desk, "add.jsonl", str(desk.roots.home / "rollouts"))
    assert shlex.join(given) == (
        f"search --base {AGENTS}/base --agent coder={AGENTS}/coder --agent memory={AGENTS}/memory "
        "--prompts coder=add.jsonl --prompts memory=rollouts --prompt-count 4 --max-new 12 found"
    )
    command.make_context("search", given[1:])  # every flag is one


def test_the_best_recipe_merges_to_the_same_model(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    home = desk.roots.home
    monkeypatch.chdir(home)
    copy_models(home / "models", lambda _: None)
    agents = {name: {"model": f"models/{name}", "inputs": "models/inputs"} for name in ("coder", "memory")}
    recipe = check(Document({"method": "regmean", "base": "models/base", "agents": agents, "dtype": "float32"}))
    for folder in ("found", "models/inputs"):
        (home / folder).mkdir()
    (home / "found" / "recipe.yaml").write_text(portable(recipe, home / "found").to_yaml())
    draft = checked_draft(best_recipe(desk, "found"), desk.roots)
    assert portable(draft, None).to_yaml() == portable(recipe, None).to_yaml()


def test_rewards_come_from_a_function_below_the_roots(desk: Desk) -> None:
    (desk.roots.home / "mine.py").write_text("")
    given = words(desk, "add.jsonl", "add.jsonl", reward=f" {desk.roots.home}/mine.py:compute_score ", generate=True)
    assert given[given.index("--reward") + 1] == "mine.py:compute_score" and "--generate" in given
    command.make_context("search", given[1:])
    for wrong in ("mine.py", "mine:compute_score", "../mine.py:f", "/etc/mine.py:f", "nothing.py:f", "mine.py:f()"):
        with pytest.raises(RecipeError):
            words(desk, "add.jsonl", "add.jsonl", reward=wrong)


def test_prompts_next_to_an_agent_are_its_own(desk: Desk) -> None:
    copy_models(desk.roots.home / "demo", lambda _: None)
    roots, models = desk.roots, {"code": "demo/coder", "tool": str(desk.roots.home / "demo/tool"), "add": "owner/name"}
    assert prompt_lines(models, {"tool": "add.jsonl"}, roots) == "code=demo/code.jsonl\ntool=add.jsonl\nadd="
    # a link that leads out is not taken
    (roots.home / "demo" / "other.jsonl").symlink_to(roots.home.parent / "outside.jsonl")
    assert prompt_lines({"other": "demo/coder"}, {}, roots) == "other="


def test_prompts_are_below_the_roots_and_there(desk: Desk) -> None:
    with pytest.raises(RecipeError) as refused:
        words(desk, "nothing.jsonl", "")
    assert refused.value.problems == (
        f"prompts of coder: 'nothing.jsonl': there is no such file or folder in {desk.roots.home}",
        "prompts of memory: name a file of them, or a folder of rollouts",
    )
    (desk.roots.home / "link.jsonl").symlink_to(desk.roots.home.parent / "outside.jsonl")
    (desk.roots.home / "rollouts" / "1.jsonl").symlink_to(desk.roots.home.parent / "outside.jsonl")
    for outside in ("../outside.jsonl", "link.jsonl", "rollouts", "/etc/passwd", "~"):
        with pytest.raises(RecipeError, match=r"prompts of memory: .*(not in a folder that this page|leads out of)"):
            words(desk, "add.jsonl", outside)


@pytest.mark.parametrize("folder", ["", "..", "/tmp/x", "s3://bucket/search"])
def test_a_search_is_written_below_the_first_root(folder: str, desk: Desk) -> None:
    with pytest.raises(RecipeError):
        words(desk, "add.jsonl", "add.jsonl", folder)


def test_a_search_is_read_again_and_shown(tmp_path: Path, messages: Messages) -> None:
    def score(folder: Path) -> dict[str, list[float]]:
        r = json.loads((folder / "ramerge.json").read_text())["parameters"]["r"]
        return {"up": [r, r + 1], "down": [1 - r, 2 - r]}

    settings = ramerge.SearchSettings(html=False, objectives=("up", "down"))
    result = ramerge.search(SOURCE, tmp_path / "found", score, vary={"parameters.r": [0, 0.5]}, settings=settings)
    again = read_search(tmp_path / "found" / "search.json")
    assert json.dumps(again.to_dict()) == json.dumps(result.to_dict())
    html = search_view(again, "found")
    assert "checkpoint in found/best" in html
    assert re.search(r"Pareto front: points \d, \d", html) and html.count("<svg") == 3
    # by mass, candidates stand in the place of points
    points = [replace(point, objectives=point.objectives[:1]) for point in again.points]
    agreed = replace(again, score={"agreement": {}}, objectives=again.objectives[:1], points=points)
    html = search_view(agreed, "found")
    assert "mass: how likely the merge is to give the agents" in html
    assert re.findall(r"<th[^>]*>([^<]+)</th>", html)[:4] == ["candidate", "up", "down", "NLL"]
    (tmp_path / "found" / "search.json").write_text('{"schema": "ramerge.search/1"}')
    with messages.raises(RecipeError):
        read_search(tmp_path / "found" / "search.json")
