"""What `ramerge recommend` says of weights: for the shipped agents, near-copies, dense ones and adapters."""

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
from ramerge.core.engine.warn import AboutMethod, SaysWhereToBegin
from ramerge.core.foundation.errors import PlanError, RecipeError
from ramerge.core.methods.moved import GUIDE
from ramerge.core.recipe.document import read_document
from ramerge.demo.run import AGENTS
from ramerge.ui.draft import checked_draft
from ramerge.ui.roots import Roots
from tests.checkpoints import recipe, write_checkpoint
from tests.messages import Messages
from tests.reference import encode


def command_in(text: str, name: str) -> str:
    """The row of a name in what `recommend` prints."""
    (row,) = (line.removeprefix(f"{name}: ") for line in text.splitlines() if line.startswith(f"{name}: "))
    return row


SHIPPED = [
    "--base",
    str(AGENTS / "base"),
    *(word for task in ("coder", "tool", "memory") for word in ("--agent", f"{task}={AGENTS / task}")),
]


@pytest.mark.parametrize(
    ("densities", "cosine", "adapters", "kind", "method"),
    [
        ([0.2, 0.3, 0.1], 0.1, False, recommend.SPARSE, "ram+"),
        ([0.9, 0.3], 0.1, False, recommend.DENSE, "core+"),
        ([0.2, 0.3], 0.95, False, recommend.COPIES, "ram+"),
        ([0.9, 0.3], 0.1, True, recommend.ADAPTERS, "ram+"),
        ([0.9, 0.3], 0.95, True, recommend.COPIES, "ram+"),
    ],
)
def test_each_kind_of_agents_has_one_method(
    densities: list[float], cosine: float, adapters: bool, kind: str, method: str
) -> None:
    assert recommend.situation(densities, cosine, adapters=adapters) == kind
    assert recommend._METHODS[kind][0] == method


def test_it_shows_agents_merge_reason_and_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache"])
    assert told.exit_code == 0, told.output
    rows = dict(line.split(": ", 1) for line in told.stdout.splitlines())
    assert list(rows) == ["agents", "try first", "why", "search"]
    assert rows["agents"].startswith("sparse: coder moved 34.1% (bfloat16), tool moved ")
    assert "no method on weights is best everywhere" in rows["why"]
    assert rows["try first"] == f"ramerge merge {shlex.join(SHIPPED)} --method ram+ OUT"
    prompts = " ".join(f"--prompts {name}=FILE" for name in ("coder", "tool", "memory"))
    assert rows["search"] == f"ramerge search {shlex.join(SHIPPED)} {prompts} SEARCH"
    assert CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache", "--quiet"]).stdout == told.stdout


def test_the_record_has_facts_and_commands() -> None:
    values = json.loads(CliRunner().invoke(cli, ["recommend", *SHIPPED, "--no-cache", "--json"]).output)
    assert (values["situation"], values["method"], values["parameters"]) == ("sparse", "ram+", {})
    assert set(values["densities"]) == set(values["dtypes"]) == {"coder", "tool", "memory"}
    assert values["adapters"] == [] and values["cosine"] < 0.5 and values["rounding_loss"] is None
    assert values["search"].startswith("ramerge search ") and values["merge"].startswith("ramerge merge ")


@pytest.mark.full
def test_its_first_command_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    command = shlex.split(command_in(told.stdout, "try first"))
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
def test_agents_are_named_for_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "models").mkdir()
    for name in ("base", "coder", "memory"):
        (tmp_path / "models" / name).symlink_to(AGENTS / name)
    (tmp_path / "models/recipe.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, ["recommend", "models/recipe.yaml", "--no-cache"])
    assert told.exit_code == 0, told.output
    command = shlex.split(command_in(told.stdout, "try first"))
    assert command[2:4] == ["--base", "models/base"] and "coder=models/coder" in command
    merged = CliRunner().invoke(cli, command[1:])
    assert merged.exit_code == 0, merged.output
    record = json.loads((tmp_path / "OUT/ramerge.json").read_text())
    assert record["dtype"] == ("float32" if "dtype" in text else "bfloat16")
    assert len(record.get("rules", ())) == (2 if "keep" in text else 0)


def test_general_keys_become_equivalent_flags(tmp_path: Path) -> None:
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


def test_agents_that_moved_nothing_are_refused(analysis: ramerge.Analysis, messages: Messages) -> None:
    agents = tuple(replace(agent, density=0.0) for agent in analysis.model.agents)
    with messages.raises(PlanError):
        recommend.recommend(replace(analysis, model=replace(analysis.model, agents=agents)))


def test_its_commands_follow_links_where_it_may(tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    shutil.copytree(AGENTS / "memory", linked)
    (linked / "model.safetensors").unlink()
    (linked / "model.safetensors").symlink_to(AGENTS / "memory" / "model.safetensors")
    inputs = ["--base", str(AGENTS / "base"), "--agent", f"a={AGENTS / 'coder'}", "--agent", f"b={linked}"]
    told = CliRunner().invoke(cli, ["recommend", *inputs, "--no-cache", "--allow-outside-links"]).stdout
    merge, search = (command_in(told, name) for name in ("try first", "search"))
    assert "outside_links" in merge and "outside_links" in search
    assert CliRunner().invoke(cli, [*shlex.split(merge)[1:-1], str(tmp_path / "out")]).exit_code == 0


def test_auto_needs_prompts(tmp_path: Path, messages: Messages) -> None:
    agents = {task: str(AGENTS / task) for task in ("coder", "tool")}
    inputs = {"base": str(AGENTS / "base"), "agents": agents, "method": "auto"}
    keyword = 'prompts={"coder": FILE, "tool": FILE}'
    line = f"method: auto chooses with prompts of each agent's task: add {keyword}, or name a method"
    for run in (
        lambda: ramerge.merge(inputs, tmp_path / "out"),
        lambda: ramerge.plan(inputs),
        lambda: ramerge.sweep(inputs, tmp_path / "out", vary={"parameters.r": [0, 0.1]}),
        lambda: ramerge.search(inputs, tmp_path / "out", lambda _: {"a": 1.0}),
        lambda: ramerge.merge_state_dicts({}, agents, method="auto"),
        lambda: checked_draft(json.dumps(inputs), Roots((AGENTS,))),
    ):
        with pytest.raises(RecipeError) as error:
            run()
        assert line in str(error.value)
    with messages.raises(RecipeError):
        ramerge.plan({**inputs, "parameters": {"r": 0.1}})
    assert ramerge.recommend(inputs).method == "ram+"


@pytest.fixture
def analysis(tmp_path: Path) -> ramerge.Analysis:
    generator = np.random.default_rng(1)
    for name in ("base", "x", "y"):
        write_checkpoint(tmp_path / name, {"w": encode(generator.standard_normal((8, 8)), "F32")})
    return ramerge.analyze(recipe(tmp_path, ["x", "y"]), options=ramerge.Options(cache=False))


def test_near_copies_are_named(analysis: ramerge.Analysis) -> None:
    pairs = tuple(replace(pair, cosine=0.95) for pair in analysis.model.pairs)
    advice = recommend.recommend(replace(analysis, model=replace(analysis.model, pairs=pairs)))
    assert advice.situation == recommend.COPIES and advice.why[0].startswith("x and y are nearly the same; ")
    assert recommend.recommend(analysis).situation == recommend.DENSE


def test_adapters_are_adapters_if_all_are(analysis: ramerge.Analysis) -> None:
    whole, mixed = (recommend.recommend(replace(analysis, adapters=names)) for names in (("x", "y"), ("x",)))
    assert (whole.situation, mixed.situation) == (recommend.ADAPTERS, recommend.DENSE)
    assert "x moved 100.0% (LoRA, float32), y moved 100.0% (float32)" in mixed.lines[0]


def test_updates_that_rounding_erases_are_rounded_stochastically(analysis: ramerge.Analysis) -> None:
    rounding = {agent.name: {"erased_share": 0.4} for agent in analysis.model.agents}
    advice = recommend.recommend(replace(analysis, rounding=rounding))
    assert advice.rounding == "stochastic" and "--set rounding=stochastic" in advice.merge
    (row,) = (line for line in advice.lines if line.startswith("rounding: "))
    assert "40%" in row and "round stochastically, or write float32" in row
    assert recommend.recommend(analysis).rounding is None


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
def test_warnings_of_other_methods_are_left_out(rounded: list[str]) -> None:
    told = CliRunner().invoke(cli, ["recommend", *rounded])
    assert told.exit_code == 0 and "--method core+ OUT" in told.stdout, told.output
    assert "warning:" not in told.stderr and "--set rounding=stochastic" in told.stdout
    of_ram = CliRunner().invoke(cli, ["analyze", *rounded]).stderr
    assert "warning: rounding to bfloat16 erases" in of_ram and "warning: epsilon = 1e-05" in of_ram


def test_warnings_of_advised_method_and_inputs_stay(analysis: ramerge.Analysis) -> None:
    warnings = (AboutMethod("of ram+"), SaysWhereToBegin("begin with core+"), "of the inputs")
    warned = replace(analysis, warnings=warnings)
    assert recommend.warnings_for(warned, analysis.method) == ("of ram+", "of the inputs")
    assert recommend.warnings_for(warned, "ties") == ("of the inputs",)


@pytest.mark.full
def test_float32_warnings_point_to_one_list(rounded: list[str]) -> None:
    (title,) = re.fullmatch(r'the guide "(.+)" lists what to do, in order', GUIDE).groups()
    text = (Path(__file__).parents[2] / "docs/guides/merge-float32.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {title}\n")
    for command, pointers in (("plan", 2), ("analyze", 2), ("recommend", 1)):
        told = CliRunner().invoke(cli, [command, *rounded])
        assert " ".join(told.output.split()).count(GUIDE) == pointers, told.output
    # what the list names first is what is advised
    assert f"--method {recommend._METHODS[recommend.DENSE][0]}" in text
