"""A whole search: the best is found, kept apart from its luck, and nothing is lost or mixed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge import api
from ramerge.core.foundation.errors import EvaluationError, PlanError, RecipeError
from ramerge.core.recipe.document import Document
from ramerge.demo.run import AGENTS
from ramerge.report.extra import missing_libraries
from ramerge.scoring.scores import Measure, ScoreFailedError, Split
from ramerge.searches.contest import Standing, Strategy
from ramerge.searches.folder import Folder
from ramerge.searches.page import render
from ramerge.searches.results import SearchResult
from ramerge.searches.run import PlannedPoints, search
from ramerge.searches.space import Axis, Choices, Space, ValueRange
from ramerge.searches.spacefile import vary_space
from ramerge.searches.strategies import STRATEGIES, ListedPoints, Question, StrategyKind, SumFirst
from ramerge.searches.text import findings, summary
from ramerge.searches.trials import Trial
from tests.commands import ramerge as command
from tests.searches.scorers import ITEMS, Fake, answers, fingerprint, known, quality
from tests.tiers import unavailable

pytestmark = pytest.mark.full  # Optuna

pytest.importorskip("optuna")

TASKS = ("coder", "tool", "memory")
R = Axis("parameters.r", Choices((0.1, 0.2, 0.3)))
GRID = Space(("ram", "ram+"), (R,))
LINE = Space(("ram+",), (Axis("parameters.r", ValueRange(0.0, 0.5)),))


def recipe(**values: Any) -> Document:
    agents = {name: str(AGENTS / name) for name in TASKS}
    return Document({"method": "ram+", "base": str(AGENTS / "base"), "agents": agents, **values})


def found(out: Path, space: Space = GRID, scorer: Any = None, **options: Any) -> SearchResult:
    made = scorer or Fake(known, splits=True)
    given = {"sampler": "grid" if space.is_listed else "tpe", **options}
    return search(candidates(out), out, space, ramerge.SearchSettings(**given), lambda *_: made)


def candidates(out: Path, **values: Any) -> PlannedPoints:
    return PlannedPoints(recipe(**values), ramerge.Options(), out)


def tried(result: SearchResult) -> list[dict[str, Any]]:
    return [point.point for point in result.points]


def test_a_grid_is_tried_point_by_point_and_its_best_is_kept(tmp_path: Path) -> None:
    scorer = Fake(known, splits=True)
    result = found(tmp_path / "out", scorer=scorer)
    assert tried(result) == list(GRID.points()) and result.winner.point == {"method": "ram+", "parameters.r": 0.3}
    assert [point.number for point in result.points] == [1, 2, 3, 4]
    # the test items are asked once, of the best, after the choice
    assert [split for _, split, _ in scorer.asked] == ["validation"] * 4 + ["test"] and scorer.is_closed
    assert scorer.asked[-1][0]["parameters"]["r"] == 0.3
    test = (sum(answers(0.8, 20)) + sum(answers(0.9, 21))) / 2 / ITEMS
    assert result.test is not None and result.test[0].value == pytest.approx(test)
    assert result.optimism is not None
    assert result.optimism[0].value == pytest.approx(result.winner.objectives[0].value - test)
    assert not (tmp_path / "out" / "candidate").exists()
    ramerge.merge(tmp_path / "out" / "recipe.yaml", tmp_path / "again")
    weights = [(tmp_path / place / "model.safetensors").read_bytes() for place in ("again", "out/best")]
    assert weights[0] == weights[1]
    written = json.loads((tmp_path / "out" / "search.json").read_text())
    assert written["best"] == result.best and len(written["points"]) == 4
    assert any("cannot be distinguished" in line or "best: point" in line for line in summary(result, tmp_path / "out"))


def test_a_search_that_is_done_does_nothing_again_and_can_be_extended(tmp_path: Path) -> None:
    first = found(tmp_path / "out", trials=2)
    scorer = Fake(known, splits=True)
    again = found(tmp_path / "out", scorer=scorer, trials=2)
    assert scorer.asked == [] and again == first
    more = found(tmp_path / "out", scorer=scorer)
    assert tried(more) == list(GRID.points()) and len(scorer.asked) == 3


def test_what_was_not_tried_is_said(tmp_path: Path) -> None:
    first = found(tmp_path / "out", trials=1)
    sentence = "tried: 1 of 4 points; methods not tried: ram+; a larger --trials resumes"
    assert sentence in summary(first, tmp_path / "out")
    assert "tried: 3 of 4 points; a larger --trials" in "".join(findings(found(tmp_path / "out", trials=3)))
    assert not any("not tried" in line or "resumes" in line for line in findings(found(tmp_path / "out")))
    if not missing_libraries("report"):
        assert sentence in render(first, "")


def test_a_search_that_is_done_still_has_the_warnings_of_its_best(tmp_path: Path) -> None:
    shutil.copytree(AGENTS / "base", tmp_path / "same")
    agents = {"coder": str(AGENTS / "coder"), "same": str(tmp_path / "same")}
    settings = ramerge.SearchSettings(trials=1, sampler="grid")

    def again() -> tuple[str, ...]:
        return search(
            candidates(tmp_path / "out", agents=agents),
            tmp_path / "out",
            GRID,
            settings,
            lambda *_: Fake(known, splits=True),
        ).notes

    notes = again()
    assert any("same" in note and "adds nothing" in note for note in notes), notes
    assert again() == notes
    (tmp_path / "out" / "best" / "ramerge.json").write_text("{")
    assert again() == notes
    assert json.loads((tmp_path / "out" / "search.json").read_text())["notes"] == list(notes)


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_a_single_method_of_the_space_is_merged_in_place_of_the_recipes(tmp_path: Path, sampler: str) -> None:
    space = vary_space(recipe(), {"method": ["ties"], "parameters.density": [0.2, 0.5]})
    result = found(tmp_path / "out", space, sampler=sampler)
    assert sorted(point["parameters.density"] for point in tried(result)) == [0.2, 0.5]
    density = result.winner.point["parameters.density"]
    ramerge.merge(recipe(method="ties", parameters={"density": density}), tmp_path / "ties")
    weights = [(tmp_path / place / "model.safetensors").read_bytes() for place in ("ties", "out/best")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_samplers_reach_the_best_of_a_grid_and_try_no_point_twice(tmp_path: Path, sampler: str) -> None:
    space = Space(("ram", "ram+"), (Axis("parameters.r", Choices((0.0, 0.1, 0.3, 0.4))),))
    result = found(tmp_path / sampler, space, sampler=sampler, trials=5)
    assert len({json.dumps(point, sort_keys=True) for point in tried(result)}) == len(result.points) == 5
    assert result.winner.point["parameters.r"] == 0.3


def test_cmaes_searches_ranges(tmp_path: Path) -> None:
    pytest.importorskip("cmaes")
    with pytest.raises(EvaluationError, match="cmaes: needs two ranges"):
        found(tmp_path / "one", LINE, sampler="cmaes")
    both = Space(("ram+",), (*LINE.axes, Axis("parameters.alpha", ValueRange(0.1, 1.0))))
    result = found(tmp_path / "two", both, sampler="cmaes", trials=4)
    assert len(result.points) == 4 and all(0 <= point["parameters.r"] <= 0.5 for point in tried(result))


class Stop(BaseException):
    """Ends a search as a signal would."""


@pytest.mark.parametrize("space", [GRID, LINE], ids=["grid", "tpe"])
def test_the_same_seed_gives_the_same_points_also_when_stopped(tmp_path: Path, space: Space) -> None:
    whole = found(tmp_path / "whole", space, trials=4, seed=3)
    calls = 0

    def stopped(model: Path, split: Split) -> Any:
        nonlocal calls
        calls += 1
        if calls in (1, 3):
            raise Stop
        return known(model, split)

    for _ in range(2):
        with pytest.raises(Stop):
            found(tmp_path / "parts", space, Fake(stopped, splits=True), trials=4, seed=3)
    with (tmp_path / "parts" / "study.log").open("ab") as journal:
        journal.write(b'{"op_code":4,"torn')  # what a kill in the middle of a line leaves
    parts = found(tmp_path / "parts", space, Fake(stopped, splits=True), trials=4, seed=3)
    assert tried(parts) == tried(whole) and [point.number for point in parts.points] == [1, 2, 3, 4]
    assert [point.objectives for point in parts.points] == [point.objectives for point in whole.points]
    if space is LINE:
        assert tried(found(tmp_path / "other", space, trials=4, seed=4)) != tried(whole)


def test_failures_are_points_and_say_why(tmp_path: Path) -> None:
    def returns(model: Path, split: Split) -> Any:
        r = fingerprint(model)["parameters"].get("r")
        if r == 0.1:
            raise ScoreFailedError("ValueError: broken")
        if r == 0.2:
            return {"one": [float("nan")] * 3}
        if r == 0.3:
            return {"other": answers(1.0, 1)}
        return {"one": answers(0.5, 1)}

    result = found(tmp_path / "out", scorer=Fake(returns))
    assert [point.state for point in result.points] == ["complete", "failed", "failed", "failed"]
    said = [str(point.failure) for point in result.points[1:]]
    assert said[0] == "ValueError: broken" and "not nan" in said[1]
    assert said[2] == "returned other; before it was one"
    assert sum(line.startswith("failed: point") for line in summary(result, tmp_path)) == 3


def test_many_failures_in_a_row_stop_it_and_are_tried_again(tmp_path: Path) -> None:
    def fails(model: Path, split: Split) -> Any:
        raise ScoreFailedError("the server is gone")

    with pytest.raises(EvaluationError, match="2 points in a row failed; the last: the server is gone"):
        found(tmp_path / "out", scorer=Fake(fails, splits=True), most_failures=2)
    result = found(tmp_path / "out", most_failures=2)
    assert [point.state for point in result.points] == ["complete"] * 4 and tried(result) == list(GRID.points())
    with pytest.raises(EvaluationError, match="no point got a score"):
        found(tmp_path / "none", scorer=Fake(fails), most_failures=0)


def test_a_point_that_cannot_be_merged_fails_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = ramerge.Plan.merge

    def broken(plan: ramerge.Plan, *out: Any) -> Any:
        if plan.recipe.parameters.get("r") == 0.2:
            raise PlanError("it does not fit")
        return merge(plan, *out)

    monkeypatch.setattr(ramerge.Plan, "merge", broken)
    result = found(tmp_path / "out")
    assert [point.failure for point in result.points] == [None, None, "it does not fit", None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"space": LINE}, "another space: methods: it was"),
        ({"scorer": Fake(known, splits=True, about="other.py:score")}, "another score: function: it was"),
    ],
)
def test_results_of_another_search_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    found(tmp_path / "out", trials=1)
    with pytest.raises(EvaluationError) as error:
        found(tmp_path / "out", **{"trials": 1, **change})
    assert said in str(error.value) and "name another folder" in str(error.value)


def test_another_objective_needs_no_new_scores(tmp_path: Path) -> None:
    def returns(model: Path, _: Split) -> Any:
        right = quality(model)
        return ({"good": answers(right, 1, 50), "bad": answers(1 - right, 1, 50)} for _ in range(2))

    first = found(tmp_path / "out", scorer=Fake(returns, in_parts=True), objectives=["bad"])
    pruned = [point.number for point in first.points if point.state == "pruned"]
    whole = [point.number for point in first.points if point.state == "complete"]
    times = {number: (tmp_path / f"out/trials/{number}.json").stat().st_mtime_ns for number in whole}
    second = found(tmp_path / "out", scorer=Fake(returns, in_parts=True), objectives=["good"])
    assert {number: (tmp_path / f"out/trials/{number}.json").stat().st_mtime_ns for number in whole} == times
    assert pruned and second.best != first.best and len(second.points) == len(first.points)
    alone = found(tmp_path / "alone", scorer=Fake(returns, in_parts=True), objectives=["good"])
    assert second.winner.point == alone.winner.point


def test_a_search_without_any_score_makes_way_for_another(tmp_path: Path) -> None:
    def fails(_model: Path, _split: Split) -> Any:
        raise ScoreFailedError("a mistake")

    with pytest.raises(EvaluationError, match="no point got a score"):
        found(tmp_path / "out", scorer=Fake(fails, splits=True), trials=2)
    result = found(tmp_path / "out", scorer=Fake(known, splits=True, about="mended.py:score"), trials=2)
    assert [point.state for point in result.points] == ["complete", "complete"]
    assert [point.number for point in result.points] == [1, 2]


def test_a_changed_file_of_a_score_is_said_in_words(tmp_path: Path) -> None:
    changes = (
        ({"digest": "a" * 64}, "its file, or a module that it imports from its folder, has changed"),
        ({"data": {"x": "b" * 64}}, "data: x is new"),
    )
    for score, wanted in changes:
        folder = Folder(tmp_path / str(len(wanted)))
        (folder.root / "trials").mkdir(parents=True)
        folder.trials.keep(Trial(1, {"method": "ram"}, "complete", {"a": Measure(1.0)}))
        folder.check_description({"score": {"digest": "0" * 64, "data": {}}})
        with pytest.raises(EvaluationError) as error:
            folder.check_description({"score": {"digest": "0" * 64, "data": {}} | score})
        assert f"another score: {wanted}" in str(error.value) and "aaaa" not in str(error.value)


def test_other_recipes_inputs_and_folders_are_refused(tmp_path: Path) -> None:
    shutil.copytree(AGENTS / "coder", tmp_path / "coder")
    settings = ramerge.SearchSettings(trials=1, sampler="grid")
    agents = {"coder": str(tmp_path / "coder"), "memory": str(AGENTS / "memory")}

    def again(**values: Any) -> Any:
        points = candidates(tmp_path / "out", agents=agents, **values)
        return search(points, tmp_path / "out", GRID, settings, lambda *_: Fake(known, splits=True))

    again()
    with pytest.raises(EvaluationError, match="another recipe: dtype: it was null"):
        again(dtype="float32")
    os.utime(tmp_path / "coder" / "model.safetensors", ns=(1, 1))
    with pytest.raises(EvaluationError, match=r"other inputs: \S*/coder/model\.safetensors has changed"):
        again()
    with pytest.raises(EvaluationError, match="is the folder of a model"):
        found(tmp_path / "coder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(EvaluationError, match=r"holds thesis\.tex, and no search"):
        found(tmp_path / "full")


def test_hopeless_points_are_given_up_and_do_not_win(tmp_path: Path) -> None:
    def returns(model: Path, split: Split) -> Any:
        whole = answers(quality(model), 1, 120)
        return ({"one": whole[start : start + 30]} for start in range(0, 120, 30))

    space = Space(("ram+",), (Axis("parameters.r", Choices((0.3, 0.9, 0.29))),))
    scorer = Fake(returns, splits=True, in_parts=True)
    result = found(tmp_path / "out", space, scorer)
    assert [point.state for point in result.points] == ["complete", "pruned", "complete"]
    assert [parts for _, _, parts in scorer.asked] == [4, 1, 4, 4]
    assert result.winner.point["parameters.r"] == 0.3
    scorer = Fake(returns, splits=True, in_parts=True)
    assert {point.state for point in found(tmp_path / "all", space, scorer, prune=False).points} == {"complete"}


def test_items_are_halved_where_the_score_has_no_split(tmp_path: Path) -> None:
    scorer = Fake(lambda model, _: {"one": answers(quality(model), 7)})
    result = found(tmp_path / "out", scorer=scorer)
    right = answers(0.8, 7)
    assert result.winner.objectives[0].value == pytest.approx(sum(right[::2]) / (ITEMS // 2))
    assert result.test is not None and result.test[0].value == pytest.approx(sum(right[1::2]) / (ITEMS // 2))
    assert result.apart == "every second item is for the test" and len(scorer.asked) == 4


def test_a_score_without_items_says_what_it_cannot_say(tmp_path: Path) -> None:
    result = found(tmp_path / "out", scorer=Fake(lambda model, _: {"one": quality(model)}))
    assert result.test is None and result.apart is None and result.winner.objectives[0].low is None
    assert "too high by an unknown amount" in result.notes[0]
    # notes are warnings of the command, and are not said again
    assert not any("too high" in line for line in summary(result, tmp_path / "out"))


def test_several_objectives_give_a_front(tmp_path: Path) -> None:
    def returns(model: Path, _: Split) -> Any:
        r = fingerprint(model)["parameters"].get("r", 0.2)
        return {"good": r, "cost": {0.1: 1.0, 0.2: 5.0, 0.3: 3.0}[r]}

    space = Space(("ram+",), (R,))
    objectives = ["good", "cost=min"]
    result = found(tmp_path / "out", space, Fake(returns), objectives=objectives)
    assert result.front == (1, 3) and result.best in result.front
    assert "Pareto front: points 1, 3" in "\n".join(summary(result, tmp_path))
    with pytest.raises(EvaluationError, match=r"unknown objective 'goood'; did you mean 'good'\?"):
        found(tmp_path / "wrong", space, Fake(returns), objectives=["goood"])


@pytest.mark.parametrize(
    ("objective", "best"),
    [("mean", 0.1), ("worst", 0.2), ("worst:a=0.9,b=0.2", 0.3)],
    ids=["the mean", "the worst figure", "the worst retention"],
)
def test_the_worst_task_may_decide(objective: str, best: float, tmp_path: Path) -> None:
    def returns(model: Path, _: Split) -> Any:
        r = fingerprint(model)["parameters"].get("r", 0.2)
        return {0.1: {"a": 0.9, "b": 0.1}, 0.2: {"a": 0.4, "b": 0.3}, 0.3: {"a": 0.6, "b": 0.2}}[r]

    result = found(tmp_path / "out", Space(("ram+",), (R,)), Fake(returns), objectives=[objective])
    assert result.winner.point["parameters.r"] == best


def test_figures_hold_the_points_and_compile(tmp_path: Path) -> None:
    """A figure for each thing to see; Vega-Lite accepts it, with the rows that it has."""
    if missing_libraries(""):
        unavailable("the page's libraries are not here")
    from ramerge.searches.charts import figures_of

    def returns(model: Path, _: Split) -> Any:
        r = fingerprint(model)["parameters"].get("r", 0.2)
        return {"good": r, "cost": {0.1: 1.0, 0.2: 5.0, 0.3: 3.0}[r]}

    objectives = ["good", "cost=min"]
    result = found(tmp_path / "out", Space(("ram+",), (R,)), Fake(returns), objectives=objectives)
    figures = {figure.name: figure for figure in figures_of(result)}
    assert list(figures) == ["ranking", "course", "axes", "front"]
    assert [row["value"] for row in figures["ranking"].rows] == [0.1, 0.3, 0.2]  # the front first, from its middle
    assert [row["best"] for row in figures["course"].rows] == [0.1, 0.2, 0.3]
    assert {(row["key"], row["x"]) for row in figures["axes"].rows} == {("r", x) for x in (0.1, 0.2, 0.3)}
    assert [row["front"] for row in figures["front"].rows] == ["on the front", "beaten", "on the front"]
    assert all("value" in figure.chart.to_json() or figure.name == "front" for figure in figures.values())


def test_the_page_shows_points_findings_and_recipe(tmp_path: Path) -> None:
    if missing_libraries(""):
        unavailable("the page's libraries are not here")

    def returns(model: Path, split: Split) -> Any:
        if fingerprint(model)["parameters"].get("r") == 0.1:
            raise ScoreFailedError("<script>alert(1)</script>")
        return {"one": answers(quality(model), 1)}

    html = render(found(tmp_path / "out", scorer=Fake(returns)), "method: ram+\n")
    assert all(text in html for text in ("All points, the best first", "method: ram+", "Failed points: 1", "r = 0.3"))
    assert "<script>alert" not in html


# --- functions and the command line ----------------------------------------------------------------------------------

SCORE = """
import json, os, sys, time
def _r(model): return json.loads((model / "ramerge.json").read_text())["parameters"].get("r", 0)
def score(model):
    print("scoring", _r(model))
    return {"one": [float(i % 10 < 10 * (0.9 - _r(model))) for i in range(40)]}
def bad(model):
    r = _r(model)
    if r == 0.1: raise ValueError("broken")
    if r == 0.2: time.sleep(100)
    if r == 0.3: os._exit(7)
    return {"one": [1.0, 0.0]}
def slow(model):
    time.sleep(0.3)
    return score(model)
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    lines = ["method: ram+", f"base: {AGENTS / 'base'}", "agents:", *[f"  {task}: {AGENTS / task}" for task in TASKS]]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines))
    (tmp_path / "scores.py").write_text(SCORE)
    return tmp_path


def test_functions_that_throw_hang_and_die_are_replaced(written: Path) -> None:
    vary = "parameters.r=0.1,0.2,0.3,0"
    words = ["search", "recipe.yaml", "out", "--vary", vary, "--score-timeout", "3", "--no-html"]
    done = command(*words, "--score", "scores.py:bad", "--json", cwd=written)
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["points"]
    assert [point["state"] for point in points] == ["failed", "failed", "failed", "complete"]
    assert points[0]["failure"] == "ValueError: broken (scores.py, line 9)"
    assert "did not end within 3 seconds" in points[1]["failure"]
    assert "its process ended with exit code 7" in points[2]["failure"]
    assert "Traceback" in (written / "out" / "score.log").read_text()


def test_words_that_make_no_sense(written: Path) -> None:
    for words, said in [
        (["--score", "scores.py:scor"], "has no function 'scor'; it has score, bad, slow"),
        (["--score", "nothing.py:score"], "there is no such Python file"),
        (["--score", "../scores:score"], "'../scores' is neither a module nor a Python file; write file.py:function"),
        (["--score", "no_such_module:score"], "No module named 'no_such_module'"),
        (["--score", "scores.py:score", "--vary", "parameters.q=1"], "unknown parameter of ram+"),
        (["--score", "scores.py:score", "--space", "x.yaml"], "one of them"),
        (["--score", "scores.py:score", "--objective", "=min"], "--objective =min: must be NAME"),
        (["--score", "math"], "tasks and prompts need a server: --serve transformers|vllm|sglang"),
        (["--score", "p.jsonl"], "without a server, give --prompts NAME=FILE instead"),
        (["--score", "p.jsonl", "--serve", "vllm"], "needs --reward file.py:compute_score"),
        (["--score", "scores.py:score", "--serve", "vllm"], "--score names a function"),
    ]:
        vary = [] if "--vary" in words else ["--vary", "parameters.r=0,0.1"]
        done = command("search", "recipe.yaml", "out", *vary, *words, cwd=written)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (written / "out" / "best").exists()


def test_killed_and_interrupted_searches_go_on(written: Path) -> None:
    words = ["search", "recipe.yaml", "out", "--vary", "parameters.r=0,0.1,0.2,0.3,0.4", "--score", "scores.py:slow"]
    for number in (signal.SIGKILL, signal.SIGINT):
        program = [sys.executable, "-m", "ramerge", *words, "--no-html"]
        process = subprocess.Popen(program, cwd=written, stderr=subprocess.PIPE, text=True)
        before = len(list((written / "out" / "trials").glob("*.json")))
        until = time.monotonic() + 60
        while len(list((written / "out" / "trials").glob("*.json"))) < before + 1 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == (-9 if number == signal.SIGKILL else 130), said
    assert "what was scored is kept in out, and the same command resumes from there" in said
    done = command(*words, "--no-html", cwd=written)
    assert done.returncode == 0, done.stderr
    result = json.loads((written / "out" / "search.json").read_text())
    assert [point["point"]["parameters.r"] for point in result["points"]] == [0, 0.1, 0.2, 0.3, 0.4]
    assert result["best"] == 1 and (written / "out" / "best" / "model.safetensors").is_file()


def test_the_progress_says_that_a_score_is_loaded(written: Path) -> None:
    (written / "s.py").write_text("import time\nprint('began', flush=True)\ntime.sleep(1000)\ndef score(model): ...\n")
    words = ["search", "recipe.yaml", "out", "--vary", "parameters.r=0,0.1", "--score", "s.py:score", "--no-html"]
    program = [sys.executable, "-m", "ramerge", *words, "--score-timeout", "3"]
    environment = {**os.environ, "RAMERGE_PROGRESS": "json"}
    process = subprocess.Popen(program, cwd=written, stderr=subprocess.PIPE, text=True, env=environment)
    log, until = written / "out/score.log", time.monotonic() + 60
    while not (log.is_file() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    *events, last = said.splitlines()
    assert {event["note"] for event in map(json.loads, events) if event["stage"] == "search"} == {"loading s.py"}
    assert last == "error: stopped by SIGINT; nothing was scored yet"


def test_files_that_no_search_wrote_are_named(tmp_path: Path) -> None:
    for name, text in [
        ("trials/1.json", '{"scores": {"one": {"items": [["a"]]}}}'),
        ("trials/1.json", "[]"),
        ("trials/1.json", '{"scores": 3}'),
        ("asked.json", "{"),
    ]:
        found(tmp_path / "out", trials=1)
        kept = (tmp_path / "out" / name).read_text()
        (tmp_path / "out" / name).write_text(text)
        with pytest.raises(EvaluationError, match=name):
            found(tmp_path / "out", trials=2)
        (tmp_path / "out" / name).write_text(kept)


def test_a_wrong_recipe_is_a_wrong_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="must not be empty"):
        search(
            candidates(tmp_path / "out", agents={}),
            tmp_path / "out",
            GRID,
            ramerge.SearchSettings(),
            lambda *_: Fake(known),
        )


def test_its_recipe_leads_to_models_next_to_it(tmp_path: Path) -> None:
    models = tmp_path / "work/models"
    shutil.copytree(AGENTS, models)
    agents = {name: str(models / name) for name in TASKS}
    document = Document({"method": "ram", "base": str(models / "base"), "agents": agents})
    space = Space(("ram",), (Axis("dtype", Choices(("float32", "bfloat16"))),))
    settings = ramerge.SearchSettings(sampler="grid")
    points = PlannedPoints(document, ramerge.Options(), tmp_path / "work/out")
    search(points, tmp_path / "work/out", space, settings, lambda *_: Fake(lambda *_: [1.0, 2.0], splits=True))
    shutil.move(tmp_path / "work", tmp_path / "moved")
    for written in ("recipe.yaml", "trials/1.yaml", "best/ramerge.yaml"):
        assert not ramerge.plan(tmp_path / "moved/out" / written).problems, written


def test_every_candidate_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    make_plan = api.make_plan

    def counted(*arguments: Any, **options: Any) -> Any:
        plans.append(arguments[0])
        return make_plan(*arguments, **options)

    monkeypatch.setattr(api, "make_plan", counted)
    found(tmp_path / "out")
    assert len(plans) == len(list(GRID.points())) + 1, "and the best for its own folder"


class Backwards(StrategyKind):
    """Points from the last to the first."""

    def start(self, question: Question) -> Strategy:
        return ListedPoints([*question.space.points()][::-1])


def test_a_strategy_of_a_plugin_names_the_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES._objects, "backwards", Backwards())
    monkeypatch.setattr("ramerge.searches.settings.SAMPLERS", (*STRATEGIES, "backwards"))
    assert tried(found(tmp_path / "out", sampler="backwards")) == list(GRID.points())[::-1]


def test_the_sum_decides_also_where_its_trial_was_removed() -> None:
    points: list[Any] = [{"method": "sum"}, {"method": "longer"}, {"method": "other"}]
    strategy = SumFirst(points, 0.9, points[1:2], points[2:])
    longer = Standing(points[1], "complete", (0.2,))
    good, poor = (Standing(points[0], "complete", (value,)) for value in (0.9, 0.8))
    assert strategy.ask([longer]) == points[0]
    assert strategy.ask([longer, poor]) == points[2]
    assert strategy.ask([good]) == points[1] and strategy.count([poor]) == 2


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({"one": {"items": []}, "two": 0.5}, "a score has no items, or is not finite"),
        ({"one": {"items": [[1e200, 1]]}, "two": 0.5}, "a score has no items, or is not finite"),
        ({"three": 0.5}, "returned three; before it was one, two"),
    ],
)
def test_trials_that_no_search_wrote_are_named(tmp_path: Path, scores: Any, said: str) -> None:
    found(tmp_path / "out", trials=2)
    path = tmp_path / "out/trials/2.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": scores}))
    with pytest.raises(EvaluationError, match=f"trials/2.json: {said}.*remove the file"):
        found(tmp_path / "out", trials=3)


@pytest.mark.parametrize("point", [{"method": "ties"}, {"method": "ram+", "parameters.r": 99}, {"parameters.r": 0.1}])
def test_points_of_another_space_are_refused(tmp_path: Path, point: dict[str, Any]) -> None:
    found(tmp_path / "out", trials=1)
    path = tmp_path / "out/trials/1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"point": point}))
    with pytest.raises(EvaluationError, match="its point is none of this search"):
        found(tmp_path / "out", trials=2)


def test_an_input_that_changes_while_a_search_runs_ends_it(tmp_path: Path) -> None:
    shutil.copytree(AGENTS / "coder", tmp_path / "coder")
    agents = {"coder": str(tmp_path / "coder"), "memory": str(AGENTS / "memory")}

    def replaces(model: Path, split: Split) -> Any:
        shutil.copy(AGENTS / "tool/model.safetensors", tmp_path / "coder/model.safetensors")
        return known(model, split)

    points = candidates(tmp_path / "out", agents=agents)
    settings = ramerge.SearchSettings(sampler="grid")
    with pytest.raises(EvaluationError, match=r"coder/model\.safetensors: has changed while the search ran"):
        search(points, tmp_path / "out", GRID, settings, lambda *_: Fake(replaces, splits=True))


def test_a_score_in_parts_of_one_item_is_whole(tmp_path: Path) -> None:
    def returns(model: Path, split: Split) -> Any:
        return ({"one": [value]} for value in answers(quality(model), 1, 50))

    result = found(tmp_path / "out", scorer=Fake(returns, in_parts=True))
    assert {point.state for point in result.points} <= {"complete", "pruned"}


def test_a_killed_choice_of_the_best_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe is written last, and removed first."""
    found(tmp_path / "out", trials=2)
    before = (tmp_path / "out/recipe.yaml").read_text()
    write = Folder.write

    def killed(folder: Folder, name: str, content: str) -> None:
        if name == "recipe.yaml":
            raise Stop
        write(folder, name, content)

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr(Folder, "write", killed)
        found(tmp_path / "out")
    assert not (tmp_path / "out/recipe.yaml").exists()
    assert found(tmp_path / "out").winner.point["parameters.r"] == 0.3
    assert (tmp_path / "out/recipe.yaml").read_text() != before
