"""`ramerge.search` and `ramerge.recommend`, as a script calls them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.demo.run import AGENTS
from ramerge.selection.report.write import can_render
from tests.selection.scorers import answers, quality

pytest.importorskip("optuna")

RECIPE = {
    "method": "ram+",
    "base": str(AGENTS / "base"),
    "agents": {name: str(AGENTS / name) for name in ("add", "reverse", "sort")},
}
VARY = {"method": ["ram", "ram+"], "parameters.r": [0.1, 0.3]}


def by_items(model: Path) -> dict[str, list[float]]:
    return {"tool": answers(quality(model), 20)}


def by_split(model: Path, split: str) -> Iterator[dict[str, list[float]]]:
    yield {"tool": answers(quality(model), 20 if split == "validation" else 21)}


@pytest.mark.parametrize("score", [by_items, by_split, "tests/selection/test_api.py:by_items"])
def test_a_search_takes_a_function_or_its_name(tmp_path: Path, score: Any) -> None:
    heard: list[ramerge.SearchProgress] = []
    found = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, html=False, on_progress=heard.append)
    assert found.winner.point == {"method": "ram+", "parameters.r": 0.3} and len(found.points) == 3
    assert found.test is not None and heard[-1].done == 3
    assert (tmp_path / "out" / "best" / "model.safetensors").is_file() and not (
        tmp_path / "out" / "search.html"
    ).exists()
    again = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, html=False)
    assert again == found


def test_a_space_is_a_file_or_its_content(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("parameters: {r: {from: 0, to: 0.4}}\n")
    of_file = ramerge.search(RECIPE, tmp_path / "one", by_items, space=tmp_path / "space.yaml", trials=3)
    space = {"parameters": {"r": {"from": 0, "to": 0.4}}}
    of_content = ramerge.search(RECIPE, tmp_path / "two", by_items, space=space, trials=3)
    assert of_file.sampler == "tpe" and [one.point for one in of_file.points] == [
        one.point for one in of_content.points
    ]
    assert (tmp_path / "one" / "search.html").is_file() == can_render()


def test_a_function_that_throws_fails_its_point_only(tmp_path: Path) -> None:
    def score(model: Path) -> dict[str, list[float]]:
        if quality(model) < 0.75:
            raise ValueError("this one is broken")
        return by_items(model)

    found = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, html=False)
    failed = [point for point in found.points if point.state == "failed"]
    assert {point.failure for point in failed} == {"ValueError: this one is broken"} and len(failed) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "say what varies"),
        ({"vary": VARY, "space": {"method": ["ram"]}}, "one of them"),
        ({"space": {"parameters": {"q": [1, 2]}}}, "parameters.q: unknown parameter"),
        ({"vary": VARY, "objectives": ["=min"]}, "must be NAME"),
        ({"vary": VARY, "server": ramerge.ModelServer("vllm")}, "the score is a function"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_merged(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((ramerge.RecipeError, ramerge.EvaluationError), match=said):
        ramerge.search(RECIPE, tmp_path / "out", by_items, **options)
    assert not (tmp_path / "out").exists()


def test_suites_need_a_server(tmp_path: Path) -> None:
    with pytest.raises(ramerge.EvaluationError, match="suites need a server"):
        ramerge.search(RECIPE, tmp_path / "out", ramerge.EvaluationRequest(["tool"]), vary=VARY)


def test_a_range_with_whole_ends_holds_all_numbers_between(tmp_path: Path) -> None:
    space = {"parameters": {"r": {"from": 0, "to": 1}}}
    found = ramerge.search(RECIPE, tmp_path / "out", by_items, space=space, trials=4, html=False)
    assert any(0 < point.point["parameters.r"] < 1 for point in found.points) and found.points_of_space is None
    seeds = {"method": ["dare"], "parameters": {"seed": {"from": 1, "to": 3}}}
    counted = ramerge.search(RECIPE, tmp_path / "seeds", by_items, space=seeds, trials=9, html=False)
    assert sorted(point.point["parameters.seed"] for point in counted.points) == [1, 2, 3]


def test_an_objective_that_is_no_figure_ends_the_search_at_once(tmp_path: Path) -> None:
    heard: list[ramerge.SearchProgress] = []
    with pytest.raises(ramerge.EvaluationError, match=r"--objective 'tol'; did you mean 'tool'\?"):
        ramerge.search(RECIPE, tmp_path / "out", by_items, vary=VARY, objectives=["tol"], on_progress=heard.append)
    assert [one.done for one in heard] == [0]


def test_a_recommendation_can_be_merged(tmp_path: Path) -> None:
    """The recipe's own parameters, which may be of another method, do not stay."""
    own = RECIPE | {"parameters": {"r": 0.3, "shared": "sum"}, "dtype": "float32"}
    found = ramerge.recommend(own)
    assert found == ramerge.recommend(ramerge.analyze(own)) and found.reasons
    record = ramerge.merge(found.applied(own), tmp_path / "out")
    assert record.method == found.method and record.dtype == "float32"
    assert record.parameters["r"] != 0.3 and found.parameters.items() <= record.parameters.items()
    other = replace(found, method="task_arithmetic", parameters={"scale": 0.8}, rounding="stochastic")
    applied = ramerge.plan(other.applied(own))
    assert applied.problems == () and applied.recipe.rounding == "stochastic"
