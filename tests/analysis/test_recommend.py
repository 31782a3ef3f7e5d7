"""What `ramerge recommend` says: for the shipped agents, copies, dense agents, and without evidence."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ramerge
from ramerge.analysis import recommend
from ramerge.cli.flags.read import recipe_of_words
from ramerge.cli.flags.write import words_of
from ramerge.cli.main import cli
from ramerge.cli.words import read_varied
from ramerge.core.engine.warn import AboutMethod, SaysWhereToBegin
from ramerge.core.foundation.errors import PlanError, RecipeError
from ramerge.core.methods.moved import GUIDE
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.document import read_document
from ramerge.demo.run import AGENTS
from ramerge.searches.spacefile import vary_space
from tests.checkpoints import recipe, write_checkpoint
from tests.reference import encode

SHIPPED = [
    "--base",
    str(AGENTS / "base"),
    *(word for task in ("coder", "tool", "memory") for word in ("--agent", f"{task}={AGENTS / task}")),
]


def test_situations() -> None:
    assert recommend.situation([0.2, 0.3], [0.1]) == recommend.PAIR
    assert recommend.situation([0.2, 0.3, 0.1], [0.1]) == recommend.SPARSE
    assert recommend.situation([0.9, 0.3], [0.1]) == recommend.DENSE
    assert recommend.situation([0.2, 0.3, 0.2], [0.1, 0.99, 0.1]) == recommend.COPIES
    assert recommend.situation([0.2], []) == recommend.SPARSE
    assert recommend.situation([0.9, 0.3], [0.1], adapters=True) == recommend.ADAPTERS
    assert recommend.situation([0.9, 0.3], [0.95], adapters=True) == recommend.COPIES


def test_the_command_says_what_to_try_and_why() -> None:
    told = CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache"])
    assert told.exit_code == 0, told.output
    assert "try first: ramerge merge --base" in told.output
    kinds = [line.partition(":")[0] for line in told.stdout.splitlines()]
    assert kinds == ["try first", "why", "confidence", "better", "compare"]
    assert "why: the agents are sparse (densities coder 34.1%" in told.stdout
    assert CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache", "--quiet"]).stdout == told.stdout
    shown = CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache", "--evidence"]).stdout
    assert shown.startswith(told.stdout) and "\nevidence: " in shown and "\nnot known: " in shown
    plain = CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache", "--json"])
    values = json.loads(plain.output)
    assert values["situation"] == "sparse" and values["method"] in METHODS
    assert values["method"] not in values["compare"]


@pytest.mark.full
def test_its_first_line_is_a_command_that_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my recipe.yaml").write_text(
        f"method: ties\nparameters: {{density: 0.3}}\nbase: {AGENTS / 'base'}\n"
        f"agents: {{coder: {AGENTS / 'coder'}, memory: {AGENTS / 'memory'}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    given = [
        "my recipe.yaml",
        "--set",
        "parameters.density=0.5",
        "--set",
        "allow.missing_tensors=true",
        "--dtype",
        "float32",
    ]
    told = CliRunner().invoke(cli, ["recommend", *given, "--no-cache"])
    assert told.exit_code == 0, told.output
    command = shlex.split(told.stdout.splitlines()[0].removeprefix("try first: "))
    assert command[0] == "ramerge" and command[-1] == "OUT"
    merged = CliRunner().invoke(cli, command[1:])
    assert merged.exit_code == 0, merged.output
    record = json.loads((tmp_path / "OUT/ramerge.json").read_text())
    assert record["dtype"] == "float32" and record["method"] in command


INPUTS = """
base: base
agents: {coder: coder, memory: memory}
"""
RULES = f"""
method: ties
parameters: {{density: 0.3}}
{INPUTS}
rules: [{{layers: 0, parameters: {{density: 0.5}}}}, {{match: "*norm*", keep: base}}]
rename: [{{from: "^unknown", to: known}}]
allow: {{missing_tensors: true}}
dtype: float32
"""
MERGEKIT = """
merge_method: ties
base_model: base
parameters: {weight: 1}
models:
  - {model: coder, parameters: {density: 0.3}}
  - {model: memory, parameters: {density: [0.3, 0.5]}}
dtype: float32
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        RULES.replace("rename", "#"),
        MERGEKIT,
        MERGEKIT.replace("[0.3, 0.5]", "0.3"),
        f"method: ram\n{INPUTS}preset: paper\n",
        f"{INPUTS}rounding: stochastic\n",
    ],
    ids=["rules", "mergekit's gradients", "mergekit", "a preset", "neither"],
)
def test_the_agents_of_a_recipe_are_named_whatever_its_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "models").mkdir()
    for name in ("base", "coder", "memory"):
        (tmp_path / "models" / name).symlink_to(AGENTS / name)
    (tmp_path / "models/recipe.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, ["recommend", "models/recipe.yaml", "--no-cache"])
    assert told.exit_code == 0, told.output
    first = told.stdout.splitlines()[0]
    command = shlex.split(first.removeprefix("try first: "))
    assert command[2:4] == ["--base", "models/base"] and "coder=models/coder" in command
    merged = CliRunner().invoke(cli, command[1:])
    assert merged.exit_code == 0, merged.output
    record = json.loads((tmp_path / "OUT/ramerge.json").read_text())
    assert record["dtype"] == ("float32" if "dtype" in text else "bfloat16")
    assert len(record.get("rules", ())) == (2 if "keep" in text else 0)


def test_keys_that_go_with_any_method_become_flags_that_read_as_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RULES)
    document = read_document(tmp_path / "recipe.yaml")
    empty = {"base": None, "agents": (), "settings": (), "dtype": None}
    words = words_of(document, method=False)
    settings = [value for flag, value in pairwise(words) if flag == "--set"]
    agents = [value for flag, value in pairwise(words) if flag == "--agent"]
    read = recipe_of_words([], {**empty, "base": "base", "agents": agents, "settings": settings})
    kept = {key: value for key, value in document.as_dict().items() if key not in ("method", "parameters")}
    first, second = kept["rules"]
    assert read.as_dict() == {**kept, "rules": [{**first, "parameters": {}}, second]}


@pytest.mark.full
def test_its_last_line_is_a_search_to_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.yaml").write_text(
        f"base: {AGENTS / 'base'}\nagents: {{{', '.join(f'{t}: {AGENTS / t}' for t in ('coder', 'tool', 'memory'))}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    last = CliRunner().invoke(cli, ["recommend", "r.yaml", "--no-cache"]).stdout.splitlines()[-1]
    command = last.partition("compare: ramerge search ")[2]
    named = known_of(recommend.when_trained(recommend.SPARSE, "rl"))["method"]
    others = ("ram+", "task_arithmetic", "ties", "core", "swudi")
    compared = ",".join((named, *(name for name in others if name != named)))
    assert command.startswith(f"{shlex.join(SHIPPED)} SEARCH --vary method={compared} ")
    assert command.endswith(" --score FILE.py:FUNCTION")
    varied = read_varied([value for flag, value in pairwise(shlex.split(command)) if flag == "--vary"])
    assert vary_space(read_document(tmp_path / "r.yaml"), varied).size >= 4
    told = CliRunner().invoke(cli, ["recommend", *SHIPPED, "--dtype", "float32", "--no-cache"]).stdout.splitlines()[-1]
    words = shlex.split(told.partition("compare: ramerge search ")[2])
    assert words[: words.index("SEARCH")] == [*SHIPPED, "--set", "dtype=float32"]


def test_what_was_not_measured_is_not_said_to_make_no_difference(analysis: ramerge.Analysis) -> None:
    agents = tuple(replace(agent, density=0.1) for agent in analysis.model.agents)
    pair = replace(analysis, model=replace(analysis.model, agents=agents))
    known, unknown = (recommend.recommend(pair, trained_by=way) for way in ("rl", "sft"))
    assert known.situation == unknown.situation == recommend.PAIR and known.method == unknown.method
    assert "only agents trained by RL were measured" in unknown.unknown[1]
    assert not any("were measured in this" in text for text in known.unknown)
    assert known.reasons == unknown.reasons


def test_what_it_says_to_compare_with_is_in_the_search(analysis: ramerge.Analysis) -> None:
    """What tiny agents prefer, and what either training would name, with their parameters."""
    told = CliRunner().invoke(cli, ["recommend", *SHIPPED, "--trained-by", "rl", "--no-cache"]).stdout.splitlines()
    rl, sft = (known_of(recommend.when_trained(recommend.SPARSE, way)) for way in ("rl", "sft"))
    words = shlex.split(told[-1])
    (methods,) = (word.removeprefix("method=").split(",") for word in words if word.startswith("method="))
    assert rl["divided"] and {rl["method"], rl["best"]["method"], sft["method"]} <= set(methods)
    unsaid = CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache"]).stdout.splitlines()[-1]
    for name, value in rl["parameters"].items():
        assert f"--vary parameters.{name}={value}," in unsaid
    found = recommend.recommend(analysis)
    assert known_of(found.situation)["best"] in found.also


def test_agents_that_moved_nothing_are_refused(analysis: ramerge.Analysis) -> None:
    agents = tuple(replace(agent, density=0.0) for agent in analysis.model.agents)
    with pytest.raises(PlanError, match="no agent moved any element"):
        recommend.recommend(replace(analysis, model=replace(analysis.model, agents=agents)))


def test_its_commands_follow_links_where_it_may(tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    shutil.copytree(AGENTS / "memory", linked)
    (linked / "model.safetensors").unlink()
    (linked / "model.safetensors").symlink_to(AGENTS / "memory" / "model.safetensors")
    inputs = ["--base", str(AGENTS / "base"), "--agent", f"a={AGENTS / 'coder'}", "--agent", f"b={linked}"]
    told = CliRunner().invoke(cli, ["recommend", *inputs, "--no-cache", "--allow-outside-links"]).stdout.splitlines()
    assert "--allow-outside-links" in told[0] and "--allow-outside-links" in told[-1]
    assert CliRunner().invoke(cli, [*shlex.split(told[0])[3:-1], str(tmp_path / "out")]).exit_code == 0


def test_another_way_of_training_is_refused(analysis: ramerge.Analysis) -> None:
    with pytest.raises(RecipeError, match="trained_by 'dpo': must be one of rl, sft"):
        recommend.recommend(analysis, trained_by="dpo")  # type: ignore[call-overload]


def test_situations_are_advised_as_the_lab_says(analysis: ramerge.Analysis) -> None:
    def found(density: float, cosine: float) -> recommend.Recommendation:
        agents = tuple(replace(agent, density=density) for agent in analysis.model.agents)
        pairs = tuple(replace(pair, cosine=cosine) for pair in analysis.model.pairs)
        model = replace(analysis.model, agents=agents, pairs=pairs)
        return recommend.recommend(replace(analysis, model=model))

    adapters = recommend.recommend(replace(analysis, adapters=tuple(analysis.agents)))
    told = {one.situation: one for one in (found(0.1, 0.0), found(0.1, 0.95), found(0.9, 0.0), adapters)}
    assert list(told) == ["pair", "copies", "dense", "adapters"]
    for name, one in told.items():
        known = known_of(name)
        assert (one.method, one.parameters) == (known["method"], known["parameters"])
        conflicts = [text for text in one.evidence if text.startswith("Evidence conflicts: ")]
        assert bool(conflicts) == known["divided"] == (known["best"] in one.also)
    # a mixture of adapters and checkpoints is judged by its densities
    mixed = replace(analysis, adapters=tuple(analysis.agents)[:1])
    assert recommend.recommend(mixed).situation == recommend.DENSE
    said = "LoRA adapters that were merged into the base"
    assert said in " ".join(told["dense"].unknown) and said not in " ".join(recommend.recommend(mixed).unknown)


def test_evidence_of_another_kind_of_agents_is_little(analysis: ramerge.Analysis) -> None:
    agents = tuple(replace(agent, density=0.1) for agent in analysis.model.agents)[:2]
    pairs = tuple(replace(pair, cosine=0.0) for pair in analysis.model.pairs)[:1]
    one, other = (agent.name for agent in agents)
    pair = replace(analysis, model=replace(analysis.model, agents=agents, pairs=pairs))
    dtypes = dict.fromkeys(("base", one, other), "bfloat16")
    sure = recommend.recommend(replace(pair, input_dtypes=dtypes))
    assert sure.confidence == recommend._confidence(known_of("pair")) == "medium"
    assert not any("what was measured" in reason for reason in sure.reasons)
    found = recommend.recommend(replace(pair, adapters=(one,), input_dtypes=dtypes | {other: "float32"}))
    assert (found.situation, found.confidence) == ("pair", "low")
    text = f"what was measured are agents in bfloat16, and {one} is a LoRA adapter and {other} is float32"
    assert text in found.reasons


def test_the_method_auto_is_what_it_says(tmp_path: Path) -> None:
    inputs = {
        "base": str(AGENTS / "base"),
        "agents": {task: str(AGENTS / task) for task in ("coder", "tool", "memory")},
    }
    found = ramerge.recommend(inputs)
    record = ramerge.merge(inputs | {"method": "auto"}, tmp_path / "auto")
    assert (
        record.method == found.method
        and "auto" not in (tmp_path / "auto" / "ramerge.json").read_text().partition("notes")[0]
    )
    assert record.notes[0].startswith(f"auto: {found.method}") and found.reasons[0] in record.notes[0]
    named = ramerge.merge(found.applied(inputs), tmp_path / "named")
    assert named.notes == record.notes[1:]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("auto", "named")]
    assert weights[0] == weights[1]
    assert "trained by RL (--trained-by sft names " in record.notes[0]
    assert ramerge.recommend(inputs | {"method": "auto"}) == found
    with pytest.raises(RecipeError, match="parameters: the method auto chooses parameters, too"):
        ramerge.plan(inputs | {"method": "auto", "parameters": {"r": 0.1}})


def test_what_it_says_can_be_merged() -> None:
    values = json.loads(CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache", "--json"]).output)
    document = {"base": str(AGENTS / "base"), "agents": {task: str(AGENTS / task) for task in ("coder", "memory")}}
    assert not ramerge.plan({**document, "method": values["method"], "parameters": values["parameters"]}).problems


@pytest.fixture
def analysis(tmp_path: Path) -> ramerge.Analysis:
    generator = np.random.default_rng(1)
    for name in ("base", "x", "y"):
        write_checkpoint(tmp_path / name, {"w": encode(generator.standard_normal((8, 8)), "F32")})
    return ramerge.analyze(recipe(tmp_path, ["x", "y"]), options=ramerge.Options(cache=False))


def test_dense_agents_are_dense(analysis: ramerge.Analysis) -> None:
    assert recommend.recommend(analysis).situation == recommend.DENSE


def test_near_the_limit_it_says_so(analysis: ramerge.Analysis) -> None:
    agents = tuple(replace(agent, density=0.45) for agent in analysis.model.agents)
    found = recommend.recommend(replace(analysis, model=replace(analysis.model, agents=agents)))
    assert any("near the limit" in text for text in found.unknown)


def known_of(situation: str) -> dict:
    path = Path(recommend.__file__).with_name("advice.json")
    return json.loads(path.read_text(encoding="utf-8"))["situations"][situation]


def test_the_pages_that_are_named_have_the_tables() -> None:
    root = Path(__file__).parents[2]
    assert "\n## What recommend says\n" in (root / recommend.PAGE).read_text(encoding="utf-8")
    assert "\n## On more kinds of real agents\n" in (root / recommend.REAL).read_text(encoding="utf-8")


def test_pages_name_what_is_advised() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "docs/methods/index.md").read_text(encoding="utf-8").splitlines()
    for name in (recommend.ADAPTERS, recommend.COPIES, recommend.DENSE, recommend.PAIR, recommend.SPARSE):
        known = known_of(name)
        (line,) = (line for line in lines if line.startswith(f"| *{name}*"))
        tried = line.split(" | ")[1]
        assert tried.startswith(f"[`{known['method']}`]"), line
        assert all(f"`{key}: {value}`" in tried for key, value in known["parameters"].items()), line
    known = known_of(recommend.when_trained(recommend.SPARSE, "rl"))
    (line,) = (line for line in lines if "trained by RL (`recommend --trained-by rl`, the default)" in line)
    assert f"[`{known['method']}`]" in line
    assert all(f"`{key}: {value}`" in line for key, value in known["parameters"].items())


def test_agents_that_point_the_same_way_were_not_measured(analysis: ramerge.Analysis) -> None:
    def unknown(cosine: float) -> str:
        pairs = tuple(replace(pair, cosine=cosine) for pair in analysis.model.pairs)
        found = recommend.recommend(replace(analysis, model=replace(analysis.model, pairs=pairs)))
        return " ".join(found.unknown)

    assert "a cosine of 0.85" in unknown(0.85) and "cosine" not in unknown(0.5)


def test_copies_are_found(analysis: ramerge.Analysis) -> None:
    pairs = tuple(replace(pair, cosine=0.95) for pair in analysis.model.pairs)
    found = recommend.recommend(replace(analysis, model=replace(analysis.model, pairs=pairs)))
    assert found.situation == recommend.COPIES and "the cosine of" in found.reasons[0]


def test_updates_that_rounding_erases_are_rounded_with_coins(analysis: ramerge.Analysis) -> None:
    rounding = {agent.name: {"erased_share": 0.4} for agent in analysis.model.agents}
    found = recommend.recommend(replace(analysis, rounding=rounding))
    assert found.rounding == "stochastic" and "40%" in found.reasons[-1]
    assert recommend.recommend(analysis).rounding is None


def test_without_evidence_it_says_that_it_does_not_know(
    analysis: ramerge.Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "advice.json").write_text('{"margin": 1.0, "parameters": 0, "situations": {}}')
    monkeypatch.setattr(recommend, "files", lambda _: tmp_path)
    found = recommend.recommend(analysis)
    assert found.method == "ram+" and not found.evidence
    assert "no measurements" in found.unknown[0] and (found.confidence, found.check) == ("low", "not measured")


@pytest.fixture
def rounded(tmp_path: Path) -> list[str]:
    """Flags for float32 agents that moved everything, by less than half a step of bfloat16, and an output in that."""
    generator = np.random.default_rng(1)
    base = generator.uniform(1, 2, (64, 64))
    for name in ("base", "x", "y"):
        moved = generator.normal(0, 1e-3, base.shape) if name != "base" else 0
        write_checkpoint(tmp_path / name, {"w": encode(base + moved, "F32")})
    return [
        *("--base", str(tmp_path / "base"), "--dtype", "bfloat16", "--no-cache"),
        *(word for name in ("x", "y") for word in ("--agent", f"{name}={tmp_path / name}")),
    ]


@pytest.mark.full
def test_warnings_about_another_method_than_the_advised_one_are_left_out(rounded: list[str]) -> None:
    told = CliRunner().invoke(cli, ["recommend", *rounded])
    assert told.exit_code == 0 and f"--method {known_of('dense')['method']}" in told.stdout.splitlines()[0], told.output
    assert "warning:" not in told.stderr and "--set rounding=stochastic" in told.stdout
    of_ram = CliRunner().invoke(cli, ["analyze", *rounded]).stderr
    assert "warning: rounding to bfloat16 erases" in of_ram and "warning: epsilon = 1e-05" in of_ram


def test_warnings_about_the_advised_method_or_the_inputs_stay(analysis: ramerge.Analysis) -> None:
    warnings = (AboutMethod("of ram+"), SaysWhereToBegin("begin with core+"), "of the inputs")
    warned = replace(analysis, warnings=warnings)
    assert recommend.warnings_for(warned, analysis.method) == ("of ram+", "of the inputs")
    assert recommend.warnings_for(warned, "ties") == ("of the inputs",)


@pytest.mark.full
def test_all_warnings_about_float32_agents_point_to_one_list(rounded: list[str]) -> None:
    (title,) = re.fullmatch(r'the guide "(.+)" lists what to do, in order', GUIDE).groups()
    text = (Path(__file__).parents[2] / "docs/guides/merge-float32.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {title}\n")
    for command, pointers in (("plan", 2), ("analyze", 2), ("recommend", 1)):
        told = CliRunner().invoke(cli, [command, *rounded])
        assert " ".join(told.output.split()).count(GUIDE) == pointers, told.output
    # what the list names first is what is advised
    dense = known_of(recommend.DENSE)
    flags = [
        f"--method {dense['method']}",
        *(f"--set parameters.{one}" for one in recommend._assigned(dense["parameters"])),
    ]
    assert " ".join(flags) in text


@pytest.mark.parametrize("way", recommend.TRAINED_BY)
def test_how_agents_were_trained_decides_for_sparse_ones(way: recommend.TrainedBy, analysis: ramerge.Analysis) -> None:
    """RL is the default, and the second line names what else would be said."""
    words = ["recommend", *SHIPPED, "--no-cache"]
    values = json.loads(CliRunner().invoke(cli, [*words, "--trained-by", way, "--json"]).output)
    known = known_of(recommend.when_trained(recommend.SPARSE, way))
    assert (values["method"], values["parameters"]) == (known["method"], known["parameters"])
    (other,) = recommend.TRAINED_BY.keys() - {way}
    named = recommend._merge(known_of(recommend.when_trained(recommend.SPARSE, other)))
    assert values["reasons"][1] == f"trained by {recommend.TRAINED_BY[way]} (--trained-by {other} names `{named}`)"
    if way == recommend.DEFAULT_TRAINING:
        plain = CliRunner().invoke(cli, words).stdout.splitlines()
        assert values["reasons"][1] in plain[1]
    dense = recommend.recommend(analysis, trained_by=way)
    assert dense.situation == recommend.DENSE and not any("trained by" in text for text in dense.reasons)
    assert dense.method == recommend.recommend(analysis).method


def test_the_evidence_is_in_the_words_of_the_field(analysis: ramerge.Analysis) -> None:
    found, known = recommend.recommend(analysis), known_of(recommend.DENSE)
    real, scores = known["real"], known["real"]["scores"]
    of_rival = f"{scores[real['rival']]:.1f} % for `{real['rival']}`"
    first, *others = found.evidence
    assert first == f"Inconclusive on real agents: {scores[found.method]:.1f} %, against {of_rival}."
    best, points = recommend._merge(known["best"]), known["highest"] - known["mean"]
    conflict = f"Evidence conflicts: `{best}` scored {points:.1f} points higher on tiny agents."
    assert f"{conflict} Include it in your comparison." in others
    assert all(name in " ".join(others) for name in (*known["agents"], *real["agents"]))
    held, times = known["trainings"] - known["errors"], known["trainings"]
    assert found.check.endswith(f"the choice was within 1 point of the best in {held} of {times} trainings")
    assert others[-1] == "Tables: docs/findings-recommend.md, docs/findings-real-agents.md"


def test_how_sure_it_is() -> None:
    """Nothing that failed on more than a third of the trainings is called better than low."""
    found = {name: recommend._confidence(known_of(name)) for name in ("adapters", "copies", "dense", "sparse, sft")}
    assert found == {"adapters": "low", "copies": "low", "dense": "medium", "sparse, sft": "medium"}
    sure = known_of("dense") | {"divided": False, "errors": 0, "real": {"speaks": "for"}}
    assert recommend._confidence(sure) == "high" and recommend._confidence(None) == "low"


def test_adapters_get_what_is_best_on_real_ones() -> None:
    known = known_of(recommend.ADAPTERS)
    assert known["real"]["scores"][recommend._merge(known)] == max(known["real"]["scores"].values())
