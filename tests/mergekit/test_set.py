"""Thirty recipes in mergekit's form, one for each style of its examples, run from several working directories.

Half of them start their paths at the project, as mergekit is run there, half at their own folder.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation.errors import RecipeError
from tests.checkpoints import floats, read_checkpoint, write_checkpoint, write_safetensors
from tests.commands import ramerge as command
from tests.messages import Messages
from tests.planning.test_vocabulary import write as with_vocabulary

SET = Path(__file__).parent / "mergekit_recipes"
RECIPES = sorted(path.stem for path in SET.glob("*.yaml"))
# layers of several models, one after another: the output would have other layers than the base
REFUSED = {"frankenmerge": "slices: are not supported; only whole models can be merged"}
LAYERS, WIDTH = 4, 8
SHAPES = {
    "model.embed_tokens.weight": (12, WIDTH),
    **{
        f"model.layers.{layer}.{part}.weight": shape
        for layer in range(LAYERS)
        for part, shape in {
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.up_proj": (16, WIDTH),
            "mlp.down_proj": (WIDTH, 16),
            "input_layernorm": (WIDTH,),
        }.items()
    },
    "model.norm.weight": (WIDTH,),
}
TOKENS = {"<s>": 0, "a": 1, "b": 2}
CONFIG = {"model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "torch_dtype": "bfloat16"}
ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/base"}


def write_tokenizer(folder: Path, template: str, tokens: dict[str, int] = TOKENS) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def write_models(folder: Path) -> None:
    rng = np.random.default_rng(0)
    base = {name: rng.normal(0, 0.05, shape) for name, shape in SHAPES.items()}
    for name, moved in {"base": 0.0, "coder": 0.3, "tool": 0.6, "memory": 0.9}.items():
        changed = {
            key: floats(values + rng.normal(0, 0.01, values.shape) * (rng.random(values.shape) < moved))
            for key, values in base.items()
        }
        write_tokenizer(write_checkpoint(folder / name, changed, config=CONFIG), f"template of {name}")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(ADAPTER))
    key = "base_model.model.model.layers.1.mlp.up_proj"
    factors = {"lora_A": rng.normal(0, 0.1, (2, WIDTH)), "lora_B": rng.normal(0, 0.1, (16, 2))}
    tensors = {f"{key}.{name}.weight": floats(values, "F32") for name, values in factors.items()}
    write_safetensors(folder / "adapter" / "adapter_model.safetensors", tensors)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place") / "project"
    write_models(folder / "models")
    copytree(SET, folder / "recipes")
    return folder


def places(project: Path) -> dict[str, Path]:
    return {"project": project, "recipes": project / "recipes", "elsewhere": project.parent}


def test_the_set_has_thirty_recipes() -> None:
    assert len(RECIPES) == 30 and REFUSED.keys() <= set(RECIPES)


@pytest.mark.parametrize(
    ("place", "name"), [*product(["project"], RECIPES), *product(["recipes", "elsewhere"], RECIPES[::6])]
)
def test_planned_from_any_folder(place: str, name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(places(project)[place])
    path = project / "recipes" / f"{name}.yaml"
    for written in (path, Path("recipes") / path.name if place == "project" else path):
        if name in REFUSED:
            with pytest.raises(RecipeError, match=REFUSED[name]):
                ramerge.plan(written)
            continue
        made = ramerge.plan(written)
        assert not made.problems
        opened = {
            model.folder.resolve()
            for whole in (made.details.inputs.base, *made.details.inputs.agents.values())
            for model in whole.parts
        }
        assert {folder.parent for folder in opened} == {project / "models"}


@pytest.mark.full
@pytest.mark.parametrize("name", ["linear-lora", "ties", "slerp-gradient", "tokenizer-of-an-agent"])
def test_merged_from_any_folder_to_the_same_bytes(name: str, project: Path, tmp_path: Path) -> None:
    for title, place in places(project).items():
        done = command("merge", project / "recipes" / f"{name}.yaml", tmp_path / title, "--no-cache", cwd=place)
        assert done.returncode == 0, done.stderr
        start = re.search("relative paths start at (.+?), ", done.stdout)
        assert title == "recipes" or (start and (place / start[1]).resolve().is_relative_to(project.resolve()))
    wanted = read_checkpoint(tmp_path / "project")
    for title in places(project):
        found = read_checkpoint(tmp_path / title)
        assert {key: tensor.bits.tobytes() for key, tensor in found.items()} == {
            key: tensor.bits.tobytes() for key, tensor in wanted.items()
        }
        template = json.loads((tmp_path / title / "tokenizer_config.json").read_text())["chat_template"]
        assert template == {"tokenizer-of-an-agent": "template of coder"}.get(name, template)


def recipe(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


LINEAR = "merge_method: linear\nmodels: [{model: a}, {model: b}]\nparameters: {weight: 1}\n"


def test_prompts_name_translated_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base", "coder", "tool"):
        write_checkpoint(tmp_path / name, {"w": floats([0.5, 1.0])})
    text = "merge_method: task_arithmetic\nbase_model: base\nmodels: [{model: coder}, {model: tool}]\n"
    recipe(tmp_path, text + "parameters: {weight: 1}\n")
    monkeypatch.chdir(tmp_path)
    Path("code.jsonl").write_text('{"prompt": "1+1="}\n')
    assert command("plan", "recipe.yaml", "--prompts", "coder=code.jsonl").returncode == 0
    refused = command("plan", "recipe.yaml", "--prompts", "code=code.jsonl")
    assert refused.returncode != 0
    assert "did you mean 'coder'?" in refused.stderr


def test_all_paths_start_at_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recipe(tmp_path / "recipes", LINEAR)
    for folder, names in {"work": "ab", "recipes": "ab", "half": "a"}.items():
        for name in names:
            write_checkpoint(tmp_path / folder / name, {"w": floats([0.5])})
    for cwd, start, why in (("work", "work", "as in mergekit"), ("half", "recipes", "fewer of the models are under")):
        monkeypatch.chdir(tmp_path / cwd)
        made = ramerge.plan(path)
        assert {model.folder.resolve().parent for model in made.details.inputs.agents.values()} == {tmp_path / start}
        (note,) = (note for note in made.notes if "relative paths start" in note)
        assert str(tmp_path / start) in note and why in note
    monkeypatch.chdir(tmp_path / "recipes")
    assert not any("relative paths" in note for note in ramerge.plan("recipe.yaml").notes)


# --- tokenizers ---


def test_tokenizers_that_differ_are_refused(tmp_path: Path, messages: Messages) -> None:
    for name in ("base", "a", "b"):
        write_checkpoint(tmp_path / name, {"w": floats([0.5])})
        write_tokenizer(tmp_path / name, "x", TOKENS | ({"c": 3} if name == "b" else {}))
    text = "merge_method: ram\nbase_model: base\nmodels: [{model: a}, {model: b}]\n"
    for line in ("tokenizer_source: union", "tokenizer_source: b", "tokenizer: {source: union}", "tokenizer: {}"):
        (problem,) = ramerge.plan(recipe(tmp_path, text + line)).problems
        assert f"4 | {line}" in problem
        messages.check(problem)
    assert not ramerge.plan(recipe(tmp_path, text + "tokenizer_source: base")).problems
    (tmp_path / "base" / "tokenizer.json").unlink()
    (problem,) = ramerge.plan(recipe(tmp_path, text + "tokenizer_source: union")).problems
    messages.check(problem)


def test_an_agents_tokenizer_is_its_companions(project: Path, messages: Messages) -> None:
    text = "merge_method: ram\nbase_model: ./models/base\nmodels: [{model: ./models/coder}, {model: ./models/tool}]\n"
    for line, owner in {
        "tokenizer_source: ./models/tool": "tool",
        "tokenizer: {source: ./models/coder}": "coder",
        "tokenizer_source: union": "base",
        "tokenizer_source: ./models/base": "base",
        "tokenizer_source: ./models/tool\ncompanions: coder": "coder",
    }.items():
        made = ramerge.plan(recipe(project / "others", text + line))
        assert not made.problems
        assert str(made.details.companions["tokenizer.json"]).endswith(f"models/{owner}/tokenizer.json")
    with messages.raises(RecipeError):
        ramerge.plan(recipe(project / "others", text + "tokenizer_source: org/other"))


def test_base_tokenizer_with_fewer_tokens_than_agent(tmp_path: Path) -> None:
    for seed, (name, rows, added) in enumerate([("base", 10, []), ("a", 10, []), ("b", 11, ["<x>"])]):
        with_vocabulary(tmp_path / name, seed, rows, added)
    text = "merge_method: task_arithmetic\nbase_model: base\nmodels: [{model: a}, {model: b}]\n"
    text += "parameters: {weight: 0.5}\nallow: {vocabulary: common}\n"
    for name, line, owner in (("none", "", "b"), ("theirs", "tokenizer_source: base", "base")):
        record = ramerge.merge(recipe(tmp_path, text + line), tmp_path / name)
        assert (tmp_path / name / "tokenizer.json").read_bytes() == (tmp_path / owner / "tokenizer.json").read_bytes()
        # all rows are there, as with `companions: base` in ramerge's own form
        assert read_checkpoint(tmp_path / name)["lm_head.weight"].bits.shape == (11, 4)
        advice = [each for each in (*record.notes, *record.warnings) if "companions: base" in each]
        assert advice == [] and any("the output's tokenizer lacks" in each for each in record.notes) is bool(line)
    # without more rows, too, nothing advises what the recipe says
    with_vocabulary(tmp_path / "b", 2, 10, ["<x>"])
    text = text.replace("allow: {vocabulary: common}\n", "")
    for line, advised in (("", True), ("tokenizer_source: base", False), ("tokenizer: {source: base}", False)):
        warnings = ramerge.plan(recipe(tmp_path, text + line)).warnings
        assert any("`companions: base` accepts the loss" in each for each in warnings) is advised


# --- what is said of rules, and of recipes for other programs ---


def test_gradient_rules_are_one_note(project: Path, tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.w" for layer in (10, 2, 1, 0, 11, 9, 8, 7, 6, 5, 4, 3)]
    for name in ("base", "a"):
        write_checkpoint(tmp_path / name, {key: floats([0.5, 1.0]) for key in names})
    text = "merge_method: task_arithmetic\nbase_model: base\nmodels: [{model: a, parameters: {weight: [0, 1]}}]\n"
    made = ramerge.plan(recipe(tmp_path, text))
    assert [rule.layers for rule in made.recipe.rules] == [str(layer) for layer in range(11)]
    (note,) = (note for note in made.notes if "filters" in note)
    assert note.startswith("filters and gradients set parameters of 11 tensors (* of layers 0: 1, * of la")
    assert not any("catch" in note for note in made.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("genome: {models: [a, b], merge_method: ties}\nbase: b\nagents: {a: x}\n", "of mergekit-evolve, which sea"),
        (f"name: first\n{LINEAR}---\nname: second\n{LINEAR}", "recipe.yaml:5: a second YAML document begins here"),
    ],
)
def test_recipes_for_other_programs_are_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as raised:
        ramerge.plan(recipe(tmp_path, text))
    first, *others = raised.value.problems
    assert words in first and all("no such folder" in each for each in others)
