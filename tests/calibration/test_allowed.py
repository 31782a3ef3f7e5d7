"""Recipes with `allow` and `rename` wherever agents are asked: agents are read as a merge reads them."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import ramerge
from ramerge.demo.run import copy_models
from ramerge.demo.tasks import TASKS, prompts
from tests.messages import Messages
from tests.tiers import some

pytestmark = [pytest.mark.full, pytest.mark.needs("torch", "transformers", "optuna")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from ramerge.calibration.live_base import LiveBase  # noqa: E402
from ramerge.sdk.recipes import models_only, open_recipe  # noqa: E402

SETTINGS = ramerge.CalibrationSettings(count=4, max_new=12, device="cpu")
EMBEDDING = "model.embed_tokens.weight"
PLAIN = {"code": "coder", "tool": "tool"}
ALLOWED: dict[str, dict[str, Any]] = {
    "extra_tensors": {"agents": {**PLAIN, "code": "value-head"}, "allow": {"extra_tensors": True}},
    "rename": {"agents": {**PLAIN, "code": "renamed"}, "rename": [{"from": "attn_x", "to": "self_attn"}]},
    "vocabulary": {"agents": {**PLAIN, "tool": "added"}, "allow": {"vocabulary": "common"}},
    "outside_links": {"agents": {**PLAIN, "code": "linked"}, "allow": {"outside_links": True}},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's models, agents that need `allow` or `rename`, and prompts."""
    home = tmp_path_factory.mktemp("models")
    copy_models(home, lambda _: None)
    for name, change in (
        ("value-head", lambda tensors: {**tensors, "v_head.summary.weight": torch.zeros(1, 96, dtype=torch.bfloat16)}),
        ("renamed", lambda tensors: {key.replace("self_attn", "attn_x"): one for key, one in tensors.items()}),
    ):
        write_agent(home, name, "coder", change)
    shutil.copytree(home / "coder", home / "linked")
    (home / "linked/model.safetensors").unlink()
    (home / "linked/model.safetensors").symlink_to(home / "coder/model.safetensors")
    rows = torch.zeros(1, 96, dtype=torch.bfloat16)
    write_agent(
        home, "added", "tool", lambda tensors: {**tensors, EMBEDDING: torch.cat([tensors[EMBEDDING], rows])}, 33
    )
    add_token(home / "added", "<x0>")
    tasks = {task.name: task for task in TASKS}
    for agent, task in {"code": "add", "tool": "reverse"}.items():
        records = [{"prompt": example.prompt} for example in prompts(tasks[task], "train", 4, 1)]
        (home / f"{agent}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return home


def write_agent(
    home: Path, name: str, like: str, change: Callable[[dict[str, Any]], dict[str, Any]], rows: int = 32
) -> None:
    """An agent like another one, with other tensors."""
    shutil.copytree(home / like, home / name)
    file, config = home / name / "model.safetensors", home / name / "config.json"
    save_file(change(load_file(home / like / "model.safetensors")), file, {"format": "pt"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": rows}))


def add_token(model: Path, token: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": [token]})
    tokenizer.save_pretrained(model)


@pytest.fixture
def place(models: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(models)
    return models


def recipe_of(**more: Any) -> dict[str, Any]:
    return {"base": "base", "agents": PLAIN, "prompts": {"code": "code.jsonl", "tool": "tool.jsonl"}, **more}


def _calibrate(recipe: dict[str, Any], out: Path) -> dict[str, Any]:
    ramerge.calibrate(recipe, out, settings=SETTINGS)
    return {name: load_file(out / name / "inputs.safetensors") for name in recipe["agents"]}


def _recommend(recipe: dict[str, Any], out: Path) -> dict[str, Any]:
    found = ramerge.recommend(recipe)
    return {"method": found.method, "merges": sorted(found.masses)}


def _merge(method: str) -> Callable[[dict[str, Any], Path], dict[str, Any]]:
    def run(recipe: dict[str, Any], out: Path) -> dict[str, Any]:
        ramerge.merge({**recipe, "method": method}, out)
        return load_file(out / "model.safetensors")

    return run


def _search(recipe: dict[str, Any], out: Path) -> dict[str, Any]:
    settings = ramerge.SearchSettings(trials=2, html=False, calibration=SETTINGS)
    result = ramerge.search(recipe, out, settings=settings)
    scores = ramerge.agreement("base", out / "best", out / "calibration")
    assert fmean(each.nll for each in scores.values()) == pytest.approx(result.winner.nll, rel=1e-5)
    return load_file(out / "best/model.safetensors")


COMMANDS = {
    "calibrate": _calibrate,
    "recommend": _recommend,
    "regmean": _merge("regmean"),
    "auto": _merge("auto"),
    "search": _search,
}


# All commands read agents through the same models: one with every recipe, and the others with one in turns.
PAIRS = list(product(COMMANDS, ALLOWED))
SOME_PAIRS = [*product(["calibrate"], ALLOWED), *zip(list(COMMANDS)[1:], ALLOWED, strict=True)]


@pytest.mark.parametrize(("command", "allowed"), some(PAIRS, full=SOME_PAIRS))
def test_agents_are_asked_as_the_recipe_reads_them(command: str, allowed: str, place: Path, tmp_path: Path) -> None:
    expected = COMMANDS[command](recipe_of(), tmp_path / "plain")
    found = COMMANDS[command](recipe_of(**ALLOWED[allowed]), tmp_path / "allowed")
    assert found.keys() == expected.keys()
    for name, values in found.items():
        for key, one in values.items() if isinstance(values, dict) else [(name, values)]:
            other = expected[name][key] if isinstance(values, dict) else expected[name]
            if isinstance(one, torch.Tensor):
                assert len(one) == len(other) + (key == EMBEDDING and allowed == "vocabulary"), key
                assert torch.equal(one[: len(other)], other), key
            else:
                assert one == other


@pytest.mark.parametrize("command", COMMANDS)
def test_header_problems_are_refused_before_replies(
    command: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("ramerge.calibration.live.LiveModel", refuse)
    with messages.raises(ramerge.PlanError):
        COMMANDS[command](recipe_of(agents=ALLOWED["vocabulary"]["agents"]), tmp_path / "out")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [30, 33])
def test_agents_keep_their_own_vocabularies(rows: int, tied: bool, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=tied, pad_token_id=0,
    )  # fmt: skip
    for name, count in (("base", 32), ("same", 32), ("other", rows)):
        config.vocab_size = count
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
    recipe = {
        "method": "linear",
        "base": str(tmp_path / "base"),
        "agents": {name: str(tmp_path / name) for name in ("same", "other")},
        "allow": {"vocabulary": "common"},
    }
    ramerge.merge(recipe, tmp_path / "merged")
    ids = [1, 2, 3, 4, min(rows, 32) - 1]
    with LiveBase(models_only(open_recipe(recipe)), SETTINGS, ramerge.Options()) as base:
        for name in ("other", "same", "merged", "other"):
            base.put(ramerge.plan(recipe)) if name == "merged" else base.put_agent(name)
            model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
            logits = model(torch.tensor([ids[:-1]])).logits[0, 1:]
            expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[2:]), reduction="none")
            assert torch.allclose(base.live.negative_log_likelihoods(ids, 2).float(), expected, atol=1e-5), name
            assert base.live.vocabulary == model.config.vocab_size


@pytest.mark.filterwarnings("ignore")  # of PEFT and transformers
def test_untied_head_does_not_replace_embeddings(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    for name in ("base", "tied"):
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model.resize_token_embeddings(33)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, lora)
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.requires_grad)
    adapted.save_pretrained(tmp_path / "adapter")
    agents = {"tied": str(tmp_path / "tied"), "adapter": str(tmp_path / "adapter")}
    recipe = {"method": "linear", "base": str(tmp_path / "base"), "agents": agents, "allow": {"vocabulary": "common"}}
    ramerge.merge(recipe, tmp_path / "merged")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    ramerge.merge({**recipe, "agents": {"tied": agents["tied"]}}, tmp_path / "alone")
    alone = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "alone", dtype=torch.float32)
    ids = [1, 2, 3, 31]
    with LiveBase(models_only(open_recipe(recipe)), SETTINGS, ramerge.Options()) as base:
        for put, other in (
            (lambda: base.put_agent("adapter"), adapted),
            (lambda: base.put(ramerge.plan(recipe)), merged),
            (lambda: base.put_agent("tied"), transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tied")),
            (lambda: base.put(ramerge.plan({**recipe, "agents": {"tied": agents["tied"]}})), alone),
        ):
            put()
            with torch.no_grad():
                logits = other.eval()(torch.tensor([ids[:-1]])).logits[0]
            expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
            assert torch.allclose(base.live.negative_log_likelihoods(ids, 1).float(), expected, atol=1e-5)


def test_the_base_reads_tokens_that_agents_have_added(place: Path, tmp_path: Path) -> None:
    records = [{"prompt": f"{number}+586=<x0>", "reply": "<x0>"} for number in (347, 12)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    recipe = recipe_of(**ALLOWED["vocabulary"]) | {"prompts": dict.fromkeys(PLAIN, str(tmp_path / "x.jsonl"))}
    recipe["agents"] = dict.fromkeys(PLAIN, "added")
    settings = ramerge.CalibrationSettings(count=2, device="cpu", source="base")
    found = ramerge.calibrate(recipe, tmp_path / "out", settings=settings)
    assert found["tool"].layers == 28


def test_another_allow_asks_changed_agents_again(place: Path, tmp_path: Path, messages: Messages) -> None:
    kept = {"allow": {"different_shapes": True, "config": ["vocab_size"]}}
    agents = ALLOWED["vocabulary"]["agents"]
    ramerge.calibrate(recipe_of(agents=agents, **kept), tmp_path / "out", settings=SETTINGS)
    common = recipe_of(agents=agents, allow={"vocabulary": "common"})
    with messages.raises(ramerge.PlanError):
        ramerge.calibrate(common, tmp_path / "out", settings=SETTINGS)
    folders = [ramerge.gather(each, settings=SETTINGS)["tool"] for each in (recipe_of(agents=agents, **kept), common)]
    assert folders[0] != folders[1]


@pytest.mark.parametrize("gather", ["importance", "all"])
def test_importances_of_other_vocabularies_are_refused_first(
    gather: Any, place: Path, tmp_path: Path, messages: Messages
) -> None:
    settings = ramerge.CalibrationSettings(count=2, device="cpu", gather=gather)
    with messages.raises(ramerge.PlanError):
        ramerge.calibrate(recipe_of(**ALLOWED["vocabulary"]), tmp_path / "out", settings=settings)
    with messages.raises(ramerge.PlanError):
        ramerge.merge({**recipe_of(**ALLOWED["vocabulary"]), "method": "fisher"}, tmp_path / "merged")
    assert not list(tmp_path.iterdir())


def test_agreement_of_different_tokens_is_refused_first(place: Path, tmp_path: Path, messages: Messages) -> None:
    shutil.copytree("tool", tmp_path / "tool")
    text = (tmp_path / "tool/tokenizer.json").read_text()
    vocabulary = json.loads(text)["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    assert text.count(json.dumps(last) + ":") == 1
    (tmp_path / "tool/tokenizer.json").write_text(text.replace(json.dumps(last) + ":", '"<y0>":'))
    recipe = recipe_of(agents={**PLAIN, "tool": str(tmp_path / "tool")}, allow={"different_tokens": True})
    with messages.raises(ramerge.PlanError):
        ramerge.search(recipe, tmp_path / "found", settings=ramerge.SearchSettings(calibration=SETTINGS))
    with messages.raises(ramerge.PlanError):
        ramerge.rank(recipe, {"sum": {"method": "task_arithmetic"}}, settings=SETTINGS)
    assert not (tmp_path / "found/calibration").exists()
    ramerge.calibrate(recipe, tmp_path / "out", settings=SETTINGS)
    same = recipe_of(allow={"different_tokens": True})
    assert ramerge.rank(same, {"sum": {"method": "task_arithmetic"}}, settings=SETTINGS).means


def test_tokenizer_link_out_is_refused_first(place: Path, tmp_path: Path) -> None:
    shutil.copytree("tool", tmp_path / "tool")
    (tmp_path / "tool/tokenizer.json").unlink()
    (tmp_path / "tool/tokenizer.json").symlink_to(place / "tool/tokenizer.json")
    recipe = recipe_of(agents={**PLAIN, "tool": str(tmp_path / "tool")})
    with pytest.raises(ramerge.PlanError, match="outside_links"):
        ramerge.calibrate(recipe, tmp_path / "out", settings=SETTINGS)
    assert not (tmp_path / "out").exists()
    ramerge.calibrate({**recipe, "allow": {"outside_links": True}}, tmp_path / "out", settings=SETTINGS)


def test_agent_named_base_has_its_own_tokenizer(place: Path, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"prompt": "347+586=", "reply": "<x0>"}) + "\n")
    recipe = {"base": "base", "agents": {"base": "added", "code": "coder"}, "allow": {"vocabulary": "common"}}
    recipe["prompts"] = {"base": str(tmp_path / "x.jsonl"), "code": "code.jsonl"}
    ramerge.calibrate(recipe, tmp_path / "out", settings=SETTINGS)
    (reply,) = ramerge.replies_of(tmp_path / "out", ["base"]).exchanges["base"]
    assert reply.ids[reply.start] == 32


def test_a_chain_of_deltas_is_asked(place: Path, tmp_path: Path) -> None:
    ramerge.delta("coder", "tool", tmp_path / "delta")
    recipe = recipe_of(agents={"code": "coder", "tool": {"delta": str(tmp_path / "delta"), "over": "code"}})
    found = _calibrate(recipe, tmp_path / "chain")
    expected = _calibrate(recipe_of(), tmp_path / "plain")
    assert all(torch.equal(one, expected["tool"][name]) for name, one in found["tool"].items())
