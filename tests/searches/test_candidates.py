"""What a search by agreement tries, in which order, and how it scores, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramerge.calibration.agreement import Agreement, ReplySet
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.document import Document
from ramerge.searches import prompted
from ramerge.searches.prompted import AgreementScorer, Prompted, usual_branches, usual_space
from ramerge.searches.scores import ScoreFailedError
from ramerge.searches.spacefile import mapped_space
from tests.checkpoints import write_simple


class Live:
    """A model whose agreement is a number of the merge that was put in last."""

    live: Any = None

    def __init__(self, nll: dict[str, float | None]) -> None:
        self.nll, self.put_in = nll, []

    def put(self, recipe: Any) -> None:
        if self.nll[recipe.method] is None:
            raise CheckpointError("cannot be merged")
        self.put_in.append(recipe.method)


@pytest.fixture
def recipe(tmp_path: Path) -> Document:
    write_simple(tmp_path, {"code": 0.1, "tool": 0.2})
    agents = {name: str(tmp_path / name) for name in ("code", "tool")}
    return open_recipe({"base": str(tmp_path / "base"), "agents": agents})


def found(recipe: Document, live: Any, *, rewarded: bool = False) -> Prompted:
    return Prompted(recipe, ReplySet({}, rewarded, (), {"code": (2, 3)}), live, {"code": "f"}, ())


@pytest.fixture
def agreeing(monkeypatch: pytest.MonkeyPatch) -> Live:
    live = Live({"ram": 0.3, "linear": None, "ties": 0.1})

    def agreements_in(_live: Any, _replies: ReplySet) -> dict[str, Agreement]:
        nll = live.nll[live.put_in[-1]]
        assert nll is not None
        return {"code": Agreement(nll - 0.05, None, None, 1, 1), "tool": Agreement(nll + 0.05, None, None, 1, 1)}

    monkeypatch.setattr(prompted, "agreements_in", agreements_in)
    return live


def test_longer_sums_are_tried_where_right_replies_are_known(recipe: Document) -> None:
    def methods(given: Prompted | None) -> dict[str, Any]:
        return dict(usual_space(recipe, given)["method"])

    assert list(methods(found(recipe, None))) == ["task_arithmetic", "regmean", "ram+", "core+", "swudi"]
    short, long = [1.0, 0.8], [1.0, 0.8, 1.3, 1.6]
    given: list[tuple[Prompted | None, list[float]]] = [(found(recipe, None), short), (None, long)]
    for one, scales in (*given, (found(recipe, None, rewarded=True), long)):
        assert methods(one)["task_arithmetic"] == {"parameters": {"scale": scales}}
    assert "regmean" not in methods(None)


def test_after_the_sum_longer_ones_or_all_others(recipe: Document) -> None:
    space = mapped_space(recipe, usual_space(recipe, None))
    branches = usual_branches(space, recipe)
    assert branches.agents == ("code", "tool")
    assert [point["parameters.scale"] for point in branches.good] == [1.3, 1.6]
    assert [point["method"] for point in branches.poor] == ["task_arithmetic", "ram+", "core+", "swudi"]
    assert len(branches.good) + len(branches.poor) + 1 == space.size


def test_points_come_in_the_order_of_their_agreement(recipe: Document, agreeing: Live, tmp_path: Path) -> None:
    space = mapped_space(recipe, {"method": ["ram", "linear", "ties"]})
    given = found(recipe, agreeing)
    ordered = given.ordered(space, tmp_path)
    assert [point["method"] for point in ordered.listed()] == ["ties", "ram", "linear"]
    assert json.loads((tmp_path / "order.json").read_text())["means"] == pytest.approx([0.3, None, 0.1])
    agreeing.put_in.clear()
    assert given.ordered(space, tmp_path) == ordered
    assert agreeing.put_in == [], "what was found is kept"


@pytest.mark.parametrize("means", [[0.1], ["a", 1.0, 2.0], [float("inf"), 1.0, 2.0], "x", None])
def test_an_order_that_is_none_is_found_again(means: Any, recipe: Document, agreeing: Live, tmp_path: Path) -> None:
    space = mapped_space(recipe, {"method": ["ram", "linear", "ties"]})
    given = found(recipe, agreeing)
    right = given.ordered(space, tmp_path)
    kept = json.loads((tmp_path / "order.json").read_text())
    (tmp_path / "order.json").write_text(json.dumps({**kept, "means": means}))
    assert given.ordered(space, tmp_path) == right


def test_the_scorer_scores_what_was_merged_last_in_parts(recipe: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"code": np.array([[0.5, 2.0]])}, {"code": np.array([[1.5, 2.0], [2.0, 4.0]])}]
    monkeypatch.setattr(prompted, "likelihoods", lambda live, replies, count: iter(parts[:count]))
    scorer = AgreementScorer(found(recipe, Live({}), rewarded=True))
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
    space = mapped_space(recipe, usual_space(named, None))
    own = {"method": "ties", "parameters.density": 0.3}
    branches = usual_branches(space, named)
    assert branches.good[-1] == branches.poor[-1] == own
    summed = recipe.with_values({"method": "task_arithmetic", "parameters.scale": 1.5})
    space = mapped_space(recipe, usual_space(summed, None))
    scales = [point["parameters.scale"] for point in space.listed() if point["method"] == "task_arithmetic"]
    assert scales == [1.0, 0.8, 1.3, 1.6, 1.5]
    branches = usual_branches(space, summed)
    assert [point.get("parameters.scale") for point in branches.good] == [1.3, 1.6, 1.5]
    assert [point.get("parameters.scale") for point in branches.poor] == [0.8, 1.5, None, None, None]
