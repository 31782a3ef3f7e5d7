"""Searches by prompts: the candidates, the choice, and what is written."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import ramerge
from ramerge.calibration.calibrate import estimate_calibration
from ramerge.calibration.exchanges import read_exchanges
from ramerge.calibration.prompts import read_prompts
from ramerge.scoring.scores import Objective
from ramerge.searches.evidence import Estimate
from ramerge.searches.results import BY_AGREEMENT, SearchResult, TriedPoint
from ramerge.searches.text import findings, summary
from tests.checkpoints import read_checkpoint
from tests.commands import ramerge as command
from tests.formats.quantized import write_quantized
from tests.messages import Messages
from tests.searches.prompts import AGENTS, SETTINGS
from tests.searches.prompts import prompt_files as prompt_files  # a fixture

pytestmark = pytest.mark.needs("torch", "transformers")


def test_the_candidates_are_tried_and_the_best_is_written(prompt_files: dict[str, str]) -> None:
    events: list[ramerge.SearchProgress] = []
    settings = ramerge.SearchSettings(html=False, calibration=SETTINGS)
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    result = ramerge.search(recipe, "found", settings=settings, on_progress=events.append)
    methods = [point.point["method"] for point in result.points]
    assert methods == ["task_arithmetic"] * 4 + ["regmean"] * 4 + ["ram+", "core+", "swudi"]
    whole = [point for point in result.points if point.state == "complete"]
    assert result.winner.objectives[0].value == max(point.objectives[0].value for point in whole)
    assert set(result.winner.scores) == set(AGENTS)
    assert any("no rewards are given" in note for note in result.notes)
    assert events[0].is_gathering and not events[-1].is_gathering
    found = ramerge.agreement("base", "found/best", "found/calibration")
    assert fmean(each.nll for each in found.values()) == pytest.approx(result.winner.nll, rel=1e-5)
    exchanges = {name: read_exchanges(Path("found/calibration", name, "replies.jsonl")) for name in AGENTS}
    assert {len([one for one in each if one.held_out]) for each in exchanges.values()} == {3}
    assert all(0 < mass <= 1 for mass in result.winner.scores.values())
    assert json.loads(Path("found/search.json").read_text())["notes"] == list(result.notes)
    again = ramerge.search(recipe, "found", settings=settings)
    assert (again.best, again.points) == (result.best, result.points)
    merged = {path: Path("found/best", path).read_bytes() for path in ("model.safetensors",)}
    assert "base: ../base\n" in Path("found/recipe.yaml").read_text()  # valid when both are moved
    ramerge.merge("found/recipe.yaml", "again")
    assert Path("again/model.safetensors").read_bytes() == merged["model.safetensors"]


def test_where_rewards_are_known_right_replies_count(prompt_files: dict[str, str]) -> None:
    Path("r.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth=None, **more):\n    return 0.0\n"
    )
    result = ramerge.search(
        {"base": "base", "agents": AGENTS, "prompts": prompt_files},
        "found",
        settings=ramerge.SearchSettings(
            html=False, calibration=replace(SETTINGS, count=2, reward="r.py:compute_score")
        ),
    )
    assert not result.score["rewarded"]
    assert any("every reply earned 0, so which are right is not known" in note for note in result.notes)
    Path("r.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth=None, **more):\n    return len(solution_str) % 2\n"
    )
    result = ramerge.search(
        {"base": "base", "agents": AGENTS, "prompts": prompt_files},
        "found-again",
        settings=ramerge.SearchSettings(html=False, calibration=replace(SETTINGS, reward="r.py:compute_score")),
    )
    assert result.score["rewarded"] and {count for _, count in result.score["right"].values()} == {3}
    for name, mass in result.winner.scores.items():  # wrong replies count 0
        right, count = result.score["right"][name]
        assert 0 < mass <= right / count


def test_a_choice_by_few_replies_is_unreliable(prompt_files: dict[str, str]) -> None:
    Path("r.py").write_text("def compute_score(solution_str, **more):\n    return float('9' in solution_str)\n")
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    for reward in ("", "r.py:compute_score"):
        calibration = replace(SETTINGS, count=2, reward=reward, right_at=1.0 if reward else None)
        settings = ramerge.SearchSettings(html=False, calibration=calibration)
        result = ramerge.search(recipe, f"found{bool(reward)}", vary={"method": ["ram", "ram+"]}, settings=settings)
        [best] = [line for line in findings(result) if line.startswith("best:")]
        assert "the choice is unreliable: too few replies" in best
        replies = dict.fromkeys(AGENTS, 1) if not result.score["rewarded"] else result.score["replies"]
        assert result.score["replies"] == replies
        assert all(name in best for name, count in replies.items() if not count)


def by_mass(*points: TriedPoint) -> SearchResult:
    """A search by prompts with these points, of which the first is the best."""
    right = {"code": [9, 16], "tool": [0, 16]}
    score = {BY_AGREEMENT: {}, "rewarded": True, "right": right, "replies": {"code": 9, "tool": 0}}
    seconds = {"merging": 0.0, "scoring": 0.0}
    numbers = {"best": points[0].number, "front": (points[0].number,), "level": (), "points_of_space": len(points)}
    rest: dict[str, Any] = {"apart": None, "test": None, "optimism": None, "scores": {}, "seconds": seconds, **numbers}
    return SearchResult((Objective(),), "grid", 0, {}, score, points, **rest)


def tried(number: int, **values: object) -> TriedPoint:
    mass = (Estimate(0.1, 0.05, 0.2),)
    return TriedPoint(number, values, "complete", 0.0, 0.0, mass, None, {"code": 0.1, "tool": 0.1}, nll=0.3)


def test_an_agent_without_a_right_reply_is_named() -> None:
    [best] = [line for line in findings(by_mass(tried(0, method="ram+"))) if line.startswith("best:")]
    assert "tool did not count" in best and "unreliable" not in best


def test_a_table_in_a_notebook_shows_what_candidates_replied() -> None:
    point = replace(tried(0, method="ram+"), right={"code": 0.5, "tool": 1.0})
    table = by_mass(point)._repr_html_()
    assert "<th>right</th>" in table and "<td>0.75</td>" in table


def test_long_names_of_candidates_are_shortened() -> None:
    weights = {f"parameters.weights.{agent}": 1.0 for agent in ("code", "tool", "memory")}
    ties = [tried(number, method="ties", **weights, **{"parameters.density": number / 10}) for number in (1, 2)]
    sigmas = {f"parameters.long_name_{number}": 1.0 for number in range(9)}
    core = [tried(3, method="core+", **sigmas), tried(4, method="core+", **dict.fromkeys(sigmas, 2.0))]
    lines = summary(by_mass(*ties, *core), Path("OUT"))
    rows = lines[3:7]
    assert [row.partition("  ")[0] for row in rows[:2]] == ["ties density=0.1", "ties density=0.2"]
    assert all("…" in row and len(row) <= 100 for row in rows[2:])


def test_from_the_command_line_to_a_table(prompt_files: dict[str, str]) -> None:
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    words = [word for name, path in prompt_files.items() for word in ("--prompts", f"{name}={path}")]
    space = ["--vary", "method=task_arithmetic,ram+", "--prompt-count", "4", "--max-new", "12", "--no-html"]
    done = command("search", "--base", "base", *models, *words, *space, "found")
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()[2:]
    assert head.split() == ["candidate", "mass", *AGENTS, "NLL", "mass", "minus", "best", "(95", "%)"]
    assert {row.split()[0] for row in rows[:2]} == {"task_arithmetic", "ram+"}
    assert "how likely the merge is to give the agents' own replies" in done.stdout
    assert all(len(row) <= 100 for row in [head, *rows[:2]])
    assert "not tried" not in done.stdout
    assert (Path("found") / "best" / "model.safetensors").exists()
    done = command("search", "--base", "base", *models, *words, *space, "--trials", "1", "few")
    assert "tried: 1 of 2 points; methods not tried: ram+; a larger --trials resumes" in done.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--prompts", "nobody=code.jsonl"], "nobody"),
        (
            ["--prompts", "code=missing.jsonl", "--prompts", "tool=tool.jsonl", "--prompts", "memory=memory.jsonl"],
            "missing.jsonl: no such file\n",
        ),
        (
            ["--prompts", "code=cod.jsonl", "--prompts", "tool=tool.jsonl", "--prompts", "memory=memory.jsonl"],
            "cod.jsonl: no such file; did you mean code.jsonl?",
        ),
        (["--prompts", "code=code.jsonl"], "tool: has no prompts; give --prompts tool=FILE"),
        ([], "no score: give prompts for each agent (--prompts NAME=FILE"),
        (
            ["--method", "fisher", *(f"--prompts={name}={name}.jsonl" for name in ("code", "tool", "memory"))],
            "fisher: a search gathers no importances; run `ramerge calibrate --gather importance`",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(words: list[str], problem: str, prompt_files: dict[str, str]) -> None:
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    done = command("search", "--base", "base", *models, *words, "found")
    assert done.returncode == 2 or done.returncode == 1
    assert problem in done.stderr
    assert ("error: prompts of code: " in done.stderr) == ("no such file" in problem)
    assert "Traceback" not in done.stderr
    assert not Path("found/best").exists()


def test_no_agent_has_the_name_of_an_objective(prompt_files: dict[str, str]) -> None:
    agents, prompts = {"mean": "coder", "tool": "tool"}, {"mean": prompt_files["code"], "tool": prompt_files["tool"]}
    recipe = {"base": "base", "agents": agents, "prompts": prompts}
    for choose in (lambda: ramerge.search(recipe, "found"), lambda: ramerge.rank(recipe, {})):
        with pytest.raises(ramerge.RecipeError, match="agent mean: is the name of an objective"):
            choose()


@pytest.mark.usefixtures("prompt_files")
def test_the_dtype_of_the_output_is_not_that_of_the_model() -> None:
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    prompts = [word for name in AGENTS for word in ("--prompts", f"{name}={name}.jsonl")]
    words = ["--prompt-count", 2, "--max-new", 12, "--device", "cpu", "--trials", 1, "--no-html", "--dtype", "float64"]
    done = command("search", "--base", "base", *models, *prompts, *words, "--model-dtype", "bfloat16", "found")
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("found/best/config.json").read_text())["dtype"] == "float64"
    assert "dtype: float64\n" in Path("found/recipe.yaml").read_text()
    for name in AGENTS:
        assert json.loads(Path(f"found/calibration/{name}/calibration.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.usefixtures("prompt_files")
@pytest.mark.parametrize("score", [None, lambda model: {"figure": [0.5, 0.5]}], ids=["mass", "score"])
def test_merges_are_scored_as_they_are_quantized(score: Callable[..., object] | None) -> None:
    for folder in ("base", *AGENTS.values()):
        config = json.loads(Path(folder, "config.json").read_text())
        declared = {"quant_method": "fp8", "weight_block_size": [16, 16]}
        tensors = read_checkpoint(Path(folder))
        write_quantized(Path(folder), "fp8 blocks", tensors, config={**config, "quantization_config": declared})
    settings = ramerge.SearchSettings(html=False, calibration=replace(SETTINGS, count=2))
    paths = {name: f"{name}.jsonl" for name in AGENTS}
    recipe = {"base": "base", "agents": AGENTS, "prompts": paths, "dtype": "like base"}
    vary = {"parameters.scale": [0.5, 1.0]}
    result = ramerge.search({**recipe, "method": "task_arithmetic"}, "found", score, vary=vary, settings=settings)
    assert [point.failure for point in result.points] == [None, None]
    assert {one.dtype for one in read_checkpoint(Path("found/best")).values()} == {"F8_E4M3", "F32", "BF16"}
    if score is None:
        found = ramerge.agreement("base", "found/best", "found/calibration")
        assert fmean(one.nll for one in found.values()) == pytest.approx(result.winner.nll)
    else:
        order = json.loads(Path("found/order.json").read_text())
        assert None not in order["masses"]


def test_without_a_base_there_is_no_model_to_put_weights_into(prompt_files: dict[str, str]) -> None:
    recipe = {"method": "linear", "agents": {"code": "coder"}, "prompts": {"code": "code.jsonl"}}
    with pytest.raises(ramerge.RecipeError, match="need a base"):
        ramerge.search(recipe, "found", settings=ramerge.SearchSettings(calibration=SETTINGS))


def test_points_of_a_score_come_in_the_order_of_their_mass(prompt_files: dict[str, str]) -> None:
    scored: list[str] = []

    def score(model: Path) -> dict[str, list[float]]:
        scored.append(json.loads((model / "ramerge.json").read_text())["method"])
        return {"figure": [0.5, 0.5]}

    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    settings = ramerge.SearchSettings(html=False, trials=2, calibration=SETTINGS)
    vary = {"method": ["ram+", "linear", "regmean"]}
    result = ramerge.search(recipe, "found", score, vary=vary, settings=settings)
    ranked = ramerge.rank(recipe, {name: {"method": name} for name in vary["method"]}, settings=SETTINGS)
    assert scored == list(ranked.means)[:2] == [point.point["method"] for point in result.points]
    assert "linear" not in scored


def test_a_merge_with_prompts_is_that_with_the_inputs_that_they_give(prompt_files: dict[str, str]) -> None:
    recipe = {"method": "regmean", "base": "base", "agents": AGENTS, "prompts": prompt_files}
    ramerge.read_recipe(recipe)
    folders = ramerge.gather(recipe)
    record = ramerge.merge(recipe, "by-prompts")
    inputs = {name: {"model": model, "inputs": str(folders[name])} for name, model in AGENTS.items()}
    ramerge.merge({"method": "regmean", "base": "base", "agents": inputs}, "by-inputs")
    assert Path("by-prompts/model.safetensors").read_bytes() == Path("by-inputs/model.safetensors").read_bytes()
    assert any(f"{folders['code'].parent.name}/code" in note for note in record.notes)
    shutil.rmtree(folders["code"].parent)  # the recipe has the prompts, too, and gathers again
    again = command("merge", "by-prompts/ramerge.yaml", "again")
    assert again.returncode == 0, again.stderr
    assert Path("again/model.safetensors").read_bytes() == Path("by-prompts/model.safetensors").read_bytes()
    plan = ramerge.plan({**recipe, "method": "ram+"})
    assert "prompts: ram+ does not use them; `ramerge search` chooses a merge with them" in plan.notes
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    done = command("merge", "--method", "regmean", "--base", "base", *models, "--prompts", "code=code.jsonl", "out")
    assert done.returncode == 2
    assert "tool: has no inputs, but regmean needs it; pass prompts to record them (--prompts tool=FILE)" in done.stderr


def test_a_merge_with_prompts_warns_of_what_their_calibration_notes(prompt_files: dict[str, str]) -> None:
    lines = Path("code.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), "reply": " "})
    Path("code.jsonl").write_text("\n".join(lines))
    recipe = {"method": "regmean", "base": "base", "agents": AGENTS, "prompts": prompt_files}
    for out in ("first", "from the cache"):
        assert "code: 1 of 6 replies are empty" in ramerge.merge(recipe, out).warnings


def test_prompts_choose_in_recommend_and_auto(prompt_files: dict[str, str]) -> None:
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    found = ramerge.recommend(recipe)
    assert next(iter(found.masses)).split()[0] == found.method
    assert list(found.masses.values()) == sorted(found.masses.values(), reverse=True)
    assert {"task_arithmetic", "ram+", "regmean"} <= {name.split()[0] for name in found.masses}
    assert found.behind.keys() == {*found.masses} - {next(iter(found.masses))}
    for name, apart in found.behind.items():
        difference = found.masses[name] - next(iter(found.masses.values()))
        assert apart is not None and apart[0] <= difference <= apart[1]
    record = ramerge.merge({**recipe, "method": "auto"}, "auto")
    assert record.method == found.method
    assert any("the choice is unreliable" in note for note in found.notes)
    assert ramerge.plan({**recipe, "method": "auto"}).warnings == found.notes
    assert {*found.notes} <= {*record.warnings}
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    words = [word for name, path in prompt_files.items() for word in ("--prompts", f"{name}={path}")]
    done = command("recommend", "--base", "base", *models, *words)
    assert done.returncode == 0, done.stderr
    _, first, why, last = done.stdout.splitlines()
    assert f"--method {found.method}" in first and ("--prompts" in first) == (found.method == "regmean")
    assert "mass" in why and "apart, 95 %)" in why
    assert last.startswith("search: ramerge search ") and last.endswith(" SEARCH") and "--prompts code=" in last


def test_a_search_takes_its_usual_space_for_auto(prompt_files: dict[str, str]) -> None:
    settings = ramerge.SearchSettings(trials=1, html=False, calibration=SETTINGS)
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    auto, usual = (
        ramerge.search({**recipe, **more}, name, settings=settings)
        for name, more in (("auto", {"method": "auto"}), ("usual", {}))
    )
    assert [point.point for point in auto.points] == [point.point for point in usual.points]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"code": "nosuch.jsonl"}, "nosuch.jsonl: no such file"),
        ({"tool": ""}, "tool: has no prompts; give "),
        ({"tool": "bad.jsonl"}, "bad.jsonl"),
        ({"tool": "one.jsonl"}, "one.jsonl: gives one prompt"),
    ],
)
def test_recommend_reads_prompts_before_weights(
    changed: dict[str, str],
    problem: str,
    prompt_files: dict[str, str],
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("bad.jsonl").write_text('{"prompt": \n')
    Path("one.jsonl").write_text('{"prompt": "111+222="}\n')
    prompts = {name: path for name, path in (prompt_files | changed).items() if path}
    words = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    words += [word for name, path in prompts.items() for word in ("--prompts", f"{name}={path}")]
    monkeypatch.setattr("ramerge.analysis.recommend.analyze", _not_called)  # first: it is imported from the other
    monkeypatch.setattr("ramerge.analysis.analyze.analyze", _not_called)
    done = command("recommend", "--base", "base", *words)
    assert done.returncode == 2 and problem in done.stderr, done.stderr
    with pytest.raises(ramerge.RamergeError) as error:
        ramerge.recommend({"base": "base", "agents": AGENTS, "prompts": prompts})
    assert problem in str(error.value)
    assert not own_cache.exists()


def _not_called(*_: object, **__: object) -> None:
    raise AssertionError("weights are read")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAMERGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/ramerge/calibrations"


def test_what_is_gathered_belongs_to_its_models_and_prompts(prompt_files: dict[str, str], own_cache: Path) -> None:
    recipe = {"base": "base", "agents": {"code": "coder"}, "prompts": {"code": prompt_files["code"]}}
    first = ramerge.gather(recipe)["code"]
    before = (first / "inputs.safetensors").read_bytes()
    assert ramerge.gather(recipe)["code"] == first
    Path("code.jsonl").write_text(Path("code.jsonl").read_text().splitlines()[0] + "\n" + '{"prompt": "111+222="}\n')
    second = ramerge.gather(recipe)["code"]
    assert second != first and (first / "inputs.safetensors").read_bytes() == before
    weights = Path("coder/model.safetensors")
    weights.write_bytes(weights.read_bytes())  # the same again, but who knows
    assert ramerge.gather(recipe)["code"] not in (first, second)


@pytest.mark.parametrize(
    "name", ["inputs.safetensors", "inputs.json", "model.json", "replies.jsonl", "calibration.json"]
)
def test_damage_in_the_cache_is_repaired(name: str, prompt_files: dict[str, str], own_cache: Path) -> None:
    recipe = {"base": "base", "agents": {"code": "coder"}, "prompts": {"code": prompt_files["code"]}}
    file = ramerge.gather(recipe)["code"] / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + b"\x7f" * 10 + whole[len(whole) // 2 + 10 :])
    assert ramerge.gather(recipe)["code"] == file.parent
    if name != "calibration.json":  # which has seconds
        assert file.read_bytes() == whole


def test_the_number_of_prompts_is_compared_with_the_files_and_the_last_run(
    prompt_files: dict[str, str], messages: Messages
) -> None:
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}

    def search(count: int) -> ramerge.SearchResult:
        calibration = replace(SETTINGS, count=count)
        return ramerge.search(recipe, "found", settings=ramerge.SearchSettings(trials=1, calibration=calibration))

    messages.check(*(note for note in search(2000).notes if "prompt-count 2,000" in note))
    with messages.raises(ramerge.EvaluationError):
        search(4)


def test_a_search_that_is_refused_is_left_as_it_was(prompt_files: dict[str, str]) -> None:
    settings = ramerge.SearchSettings(html=False, trials=1, calibration=SETTINGS)
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    result = ramerge.search(recipe, "found", settings=settings)
    before = Path("code.jsonl").read_text()
    Path("code.jsonl").write_text('{"prompt": "111+222="}\n{"prompt": "111+223="}\n')
    with pytest.raises(ramerge.EvaluationError, match="holds a search with other prompts: code has changed") as error:
        ramerge.search(recipe, "found", settings=settings)
    assert "overwrite" not in str(error.value)  # which a search does not have
    Path("code.jsonl").write_text(before)
    kept = {path: path.stat().st_mtime_ns for path in Path("found").rglob("*")}
    more = {**recipe, "agents": {**AGENTS, "more": "coder"}, "prompts": {**prompt_files, "more": "code.jsonl"}}
    for other in (more, {**recipe, "method": "ties"}):
        with pytest.raises(ramerge.EvaluationError, match="holds a search with another recipe"):
            ramerge.search(other, "found", settings=settings)
    assert {path: path.stat().st_mtime_ns for path in Path("found").rglob("*")} == kept, "agents were gathered"
    assert ramerge.search(recipe, "found", settings=settings).points == result.points


def test_what_is_wrong_shows_before_agents_are_asked(prompt_files: dict[str, str], own_cache: Path) -> None:
    recipe = {"method": "regmean", "base": "base", "agents": AGENTS, "prompts": prompt_files}
    with pytest.raises(ramerge.PlanError, match="base: is one of the inputs"):
        ramerge.merge(recipe, "base")
    with pytest.raises(ramerge.RecipeError):
        ramerge.sweep(recipe, "out", vary={"method": ["regmean", "ties"]})
    with pytest.raises(ramerge.RecipeError, match=r"code: .* is no path"):
        ramerge.plan({**recipe, "prompts": {**prompt_files, "code": "a\0b"}})
    assert not own_cache.exists()


def test_the_rules_of_a_recipe_stay(prompt_files: dict[str, str], own_cache: Path) -> None:
    rules = [{"match": "*norm*", "keep": "base"}, {"match": "*mlp*", "parameters": {"r": 0.2}}]
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files, "dtype": "float32", "rules": rules}
    settings = ramerge.SearchSettings(html=False, calibration=SETTINGS)
    result = ramerge.search(recipe, "found", vary={"method": ["ram+", "regmean"]}, settings=settings)
    assert [point.state for point in result.points] == ["complete"] * 2
    ram, regmean = (ramerge.read_recipe(f"found/trials/{point.number}.yaml") for point in result.points)
    assert [rule.keep for rule in ram.rules] == [rule.keep for rule in regmean.rules] == ["base", None]
    assert (ram.rules[1].parameters, regmean.rules[1].parameters or {}) == ({"r": 0.2}, {})
    assert ram.dtype == regmean.dtype == ramerge.read_recipe("found/recipe.yaml").dtype == "float32"
    base = {"rules": [{"match": "*", "keep": "base"}]}
    merges = {name: {"method": name} for name in ("task_arithmetic", "ram+")}
    first, second = ramerge.rank({**recipe, **base}, merges, settings=SETTINGS).means.values()
    assert first == second, "both are the base"


def test_the_named_method_varies(prompt_files: dict[str, str]) -> None:
    settings = ramerge.SearchSettings(html=False, calibration=SETTINGS)
    recipe = {"method": "ram+", "base": "base", "agents": AGENTS, "prompts": prompt_files}
    result = ramerge.search(recipe, "found", vary={"parameters.r": [0, 0.1]}, settings=settings)
    assert [point.point for point in result.points] == [{"method": "ram+", "parameters.r": r} for r in (0, 0.1)]
    own = {**recipe, "method": "ties", "parameters": {"density": 0.3}}
    tried = ramerge.search(own, "usual", settings=settings).points
    assert tried[-1].point == {"method": "ties", "parameters.density": 0.3} and len(tried) == 12


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--score", "nofile.py:f"], "--score nofile.py:f: nofile.py: there is no such Python file"),
        (["--objective", "bogus"], "unknown --objective 'bogus'; known: code, tool, memory, mean, worst"),
        (["--set", "dtype=bfloat61"], "--set dtype=bfloat61: unknown value 'bfloat61'"),
        (["--dtype", "bfloat61"], "--dtype: unknown value 'bfloat61'"),
        (["--set", "foo=1"], "--set foo=1: unknown key 'foo'"),
        (["--method", "rma"], "--method: unknown method 'rma'"),
        (["--vary", "method=rma"], "--vary method: unknown method 'rma'"),
        (["--set", "parameters.q=1"], "--set parameters.q=1: unknown parameter of ram+ 'q'"),
        (
            ["--set", "parameters.q=1", "--vary", "method=ties,regmean"],
            "--set parameters.q=1: unknown parameter of ram+, ties and regmean 'q'",
        ),
        (["--preset", "x", "--vary", "method=ties,regmean"], "--preset: unknown preset of ram+, ties and regmean 'x'"),
        (["--sampler", "cmaes"], "--sampler cmaes: needs two ranges"),
    ],
)
def test_a_wrong_search_asks_no_agent(words: list[str], problem: str, prompt_files: dict[str, str]) -> None:
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    prompts = [word for name, path in prompt_files.items() for word in ("--prompts", f"{name}={path}")]
    done = command("search", "--base", "base", *models, *prompts, *words, "found")
    assert problem in done.stderr and "Traceback" not in done.stderr
    assert not Path("found/calibration").exists()


def _refuse_to_ask(*_: object, **__: object) -> None:
    raise AssertionError("agents are prompt_files")


def test_a_wrong_recipe_asks_no_agent(
    prompt_files: dict[str, str], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramerge.calibration.cache.gather_agents", _refuse_to_ask)
    monkeypatch.setattr("ramerge.calibration.calibrate.gather_agents", _refuse_to_ask)
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    auto = {**recipe, "method": "auto"}
    with pytest.raises(ramerge.PlanError, match="base: is one of the inputs"):
        ramerge.merge(auto, "base")
    with pytest.raises(ramerge.RecipeError, match="bfloat61"):
        ramerge.merge({**auto, "dtype": "bfloat61"}, "out")
    with pytest.raises(ramerge.RecipeError, match="only parameters can be varied"):
        ramerge.sweep(auto, "out", vary={"r": [0, 0.1]})
    with pytest.raises(ramerge.RecipeError, match="unknown method 'rma'"):
        ramerge.rank(recipe, {"a": {"method": "rma"}}, settings=SETTINGS)
    for wrong in ({"method": "rma"}, {"foo": 1}, {"parameters": {"q": 1}}, {"method": "auto", "parameters": {"r": 1}}):
        with pytest.raises(ramerge.RecipeError):
            ramerge.calibrate({**recipe, **wrong}, "out", settings=SETTINGS)
        with pytest.raises(ramerge.RecipeError):
            estimate_calibration({**recipe, **wrong}, settings=SETTINGS)
    assert not Path("out").exists()


def test_rollouts_outside_of_their_folder_are_refused(prompt_files: dict[str, str], tmp_path: Path) -> None:
    Path("rollouts").mkdir()
    Path("rollouts/a.jsonl").symlink_to(tmp_path / "code.jsonl")
    recipe = {"base": "base", "agents": {"code": "coder"}, "prompts": {"code": "rollouts"}}
    with pytest.raises(ramerge.InputError, match=r"a\.jsonl: leads out of the folder"):
        ramerge.calibrate(recipe, "out", settings=SETTINGS)


def test_what_differs_from_an_earlier_search_is_named(prompt_files: dict[str, str]) -> None:
    recipe = {"base": "base", "agents": AGENTS, "prompts": prompt_files}
    settings = ramerge.SearchSettings(html=False, trials=1, calibration=SETTINGS)
    first = ramerge.search(recipe, "found", settings=settings)
    longer = replace(settings, calibration=replace(SETTINGS, max_new=13))
    with pytest.raises(ramerge.EvaluationError, match="other settings: max_new: it was 12, and is 13"):
        ramerge.search(recipe, "found", settings=longer)
    shutil.move("found", "moved")
    assert ramerge.search(recipe, "moved", settings=settings).points == first.points
    respelled = {**recipe, "base": str(Path("base").absolute())}
    assert ramerge.search(respelled, "moved", settings=settings).points == first.points
    text = Path("code.jsonl").read_text()
    for other in (text.partition("\n")[2], text.replace("{", '{"ground_truth": "1", ', 1)):
        Path("code.jsonl").write_text(other)
        with pytest.raises(ramerge.EvaluationError, match="other prompts: code has changed"):
            ramerge.search(recipe, "moved", settings=settings)
    Path("code.jsonl").write_text(text)
    shutil.copy("tool/model.safetensors", "coder/model.safetensors")
    with pytest.raises(ramerge.EvaluationError, match="holds a search with another code: its weights"):
        ramerge.search(recipe, "moved", settings=settings)


def test_auto_keeps_the_prompts_that_have_chosen(prompt_files: dict[str, str]) -> None:
    ramerge.merge({"base": "base", "agents": AGENTS, "prompts": prompt_files, "method": "auto"}, "auto")
    assert set(ramerge.handoff("auto", "student").prompts) == set(AGENTS)
    Path("question.jsonl").write_text('{"question": "1+1=", "completion": "2", "score": 1}\n{"question": "1+2="}\n')
    assert [each.text for each in read_prompts(Path("question.jsonl"))] == ["1+1=", "1+2="]
