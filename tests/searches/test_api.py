"""`ramerge.search` and `ramerge.recommend`, as a script calls them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import deserialize

import ramerge
from ramerge.cli.main import cli
from ramerge.core.foundation import extras
from ramerge.core.foundation.errors import EvaluationError
from ramerge.demo.run import AGENTS
from ramerge.report.extra import missing_libraries
from ramerge.searches.text import findings
from tests.messages import Messages
from tests.searches.scorers import answers, quality

pytestmark = pytest.mark.full  # Optuna

pytest.importorskip("optuna")

RECIPE = {
    "method": "ram+",
    "base": str(AGENTS / "base"),
    "agents": {name: str(AGENTS / name) for name in ("coder", "tool", "memory")},
}
WEIGHTS = "model.safetensors"
NO_PAGE = ramerge.SearchSettings(html=False)
VARY = {"method": ["ram", "ram+"], "parameters.r": [0.1, 0.3]}


def by_items(model: Path) -> dict[str, list[float]]:
    return {"tool": answers(quality(model), 20)}


def by_split(model: Path, split: str) -> Iterator[dict[str, list[float]]]:
    yield {"tool": answers(quality(model), 20 if split == "validation" else 21)}


@pytest.mark.parametrize("score", [by_items, by_split, "tests/searches/test_api.py:by_items"])
def test_a_search_takes_a_function_or_its_name(tmp_path: Path, score: Any) -> None:
    heard: list[ramerge.SearchProgress] = []
    found = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, on_progress=heard.append, settings=NO_PAGE)
    assert found.winner.point == {"method": "ram+", "parameters.r": 0.3} and len(found.points) == 3
    assert found.test is not None and heard[-1].done == 3
    assert (tmp_path / "out" / "best" / "model.safetensors").is_file() and not (
        tmp_path / "out" / "search.html"
    ).exists()
    again = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, settings=NO_PAGE)
    assert again == found


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: os.truncate(path, 100)])
def test_a_damaged_best_is_merged_again(damage: Callable[[Path], None], tmp_path: Path) -> None:
    found = ramerge.search(RECIPE, tmp_path / "out", by_items, vary=VARY, settings=NO_PAGE)
    weights = tmp_path / "out" / "best" / "model.safetensors"
    before = weights.read_bytes()
    damage(weights)
    assert ramerge.search(RECIPE, tmp_path / "out", by_items, vary=VARY, settings=NO_PAGE).best == found.best
    assert weights.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content"), [("trials/{}.yaml", b"\xff"), ("trials/{}.json", b'{"scores": {}}'), ("trials/{}.yaml", None)]
)
def test_a_damaged_file_of_a_search_is_named(name: str, content: bytes | None, tmp_path: Path) -> None:
    best = ramerge.search(RECIPE, tmp_path / "out", by_items, vary=VARY, settings=NO_PAGE).best
    path = tmp_path / "out" / name.format(best)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(EvaluationError, match=f"{path.name}: .*; remove the (folder, or name another|file, and)"):
        ramerge.search(RECIPE, tmp_path / "out", by_items, vary=VARY, settings=NO_PAGE)


def test_a_space_is_a_file_or_its_content(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("parameters: {r: {from: 0, to: 0.4}}\n")
    of_file = ramerge.search(
        RECIPE, tmp_path / "one", by_items, space=tmp_path / "space.yaml", settings=ramerge.SearchSettings(trials=3)
    )
    space = {"parameters": {"r": {"from": 0, "to": 0.4}}}
    of_content = ramerge.search(
        RECIPE, tmp_path / "two", by_items, space=space, settings=ramerge.SearchSettings(trials=3)
    )
    assert of_file.sampler == "tpe" and [one.point for one in of_file.points] == [
        one.point for one in of_content.points
    ]
    assert (tmp_path / "one" / "search.html").is_file() == (not missing_libraries(""))


def test_a_function_that_throws_fails_its_point_only(tmp_path: Path) -> None:
    def score(model: Path) -> dict[str, list[float]]:
        if quality(model) < 0.75:
            raise ValueError("this one is broken")
        return by_items(model)

    found = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, settings=NO_PAGE)
    failed = [point for point in found.points if point.state == "failed"]
    assert {point.failure for point in failed} == {"ValueError: this one is broken (test_api.py, line 103)"} and len(
        failed
    ) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vary": VARY, "space": {"method": ["ram"]}}, "one of them"),
        ({"space": {"parameters": {"q": [1, 2]}}}, "parameters.q: unknown parameter"),
        ({"space": {"dtype": {"from": 0, "to": 1}}}, "dtype"),
        ({"vary": VARY, "settings": {"objectives": ["=min"]}}, "must be NAME"),
        ({"vary": VARY, "settings": {"objectives": ["worst:tool=0"]}}, "must be worst:NAME=SCORE"),
        ({"vary": VARY, "settings": {"objectives": ["worst:tool"]}}, "must be worst:NAME=SCORE"),
        ({"vary": "parameters.r=0"}, "vary: must be a mapping from keys to lists of values, not 'parameters.r=0'"),
        ({"vary": {"parameters.r": 0.1}}, "vary: must be a mapping from keys to lists"),
        ({"vary": {3: [1, 2]}}, "unknown key '3'"),
        ({"vary": {"method": [["ram"], "ties"]}}, "unknown method"),
        ({"space": 3}, "space: must be a mapping or the path of a file, not 3"),
        ({"vary": VARY, "settings": {"trials": 0}}, "trials: must be a whole number above 0, not 0"),
        (
            {"vary": VARY, "settings": {"sampler": "greedy"}},
            "sampler: must be one of cmaes, grid, nsga2, tpe, not 'greedy'",
        ),
        ({"vary": VARY, "settings": {"seed": -1}}, "seed: must be a whole number"),
        ({"vary": VARY, "settings": {"objectives": "tool=min"}}, "objectives: must be a list of names, not 'tool=min'"),
        ({"vary": VARY, "settings": {"most_failures": -1}}, "most_failures: must be a whole number"),
        (
            {"vary": VARY, "settings": {"score_timeout": float("nan")}},
            "score_timeout: must be a number of seconds above 0, not nan",
        ),
        ({"vary": VARY, "on_progress": 3}, "on_progress: must be a function, not 3"),
        ({"vary": VARY, "options": "no"}, "options: must be of the class ramerge.Options, not str"),
        ({"vary": VARY, "settings": {"html": 1}}, "html: must be True or False, not 1"),
        ({"vary": VARY, "score": None}, "no score: give prompts for each agent"),
        ({"vary": VARY, "score": 3}, "score: must be a function, .* not 3"),
        ({"vary": VARY, "recipe": None}, "recipe: must be a Recipe, a mapping or the path of a file, not None"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_merged(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((ramerge.RecipeError, ramerge.EvaluationError), match=said):
        settings = ramerge.SearchSettings(**options.pop("settings", {}))
        ramerge.search(**{"recipe": RECIPE, "out": tmp_path / "out", "score": by_items, "settings": settings} | options)
    assert not (tmp_path / "out").exists()


def nothing(model: Path) -> Iterator[dict[str, float]]:
    return
    yield {}


def long_name(model: Path) -> dict[str, float]:
    return {"x" * 5000: 1.0}


def half_a_character(model: Path) -> dict[str, float]:
    return {"\ud800": 1.0}


@pytest.mark.parametrize(
    ("score", "said"),
    [(nothing, "gave no scores"), (long_name, "at most 200"), (half_a_character, "can be printed"), (max, "TypeError")],
)
def test_scores_of_no_use_fail_their_point_and_keep_the_folder_whole(tmp_path: Path, score: Any, said: str) -> None:
    for _ in range(2):
        with pytest.raises(ramerge.EvaluationError, match=f"(?s)no point got a score.*{said}"):
            ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, settings=NO_PAGE)


def test_another_function_behind_a_partial_is_another_score(tmp_path: Path) -> None:
    """And numbers of NumPy are values like others."""
    vary = {"parameters.r": np.array([0, 0.25], np.float32)}
    ramerge.search(RECIPE, tmp_path / "out", partial(by_items), vary=vary, settings=NO_PAGE)
    with pytest.raises(ramerge.EvaluationError, match="score"):
        ramerge.search(RECIPE, tmp_path / "out", partial(nothing), vary=vary, settings=NO_PAGE)


def test_tasks_need_a_server(tmp_path: Path) -> None:
    with pytest.raises(ramerge.RecipeError, match=r"or a score such as ramerge_eval\.TaskScore, not"):
        ramerge.search(RECIPE, tmp_path / "out", ramerge.ModelAccess(), vary=VARY)


def test_a_range_with_whole_ends_holds_all_numbers_between(tmp_path: Path) -> None:
    space = {"parameters": {"r": {"from": 0, "to": 1}}}
    found = ramerge.search(
        RECIPE, tmp_path / "out", by_items, space=space, settings=ramerge.SearchSettings(trials=4, html=False)
    )
    assert any(0 < point.point["parameters.r"] < 1 for point in found.points) and found.points_of_space is None
    seeds = {"method": ["dare"], "parameters": {"seed": {"from": 1, "to": 3}}}
    counted = ramerge.search(
        RECIPE, tmp_path / "seeds", by_items, space=seeds, settings=ramerge.SearchSettings(trials=9, html=False)
    )
    assert sorted(point.point["parameters.seed"] for point in counted.points) == [1, 2, 3]


def test_the_worst_retention_is_named_with_the_scores_of_the_specialists(tmp_path: Path) -> None:
    found = ramerge.search(
        RECIPE,
        tmp_path / "out",
        by_items,
        vary=VARY,
        settings=ramerge.SearchSettings(objectives=["worst:tool=0.5"], html=False),
    )
    assert found.to_dict()["objectives"] == ({"name": "worst", "lower": False, "specialists": {"tool": 0.5}},)
    assert all(point.objectives[0].value == pytest.approx(point.scores["tool"] / 0.5) for point in found.points)


def test_an_objective_that_is_no_figure_ends_the_search_at_once(tmp_path: Path) -> None:
    heard: list[ramerge.SearchProgress] = []
    with pytest.raises(ramerge.EvaluationError, match=r"objective 'tol'; did you mean 'tool'\?"):
        ramerge.search(
            RECIPE,
            tmp_path / "out",
            by_items,
            vary=VARY,
            on_progress=heard.append,
            settings=ramerge.SearchSettings(objectives=["tol"]),
        )
    assert [one.done for one in heard] == [0]


def test_a_recommendation_can_be_merged(tmp_path: Path) -> None:
    """The recipe's own parameters, which may be of another method, do not stay."""
    own = RECIPE | {"parameters": {"r": 0.3, "shared": "sum"}, "dtype": "float32"}
    found = ramerge.recommend(own)
    assert found == ramerge.recommend(ramerge.analyze(own)) and found.why
    record = ramerge.merge(found.applied(own), tmp_path / "out")
    assert record.method == found.method and record.dtype == "float32"
    assert record.parameters.get("r") != 0.3 and found.parameters.items() <= record.parameters.items()
    other = replace(found, method="task_arithmetic", parameters={"scale": 0.8}, rounding="stochastic")
    applied = ramerge.plan(other.applied(own))
    assert applied.problems == () and applied.recipe.rounding == "stochastic"


def always(value: float) -> Any:
    return lambda model: {"tool": [value, 1.0] * 10}


class Answer:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, model: Path) -> dict[str, list[float]]:
        return {"tool": [self.value, 1.0] * 10}


@pytest.mark.parametrize("make", [always, Answer])
def test_a_score_with_other_values_is_another_score(tmp_path: Path, make: Any) -> None:
    ramerge.search(RECIPE, tmp_path / "out", make(0.0), vary=VARY, settings=NO_PAGE)
    ramerge.search(RECIPE, tmp_path / "out", make(0.0), vary=VARY, settings=NO_PAGE)
    with pytest.raises(ramerge.EvaluationError, match="score"):
        ramerge.search(RECIPE, tmp_path / "out", make(1.0), vary=VARY, settings=NO_PAGE)
    again = partial(make(0.0))
    ramerge.search(RECIPE, tmp_path / "partial", again, vary=VARY, settings=NO_PAGE)


def test_models_that_change_places_are_another_search(tmp_path: Path) -> None:
    ramerge.search(RECIPE, tmp_path / "out", by_items, vary=VARY, settings=NO_PAGE)
    coder, tool = RECIPE["agents"]["coder"], RECIPE["agents"]["tool"]
    swapped = {**RECIPE, "agents": {**RECIPE["agents"], "coder": tool, "tool": coder}}
    with pytest.raises(EvaluationError, match="another recipe: agents: coder: model: it was"):
        ramerge.search(swapped, tmp_path / "out", by_items, vary=VARY, settings=NO_PAGE)


def test_a_recipe_of_python_values_resumes(tmp_path: Path) -> None:
    ramerge.merge({**RECIPE, "agents": {"tool": RECIPE["agents"]["tool"]}}, tmp_path / "delta", kind="delta")
    rules = [ramerge.Rule(match="*norm*", keep="base")]
    agents = {"coder": RECIPE["agents"]["coder"], "tool": {"delta": tmp_path / "delta"}}
    recipe = ramerge.Recipe(base=RECIPE["base"], agents=agents, rules=rules)
    first, again = (ramerge.search(recipe, tmp_path / "out", by_items, vary=VARY, settings=NO_PAGE) for _ in range(2))
    assert again.points == first.points


def test_what_a_function_raises_is_in_the_log(tmp_path: Path) -> None:
    def score(model: Path) -> dict[str, list[float]]:
        raise KeyError("my bug")

    with pytest.raises(ramerge.EvaluationError):
        ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, settings=NO_PAGE)
    assert "in score\n    raise KeyError" in (tmp_path / "out" / "score.log").read_text()


@pytest.mark.parametrize(
    ("sum_scores", "tried"),
    [
        # the recipe names RAM+
        (0.89, {("task_arithmetic", 1.0), ("task_arithmetic", 1.3), ("task_arithmetic", 1.6), ("ram+", None)}),
        (0.5, {("task_arithmetic", 1.0), ("task_arithmetic", 0.8), ("ram+", None), ("core+", None), ("swudi", None)}),
    ],
)
def test_with_nothing_to_vary_the_sum_decides_what_comes_next(
    tmp_path: Path, sum_scores: float, tried: set[tuple[str, float | None]]
) -> None:
    log = tmp_path / "log"

    def score(model: Path) -> dict[str, list[float]]:
        record = json.loads((model / "ramerge.json").read_text())
        with log.open("a") as file:
            file.write(f"{record['method']}\n")
        value = {"passthrough": 0.9, "task_arithmetic": sum_scores}.get(record["method"], 0.4)
        return {"a": [value] * 4, "b": [value] * 4}

    found = ramerge.search(RECIPE, tmp_path / "out", score, settings=NO_PAGE)
    assert {(point.point["method"], point.point.get("parameters.scale")) for point in found.points} == tried
    assert found.agents == {"a": pytest.approx(0.9), "b": pytest.approx(0.9)}
    [line] = [line for line in findings(found) if line.startswith(f"tried: {len(tried)} of 7 points; ")]
    assert line.endswith("decides which points come next") and found.sampler == "sum-first"
    scored, agents = log.read_text().split(), len(RECIPE["agents"])
    assert scored[: agents + 1] == [*["passthrough"] * agents, "task_arithmetic"]
    again = ramerge.search(RECIPE, tmp_path / "out", score, settings=NO_PAGE)
    assert (again.best, again.points, again.agents) == (found.best, found.points, found.agents)
    assert log.read_text().split() == scored


@pytest.mark.parametrize(("merges", "verdict"), [(31, "undecided"), (40, "better"), (10, "worse")])
def test_the_best_merge_is_compared_with_the_best_agents(
    tmp_path: Path, merges: int, verdict: str, messages: Messages
) -> None:
    right = {"coder": {"code": 36, "tool": 2}, "tool": {"code": 1, "tool": 28}, "memory": {"code": 0, "tool": 3}}
    log = tmp_path / "log"

    def score(model: Path) -> dict[str, list[float]]:
        record = json.loads((model / "ramerge.json").read_text())
        with log.open("a") as file:
            file.write(f"{record['method']}\n")
        if (agent := record["parameters"].get("agent")) is not None:
            merge, own = (dict(deserialize((folder / WEIGHTS).read_bytes())) for folder in (model, AGENTS / agent))
            assert merge == own
        counts = right.get(agent, {"code": merges, "tool": merges})
        return {name: [float(place < count) for place in range(40)] for name, count in counts.items()}

    rules = [{"match": "*", "take": "memory"}]  # for merges, not for the agents themselves
    settings = replace(NO_PAGE, score_agents=True)
    result = ramerge.search({**RECIPE, "rules": rules}, tmp_path / "out", score, vary=VARY, settings=settings)
    assert result.agents == {"code": 18 / 20, "tool": 14 / 20}  # on the items of the choice
    assert result.over_agents is not None and result.over_agents.value == pytest.approx(
        fmean([(merges // 2) / 20] * 2) - fmean([18 / 20, 14 / 20])  # on the others
    )
    [line] = [line for line in findings(result, Path("OUT")) if line.startswith("enough?")]
    assert line.startswith(f"enough? {verdict}")
    messages.check(line)
    scored = log.read_text()
    again = ramerge.search({**RECIPE, "rules": rules}, tmp_path / "out", score, vary=VARY, settings=settings)
    assert again == result and log.read_text() == scored
    assert scored.split()[:3] == ["passthrough"] * 3


@pytest.mark.parametrize("items", [None, 2, 6])
def test_a_comparison_with_few_items_or_none_is_undecided(
    tmp_path: Path, items: int | None, messages: Messages
) -> None:
    def score(model: Path) -> dict[str, float] | dict[str, list[float]]:
        return {name: 0.9 if items is None else [1.0] * items for name in ("code", "tool")}

    settings = replace(NO_PAGE, score_agents=True)
    result = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, settings=settings)
    [line] = [line for line in findings(result, Path("OUT")) if line.startswith("enough?")]
    assert line.startswith("enough? undecided")
    messages.check(line)


def test_a_comparison_counts_the_items_of_its_objective(tmp_path: Path) -> None:
    settings = replace(NO_PAGE, score_agents=True, objectives=("a",))
    items = {"a": [1.0] * 40, "b": [1.0] * 6}
    result = ramerge.search(RECIPE, tmp_path / "out", lambda model: items, vary=VARY, settings=settings)
    assert result.verdict.startswith("enough? as good as its agents on 20 items")


def test_the_best_agent_of_a_figure_is_found_in_the_direction_of_its_objective(tmp_path: Path) -> None:
    loss = {"coder": 0.5, "tool": 0.2, "memory": 0.9}

    def score(model: Path) -> dict[str, float]:
        agent = json.loads((model / "ramerge.json").read_text())["parameters"].get("agent")
        return {"reward": loss.get(agent, 0.4), "loss": loss.get(agent, 0.4)}

    settings = replace(NO_PAGE, score_agents=True, objectives=("reward", "loss=min"))
    result = ramerge.search(RECIPE, tmp_path / "out", score, vary=VARY, settings=settings)
    assert result.agents == {"reward": 0.9, "loss": 0.2}


def test_a_search_with_prompts_names_all_that_it_needs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    source = {"base": "base", "agents": {"a": "a", "b": "b"}, "prompts": {"a": "a.jsonl", "b": "b.jsonl"}}
    with pytest.raises(ramerge.RecipeError, match=r"prompts need torch, transformers and optuna.*\[torch,search\]"):
        ramerge.search(source, tmp_path / "out", settings=ramerge.SearchSettings(sampler="tpe"))


def test_a_page_that_cannot_be_written_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramerge.searches.search.missing_libraries", lambda who: [f"{who} jinja2: pip install"])
    agents = [word for name, folder in RECIPE["agents"].items() for word in ("--agent", f"{name}={folder}")]
    words = ["search", "--base", RECIPE["base"], *agents, str(tmp_path / "out"), "--vary", "parameters.r=0.1,0.3"]
    output = CliRunner().invoke(cli, [*words, "--score", "tests/searches/test_api.py:by_items"]).output
    assert "note: no page search.html was written, because it needs jinja2: pip install" in output


def test_a_score_that_cannot_be_loaded_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scores.py").write_text("import nothing_of_this_name\n")
    recipe = {"base": str(AGENTS / "base"), "agents": {"code": str(AGENTS / "coder"), "tool": str(AGENTS / "tool")}}
    with pytest.raises(ramerge.EvaluationError, match=r'names no function; give .* by prompts=\{NAME: "code.jsonl"\}'):
        ramerge.search(recipe, "found", "code.jsonl")
    with pytest.raises(ramerge.EvaluationError, match="nothing_of_this_name"):
        ramerge.search(recipe, "found", "scores.py:score", vary={"parameters.r": [0, 0.1]})
    assert not Path("found").exists()
    Path("scores.py").write_text("import os\nprint('mine', flush=True)\nos._exit(3)\n")
    with pytest.raises(ramerge.EvaluationError, match=r"exit code 3: mine; all that it printed is in found/score\.log"):
        ramerge.search(recipe, "found", "scores.py:score", vary={"parameters.r": [0, 0.1]})
    assert [path.name for path in Path("found").iterdir()] == ["score.log"]
    Path("scores.py").write_text("def score(model):\n    return 1.0\n")
    assert len(ramerge.search(recipe, "found", "scores.py:score", vary={"parameters.r": [0, 0.1]}).points) == 2
