"""What a search by prompts tries, in which order, and how it scores, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.calibration import agreement
from ramerge.calibration.agreement import ReplySet
from ramerge.calibration.exchanges import Exchange
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.document import Document
from ramerge.scoring.scores import ScoreFailedError, join, of_items
from ramerge.searches import mass
from ramerge.searches.mass import nll_by_prompt
from ramerge.searches.prompted import PromptMeasures, branches_after_sum, usual_space
from ramerge.searches.run import PlannedPoints
from ramerge.searches.space import Space
from ramerge.searches.spacefile import mapped_space
from tests.checkpoints import write_simple


class Live:
    """A model whose replies have a negative log-likelihood that belongs to the merge that was put in last."""

    live: Any = None

    def __init__(self, nll: dict[str, float | None]) -> None:
        self.nll, self.put_in = nll, []

    def put(self, plan: ramerge.Plan) -> None:
        if self.nll[plan.recipe.method] is None:
            raise CheckpointError("cannot be merged")
        self.put_in.append(plan.recipe.method)


@pytest.fixture
def recipe(tmp_path: Path) -> Document:
    write_simple(tmp_path, {"code": 0.1, "tool": 0.2})
    agents = {name: str(tmp_path / name) for name in ("code", "tool")}
    return open_recipe({"base": str(tmp_path / "base"), "agents": agents})


def gathered(live: Any, *, rewarded: bool = False) -> PromptMeasures:
    return PromptMeasures(ReplySet({}, rewarded, (), {"code": (2, 3)}), live, {"code": "f"}, ())


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Live:
    live = Live({"ram": 0.3, "linear": None, "ties": 0.1})

    def likelihoods(*_: Any) -> Iterator[dict[str, NDArray[np.float64]]]:
        nll = live.nll[live.put_in[-1]]
        assert nll is not None
        yield {"code": np.array([[nll - 0.05, 2.0], [0.0, 0.0]]), "tool": np.array([[nll + 0.05, 1.0]])}

    monkeypatch.setattr(mass, "likelihoods", likelihoods)
    return live


def test_sums_of_all_scales_come_first_and_none_is_longer(recipe: Document) -> None:
    by_prompts = usual_space(recipe, adapters=False, by_prompts=True)["method"]
    alone = usual_space(recipe, adapters=True, by_prompts=False)["method"]
    assert isinstance(by_prompts, dict) and isinstance(alone, dict)
    assert list(by_prompts) == ["task_arithmetic", "regmean", "ram+", "core+", "swudi"]
    assert list(alone) == ["task_arithmetic", "ram+", "core+", "ties"]
    for methods in (by_prompts, alone):
        assert methods["task_arithmetic"] == {"parameters": {"scale": [1.0, 0.8, 1.3, 1.6]}}


def usual(recipe: Document, named: Document | None = None) -> Space:
    return mapped_space(recipe, usual_space(named or recipe, adapters=False, by_prompts=False))


def test_after_the_sum_longer_ones_or_all_others(recipe: Document) -> None:
    space = usual(recipe)
    good, poor = branches_after_sum(space, recipe)
    assert [point["parameters.scale"] for point in good] == [1.3, 1.6]
    assert [point["method"] for point in poor] == ["task_arithmetic", "ram+", "core+", "swudi"]
    assert len(good) + len(poor) + 1 == space.size


def test_points_come_in_the_order_of_their_mass(recipe: Document, scored: Live, tmp_path: Path) -> None:
    space = mapped_space(recipe, {"method": ["ram", "linear", "ties"]})
    points = PlannedPoints(recipe, ramerge.Options())
    ordered = gathered(scored).sorted_by_mass(space, points, tmp_path)
    assert [point["method"] for point in ordered.points()] == ["ties", "ram", "linear"]
    masses = json.loads((tmp_path / "order.json").read_text())["masses"]
    expected = [(np.exp(0.05 - nll) / 2 + np.exp(-0.05 - nll)) / 2 for nll in (0.3, 0.1)]
    assert masses == [pytest.approx(expected[0]), None, pytest.approx(expected[1])]
    scored.put_in.clear()
    assert gathered(scored).sorted_by_mass(space, points, tmp_path) == ordered
    assert scored.put_in == [], "what was found is kept"


@pytest.mark.parametrize("masses", [[0.1], ["a", 1.0, 2.0], [float("inf"), 1.0, 2.0], "x", None])
def test_an_order_that_is_none_is_found_again(masses: Any, recipe: Document, scored: Live, tmp_path: Path) -> None:
    space = mapped_space(recipe, {"method": ["ram", "linear", "ties"]})
    points = PlannedPoints(recipe, ramerge.Options())
    right = gathered(scored).sorted_by_mass(space, points, tmp_path)
    kept = json.loads((tmp_path / "order.json").read_text())
    (tmp_path / "order.json").write_text(json.dumps({**kept, "masses": masses}))
    assert gathered(scored).sorted_by_mass(space, points, tmp_path) == right


def test_the_scorer_scores_what_was_merged_last_in_parts(recipe: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"code": np.array([[0.5, 2.0]])}, {"code": np.array([[1.5, 2.0], [2.0, 4.0]])}]
    monkeypatch.setattr(mass, "likelihoods", lambda live, replies, count: iter(parts[:count]))
    scorer = gathered(Live({}), rewarded=True).scorer()
    first, second = scorer.parts(Path("unused"), "validation")
    assert (first["code"].value, second["code"].value) == (0.25, 3.5 / 6)
    with pytest.raises(ScoreFailedError, match="no items for a test"):
        next(scorer.parts(Path("unused"), "test"))
    assert scorer.about() == {
        "agreement": {"code": "f"},
        "rewarded": True,
        "right": {"code": [2, 3]},
        "replies": {"code": 2},
    }


def test_a_method_that_the_recipe_names_is_tried_in_any_case(recipe: Document) -> None:
    named = recipe.with_values({"method": "ties", "parameters.density": 0.3})
    good, poor = branches_after_sum(usual(recipe, named), named)
    assert good[-1] == poor[-1] == {"method": "ties", "parameters.density": 0.3}
    summed = recipe.with_values({"method": "task_arithmetic", "parameters.scale": 1.5})
    space = usual(recipe, summed)
    scales = [point["parameters.scale"] for point in space.points() if point["method"] == "task_arithmetic"]
    assert scales == [1.0, 0.8, 1.3, 1.6, 1.5]
    good, poor = branches_after_sum(space, summed)
    assert [point.get("parameters.scale") for point in good] == [1.3, 1.6, 1.5]
    assert [point.get("parameters.scale") for point in poor] == [0.8, 1.5, None, None, None]


def test_measurements_belong_to_their_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts take every fourth reply, so they are joined in another order than that of the prompts."""
    numbers = {"code": range(9), "tool": range(5)}
    exchanges = {
        name: [Exchange("x", (1, 2), 1, "", key=f"{name} {number}") for number in each]
        for name, each in numbers.items()
    }
    replies = ReplySet(exchanges, True, (), {"code": (9, 12), "tool": (5, 5)})
    monkeypatch.setattr(agreement, "_likelihood", lambda _live, _name, each: (float(each.key.split()[1]), 1.0))
    parts = list(agreement.likelihoods(None, replies, 4))
    assert [len(part["code"]) for part in parts] == [4, 3, 3, 2]
    measured = join([{name: of_items(items) for name, items in part.items()} for part in parts])
    by_prompt = nll_by_prompt(measured, replies)
    assert by_prompt == {name: {f"{name} {number}": number for number in each} for name, each in numbers.items()}
    with pytest.raises(ValueError, match="tool"):
        nll_by_prompt({"code": measured["code"]}, replies)
