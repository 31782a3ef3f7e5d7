"""Merges with LoRA adapters as agents, and adapters that are refused. These adapters are made by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError, PlanError, WeightsError
from ramerge.core.methods.moved import WHERE_TO_BEGIN
from ramerge.core.tensors.lowrank import LowRank
from tests.checkpoints import floats, read_checkpoint, read_safetensors, recipe, write_checkpoint, write_safetensors
from tests.messages import Messages
from tests.reference import NUMBERS, Stored
from tests.tiers import some

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "org/base"}
SHAPES = {
    "model.embed_tokens.weight": (32, 16),
    "model.layers.0.self_attn.q_proj.weight": (16, 16),
    "model.layers.0.self_attn.q_proj.bias": (16,),
    "model.layers.0.mlp.up_proj.weight": (24, 16),
    "model.layers.1.mlp.up_proj.weight": (24, 16),
    "model.norm.weight": (16,),
}
UP = ("model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj")
Q = "model.layers.0.self_attn.q_proj"


def write_base(folder: Path, dtype: str = "BF16", **config: object) -> Path:
    rng = np.random.default_rng(0)
    tensors = {name: floats(rng.normal(0, 0.05, shape), dtype) for name, shape in SHAPES.items()}
    return write_checkpoint(folder, tensors, config={"model_type": "test", "torch_dtype": "bfloat16", **config})


def factors(*modules: str, seed: int = 1, rank: int = 4) -> dict[str, Stored]:
    rng = np.random.default_rng(seed)
    found = {}
    for module in modules:
        out, width = SHAPES[f"{module}.weight"]
        found[f"base_model.model.{module}.lora_A.weight"] = floats(rng.normal(0, 0.1, (rank, width)), "F32")
        found[f"base_model.model.{module}.lora_B.weight"] = floats(rng.normal(0, 0.1, (out, rank)), "F32")
    return found


def of_embeddings() -> dict[str, Stored]:
    """Factors of the input embedding, which so is no longer what a tied base's output embedding is."""
    rng = np.random.default_rng(3)
    rows, width = SHAPES["model.embed_tokens.weight"]
    shapes = {"A": (4, rows), "B": (width, 4)}
    return {
        f"base_model.model.model.embed_tokens.lora_embedding_{side}": floats(rng.normal(0, 0.1, shape), "F32")
        for side, shape in shapes.items()
    }


def write_adapter(folder: Path, tensors: Mapping[str, Stored], **config: object) -> Path:
    folder.mkdir(parents=True)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A base, and two adapters that change other matrices, one of them in common."""
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "code", factors(*UP, seed=1))
    write_adapter(tmp_path / "tool", factors(UP[1], Q, seed=2))
    return tmp_path


def whole(base: Path, *adapters: Path) -> dict[str, Stored]:
    """The agent in float32, by NumPy."""
    found = read_checkpoint(base)
    for adapter in adapters:
        stored = read_safetensors(adapter / "adapter_model.safetensors")
        for key in [key for key in stored if key.endswith("lora_A.weight")]:
            name = key.removeprefix("base_model.model.").replace("lora_A.", "")
            a, b = (stored[k].bits.view(np.float32).astype(np.float64) for k in (key, key.replace("lora_A", "lora_B")))
            start = found[name].bits.view(NUMBERS[found[name].dtype]).astype(np.float32)
            found[name] = Stored("F32", (start + np.float32(2) * (b @ a).astype(np.float32)).view(np.uint32))
    return found


def close(found: Mapping[str, Stored], wanted: Mapping[str, Stored]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        if tensor.dtype not in NUMBERS:
            assert np.array_equal(tensor.bits, wanted[name].bits)
            continue
        ours, theirs = (t.bits.view(NUMBERS[t.dtype]).astype(np.float64) for t in (tensor, wanted[name]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8, err_msg=name)


# --- merges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", some(["ram", "ram+", "ties", "task_arithmetic", "dare", "isolate"], fast=["ram+", "dare"])
)
def test_a_merge_is_that_of_the_whole_agents(method: str, models: Path) -> None:
    for name in ("code", "tool"):
        write_checkpoint(models / f"whole {name}", whole(models / "base", models / name))
    more: dict[str, Any] = {"parameters": {"agent": "code"}} if method == "isolate" else {}
    adapters = recipe(models, ["code", "tool"], method, dtype="float32", **more)
    agents = {**adapters, "agents": {name: str(models / f"whole {name}") for name in ("code", "tool")}}
    ramerge.merge(adapters, models / "out")
    ramerge.merge(agents, models / "wanted")
    close(read_checkpoint(models / "out"), read_checkpoint(models / "wanted"))


def test_what_an_adapter_leaves_is_the_bases(models: Path) -> None:
    plan = ramerge.plan(recipe(models, ["code", "tool"]), models / "out")
    assert plan.problems == plan.warnings == ()
    stored = sum(path.stat().st_size for path in models.glob("*/*.safetensors"))
    assert plan.bytes_read < 2 * stored  # once for counting and once for merging
    by_name = {tensor.name: tensor for tensor in plan.details.tensors}
    base, code, tool = (source.tensor for source in by_name[f"{Q}.weight"].sources)
    assert code is base and tool.dtype == "F32"
    assert any("tool: " in note and "LoRA of rank 4, computed in float32" in note for note in plan.notes)
    assert any("code, tool are LoRA adapters" in note and "section 3.2" in note for note in plan.notes)
    (dense,) = [text for text in plan.forecast if "epsilon" in text]
    assert "Merge LoRA adapters" in dense and WHERE_TO_BEGIN in dense


@pytest.mark.parametrize("others", [[], ["whole"]], ids=["all", "some"])
@pytest.mark.parametrize("method", ["ram+", "wudi", "resmerge", "iso_c"])
def test_warnings_of_adapters_give_one_answer(method: str, others: list[str], models: Path) -> None:
    write_checkpoint(models / "whole", whole(models / "base", models / "code"))
    source = recipe(models, ["code", "tool", *others], method, dtype="float32")
    plan = ramerge.plan(source)
    record = ramerge.merge(source, models / "out")
    warnings = [text for text in (*plan.forecast, *plan.warnings, *record.warnings) if "adapter" in text]
    assert warnings and all(WHERE_TO_BEGIN in text for text in warnings)
    assert not any(re.search(r"--method|; take|Begin with", text) for text in warnings)


def test_adapters_on_models_and_on_each_other(models: Path) -> None:
    both = f"{models / 'code'}+{models / 'tool'}"
    for text in (both, f"{models / 'base'}+{both}"):
        out = models / f"out {len(text)}"
        source = {**recipe(models, [], "task_arithmetic", dtype="float32"), "agents": {"both": text}}
        ramerge.merge({**source, "parameters": {"scale": 1.0}}, out)
        close(read_checkpoint(out), whole(models / "base", models / "code", models / "tool"))
        record = json.loads((out / "ramerge.json").read_text())
        written = text.replace(f"{models}/", "../")
        assert written in (out / "ramerge.yaml").read_text()
        assert any("LoRA adapter" in note for note in record["notes"])
        ramerge.merge(out / "ramerge.yaml", models / f"again {len(text)}")
        close(read_checkpoint(models / f"again {len(text)}"), read_checkpoint(out))
        card = (out / "README.md").read_text()
        assert all(f"- {name}" in card or f"  - {name}" in card for name in ("base", "code", "tool"))


def test_a_model_with_adapters_needs_no_base(models: Path) -> None:
    agents = {name: f"base+{name}" for name in ("code", "tool")}
    source = {"method": "linear", "agents": agents, "dtype": "float32"}
    (models / "recipe.yaml").write_text(json.dumps(source))
    ramerge.merge(models / "recipe.yaml", models / "out")
    one, other = (whole(models / "base", models / name) for name in agents)
    for name, tensor in read_checkpoint(models / "out").items():
        means = [t[name].bits.view(NUMBERS[t[name].dtype]).astype(np.float64) for t in (one, other)]
        np.testing.assert_allclose(tensor.bits.view(np.float32), sum(means) / 2, rtol=1e-6, atol=1e-8)
    plain = {"method": "linear", "agents": {name: str(models / name) for name in ("code", "tool")}}
    with pytest.raises(PlanError, match=r"write MODEL\+"):
        ramerge.merge(plain, models / "out 2")


def test_convert(models: Path) -> None:
    ramerge.convert(f"{models / 'base'}+{models / 'code'}", models / "one", dtype="float32")
    ramerge.convert(models / "code", models / "other", base=models / "base", dtype="float32")
    wanted = whole(models / "base", models / "code")
    close(read_checkpoint(models / "one"), wanted)
    close(read_checkpoint(models / "other"), wanted)


def test_resized_embeddings_set_the_vocabulary(tmp_path: Path, messages: Messages) -> None:
    write_base(tmp_path / "base", text_config={"vocab_size": 32}, vocab_size=32)
    adapter = write_adapter(tmp_path / "more", {key("model.embed_tokens", "weight"): some(40, 16)})
    ramerge.convert(f"{tmp_path / 'base'}+{adapter}", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["vocab_size"] == config["text_config"]["vocab_size"] == 40
    with messages.raises(PlanError):
        ramerge.convert(adapter, tmp_path / "out 2", base=tmp_path / "base")
    source = {"base": str(tmp_path / "base"), "agents": {"a": str(adapter)}, "method": "task_arithmetic"}
    shapes, config = ramerge.plan(source).problems
    assert "(8 rows of vocabulary more); in a merge, allow.vocabulary: common in the recipe merges" in shapes
    assert f"{adapter}: config.json, with what this model changes, does not fit the base's" in config
    assert ramerge.plan({**source, "allow": {"vocabulary": "common"}}).problems == ()


def test_tensors_beyond_the_base_are_noted(models: Path) -> None:
    adapter = write_adapter(models / "scores", factors(Q) | {key("score", "weight"): some(2, 16)})
    plan = ramerge.plan({"method": "passthrough", "agents": {"x": f"{models / 'base'}+{adapter}"}})
    assert any("1 added that the base does not have: 'score.weight'" in note for note in plan.notes)


def test_embeddings_that_peft_saves_three_times(models: Path) -> None:
    """As `save_embedding_layers=True` saves those of `modules_to_save`."""
    parts = {"weight": 2, "original_module.weight": 1, "modules_to_save.weight": 2}
    tensors = {
        key("model.embed_tokens", part): floats(np.full((32, 16), value), "F32") for part, value in parts.items()
    }
    ramerge.convert(f"{models / 'base'}+{write_adapter(models / 'saved', tensors)}", models / "out")
    made = read_checkpoint(models / "out")
    assert made.keys() == SHAPES.keys()
    assert (made["model.embed_tokens.weight"].bits.view(np.float32) == 2).all()


@pytest.mark.parametrize("name", ["", " "])
def test_a_model_without_a_name(name: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models / "base")
    with pytest.raises(ramerge.RamergeError, match="empty"):
        ramerge.convert(name, models / "out")


def test_pluses_in_paths_and_alone(models: Path, messages: Messages) -> None:
    (models / "code").rename(models / "a+b")
    plan = ramerge.plan({**recipe(models, []), "agents": {"x": str(models / "a+b")}})
    assert plan.problems == ()
    messages.check(*ramerge.plan({**recipe(models, []), "agents": {"x": "code++tool"}}).problems)
    both = {**recipe(models, []), "agents": {"x": f"{models / 'tool'}+{models / 'base'}"}}
    messages.check(*ramerge.plan(both).problems)


def test_base_and_agents_compare_with_adapters(models: Path, messages: Messages) -> None:
    tuned = f"{models / 'base'}+{models / 'code'}"
    source = {"method": "ram", "base": tuned, "agents": {"x": tuned, "y": f"{tuned}+{models / 'tool'}"}}
    messages.check(*ramerge.plan(source).problems)
    alone = {**recipe(models, []), "agents": {"x": tuned, "y": f"{models / 'base'}+{models / 'code'}"}}
    messages.check(*ramerge.plan(alone).warnings)


@pytest.mark.full  # kernels for many kinds of adapters
def test_sweeps_and_analyses(models: Path) -> None:
    assert ramerge.sweep(recipe(models, ["code", "tool"]), models / "sweep", vary={"parameters.r": [0.0, 0.1]})
    analysis = ramerge.analyze(recipe(models, ["code", "tool"]))
    [finding] = [finding for finding in analysis.findings if "LoRA" in finding.text]
    assert finding.text.startswith("code and tool: LoRA, dense wherever it acts.")
    assert "section 3.2" in finding.reason and "equation 6" in finding.reason
    single = ramerge.analyze(recipe(models, ["code"])).findings
    assert any("For a single agent that changes nothing." in finding.text for finding in single)


def test_tokenizers_come_from_the_adapter(models: Path) -> None:
    for place, text in (("base", "old"), ("code", "new")):
        (models / place / "tokenizer.json").write_text(json.dumps({"version": text}))
    (models / "base" / "tokenizer_config.json").write_text("{}")
    ramerge.merge(recipe(models, ["code", "tool"], companions="code"), models / "out")
    assert "new" in (models / "out" / "tokenizer.json").read_text()
    assert (models / "out" / "tokenizer_config.json").exists()
    assert not (models / "out" / "adapter_config.json").exists()
    ramerge.merge(recipe(models, ["code", "tool"], companions="tool"), models / "out 2")
    assert "old" in (models / "out 2" / "tokenizer.json").read_text()


@pytest.mark.parametrize("place", ["lora_adapter", "actor/lora_adapter"])
def test_the_adapter_that_verl_leaves_in_a_checkpoint(place: str, models: Path) -> None:
    write_adapter(models / "step" / place, factors(*UP))
    agent = open_checkpoint(models / "step", base=open_checkpoint(models / "base"))
    assert agent.tensors[f"{UP[0]}.weight"].dtype == "F32"


# --- what is refused -------------------------------------------------------------------------------------------------


def problems_of(models: Path, tensors: Mapping[str, Stored], **config: object) -> list[str]:
    adapter = write_adapter(models / "wrong", tensors, **config)
    base = open_checkpoint(models / "base")
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(adapter, base=base)
    return list(raised.value.problems)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "is an adapter of the type 'IA3'; only LORA is read"),
        ({"peft_type": None}, "does not say of which type"),
        ({"peft_type": ["LORA"]}, "only LORA is read"),
        ({"init_lora_weights": "pissa_niter_16"}, "path_initial_model_for_weight_conversion"),
        ({"init_lora_weights": "loftq"}, "give the changed base as the base"),
        ({"init_lora_weights": "new"}, "is not known"),
        ({"use_bdlora": {"x": 1}}, "use_bdlora is set: such an adapter has block-diagonal factors"),
        ({"layer_replication": [[0, 2]]}, "has more layers than the base"),
        ({"lora_alpha": 0}, "The merger of verl writes 0"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"lora_alpha": True}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"q": "x"}}, "alpha_pattern must map"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "is not a regular expression that is matched quickly"),
        ({"alpha_pattern": {"(": 1}}, "is not a regular expression"),
        ({"alpha_pattern": {f"a{n}.*": 1 for n in range(60)}}, "more than 50 regular expressions"),
        ({"target_parameters": "x"}, "target_parameters must be a list"),
        ({"trainable_token_indices": {"embed_tokens": "x"}}, "trainable_token_indices must be a list"),
        ({"use_dora": True}, "lacks the magnitudes of DoRA"),
        ({"r": 2}, "has the rank 4, but by r and rank_pattern in adapter_config.json it is 2"),
        ({"r": 2, "use_rslora": True}, "is not known; correct them to what it was trained with"),
        ({"r": None}, "has the rank 4, but by r and rank_pattern in adapter_config.json it is 8"),
        ({"rank_pattern": {"up_proj": 3}}, "has the rank 4, but by r and rank_pattern in adapter_config.json it is 3"),
        ({"rank_pattern": {r"layers\.0.*up_proj": 3}}, "it is 3"),
        ({"rank_pattern": {"up_proj": 0}}, "rank_pattern must map patterns of module names to ranks"),
        ({"rank_pattern": {"(a+)+b": 1}}, "rank_pattern: '(a+)+b' is not a regular expression that is matched quickly"),
        ({"r": True}, "r must be a rank, such as 16"),
        ({"r": -4}, "r must be a rank, such as 16"),
    ],
)
def test_configurations_that_are_refused(config: dict[str, object], words: str, models: Path) -> None:
    found = problems_of(models, factors(UP[0]), **config)
    assert any(words in problem for problem in found), found


def test_an_adapter_in_several_files(models: Path, messages: Messages) -> None:
    (models / "code/adapter_model.safetensors").rename(models / "code/adapter_model-00001-of-00002.safetensors")
    with messages.raises(CheckpointError):
        open_checkpoint(models / "code", base=open_checkpoint(models / "base"))


@pytest.mark.parametrize("use_rslora", [False, True])
def test_ranks_that_a_pattern_states(use_rslora: bool, models: Path) -> None:
    """The first pattern counts, as in PEFT's `get_pattern_key`."""
    tensors = {**factors(UP[0], rank=2), **factors(UP[1], rank=3), **factors(Q)}
    patterns = {f"^{UP[0]}": 2, "up_proj": 3, "layers.0.mlp.up_proj": 7}
    adapter = write_adapter(models / "x", tensors, rank_pattern=patterns, use_rslora=use_rslora)
    agent = open_checkpoint(adapter, base=open_checkpoint(models / "base"))
    assert agent.warnings == ()
    found = {name: agent.tensors[f"{name}.weight"].origin for name in (*UP, Q)}
    assert all(isinstance(origin, LowRank) for origin in found.values())
    wanted = {name: 8 / (rank**0.5 if use_rslora else rank) for name, rank in zip((*UP, Q), (2, 3, 4), strict=True)}
    assert {name: origin.scaling for name, origin in found.items()} == wanted


def test_keys_of_patterns_that_match_nothing_are_named(models: Path) -> None:
    patterns = {"alpha_pattern": {"up_proj": 4, "gone": 3}, "rank_pattern": {"model.up_proj": 9, r"layers\.[1].*": 4}}
    adapter = write_adapter(models / "x", factors(*UP), **patterns)
    alpha, rank = open_checkpoint(adapter, base=open_checkpoint(models / "base")).warnings
    assert "alpha_pattern in adapter_config.json has 'gone', which matches no module" in alpha
    assert "rank_pattern in adapter_config.json has 'model.up_proj', which matches no module" in rank


def test_what_every_adapter_says_is_not_noted(models: Path) -> None:
    adapter = write_adapter(models / "x", factors(Q), init_lora_weights=True, task_type="CAUSAL_LM")
    assert not any(
        "no meaning" in note for note in open_checkpoint(adapter, base=open_checkpoint(models / "base")).notes
    )


# --- adapters on adapters --------------------------------------------------------------------------------------------

EMBEDDINGS = "model.embed_tokens"
DELTA = f"base_model.model.{EMBEDDINGS}.token_adapter.trainable_tokens_delta"


def rows(*tokens: int) -> tuple[dict[str, Stored], dict[str, Any]]:
    """An adapter that gives these tokens other rows."""
    return {DELTA: floats(np.full((len(tokens), 16), tokens[0]), "F32")}, {"trainable_token_indices": list(tokens)}


def saved(name: str, value: float) -> tuple[dict[str, Stored], dict[str, Any]]:
    """An adapter that replaces a tensor."""
    return {f"base_model.model.{name}": floats(np.full(SHAPES[name], value), "F32")}, {}


LORA = (
    {
        f"base_model.model.{EMBEDDINGS}.lora_embedding_A": floats(np.full((4, 32), 0.1), "F32"),
        f"base_model.model.{EMBEDDINGS}.lora_embedding_B": floats(np.full((16, 4), 0.1), "F32"),
    },
    {"r": 4},
)
LORA_Q = factors(Q), {"r": 4}
DORA_Q = {**factors(Q), f"base_model.model.{Q}.lora_magnitude_vector": floats(np.ones(16), "F32")}, {"use_dora": True}
EMBEDDED, Q_WEIGHT, Q_BIAS = f"{EMBEDDINGS}.weight", f"{Q}.weight", f"{Q}.bias"
STACKS: dict[str, tuple[list[tuple[dict[str, Stored], dict[str, Any]]], str]] = {
    "the same rows": ([rows(3, 5), rows(5, 9)], EMBEDDED),
    "the same rows, with others between": ([rows(3), rows(5), rows(3)], EMBEDDED),
    "rows of what was saved": ([saved(EMBEDDED, 1), rows(3)], EMBEDDED),
    "rows of a product": ([LORA, rows(3)], EMBEDDED),
    "saved after a product": ([LORA_Q, saved(Q_WEIGHT, 1)], Q_WEIGHT),
    "saved after rows": ([rows(3), saved(EMBEDDED, 1)], EMBEDDED),
    "saved twice": ([saved(Q_WEIGHT, 1), saved(Q_WEIGHT, 2)], Q_WEIGHT),
    "a bias twice": ([saved(Q_BIAS, 1), saved(Q_BIAS, 2)], Q_BIAS),
    "magnitudes over a product": ([LORA_Q, DORA_Q], Q_WEIGHT),
}
SUMS = {
    "other rows": [rows(3, 5), rows(9), rows(1, 30)],
    "products": [LORA_Q, LORA_Q],
    "a product over what was saved": [saved(Q_WEIGHT, 1), LORA_Q],
    "a product over magnitudes": [DORA_Q, LORA_Q],
    "others": [rows(3), saved(Q_BIAS, 1), LORA_Q],
}


def stacked(models: Path, stack: list[tuple[dict[str, Stored], dict[str, Any]]]) -> list[Path]:
    return [write_adapter(models / f"s{n}", tensors, **config) for n, (tensors, config) in enumerate(stack)]


@pytest.mark.parametrize("case", list(STACKS))
def test_an_adapter_that_undoes_another_is_refused(case: str, models: Path) -> None:
    stack, name = STACKS[case]
    adapters = stacked(models, stack)
    text = "+".join(map(str, (models / "base", *adapters)))
    with pytest.raises(PlanError) as raised:
        ramerge.convert(text, models / "out")
    (problem,) = raised.value.problems
    assert f"{adapters[-1]}: replaces rows or all of '{name}', which an adapter before it has changed" in problem
    assert any(
        "replaces rows" in problem for problem in ramerge.plan(recipe(models, []) | {"agents": {"x": text}}).problems
    )
    # as the message says, a model that was written first is only a model
    below = "+".join(map(str, (models / "base", *adapters[:-1])))
    ramerge.convert(below, models / "below", dtype="float32")
    ramerge.convert(f"{models / 'below'}+{adapters[-1]}", models / "out", dtype="float32")
    ramerge.merge({"method": "ram", "base": below, "agents": {"x": str(adapters[-1])}}, models / "merged")


@pytest.mark.parametrize("case", list(SUMS))
def test_adapters_that_add_up(case: str, models: Path) -> None:
    """One after the other is the same as each over the model that the earlier ones make."""
    adapters = stacked(models, SUMS[case])
    below = models / "base"
    for number, adapter in enumerate(adapters):
        ramerge.convert(f"{below}+{adapter}", models / f"{number}", dtype="float32")
        below = models / f"{number}"
    ramerge.convert("+".join(map(str, (models / "base", *adapters))), models / "out", dtype="float32")
    assert {name: tensor.bits.tobytes() for name, tensor in read_checkpoint(models / "out").items()} == {
        name: tensor.bits.tobytes() for name, tensor in read_checkpoint(below).items()
    }


def test_tied_embedding_rows_change_the_output(tmp_path: Path, messages: Messages) -> None:
    config = {"tie_word_embeddings": True, "architectures": ["LlamaForCausalLM"]}
    write_base(tmp_path / "base", **config)
    head = {"base_model.model.lm_head.weight": floats(np.ones((32, 16)), "F32")}
    first, second, third = stacked(tmp_path, [rows(3), rows(5), (head, {"modules_to_save": ["lm_head"]})])
    ramerge.convert(f"{tmp_path / 'base'}+{first}+{second}", tmp_path / "sum")
    with messages.raises(PlanError):
        ramerge.convert(f"{tmp_path / 'base'}+{first}+{third}", tmp_path / "out")


def test_the_alpha_that_verl_has_beside_the_adapter(models: Path) -> None:
    (models / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 32, "task_type": "CAUSAL_LM"}))
    [problem] = problems_of(models, factors(UP[0]), lora_alpha=0)
    assert f"{models / 'lora_train_meta.json'} says 32" in problem


def key(module: str, part: str) -> str:
    return f"base_model.model.{module}.{part}"


def some(*shape: int, dtype: str = "F32") -> Stored:
    return floats(np.ones(shape), dtype)


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        ({key(Q, "lora_A.weight"): some(4, 16)}, {}, "has A, but not the other factor"),
        ({key(Q, "lora_B.weight"): some(16, 4)}, {}, "has B, but not the other factor"),
        ({key(Q, "lora_A.weight"): some(4, 16), key(Q, "lora_B.weight"): some(16, 5)}, {}, "no factors of a product"),
        ({key(Q, "lora_A.weight"): some(0), key(Q, "lora_B.weight"): some(16, 4)}, {}, "without gathering"),
        ({key(Q, "lora_A.weight"): some(4, 16, 1), key(Q, "lora_B.weight"): some(16, 4, 1)}, {}, "convolutions"),
        ({key(Q, "lora_A.weight"): some(4, 8), key(Q, "lora_B.weight"): some(16, 4)}, {}, "adapter of another model"),
        ({key(Q, "lora_A.weight"): some(4, 16, dtype="F64")}, {}, "has dtype F64"),
        ({key("model.x", "lora_A.weight"): some(4, 16), key("model.x", "lora_B.weight"): some(16, 4)}, {}, "no tensor"),
        ({key(Q, "lora_diag.weight"): some(4)}, {}, "of a kind of adapter that is not read"),
        ({key(Q, "lora_A.weight"): some(4, 16), key(Q, "lora_A.default.weight"): some(4, 16)}, {}, "is there twice"),
        ({**factors(Q), key(Q, "lora_magnitude_vector"): some(16)}, {}, "but use_dora is not set"),
        ({**factors(Q), key(Q, "lora_magnitude_vector"): some(15)}, {"use_dora": True}, "[15] magnitudes"),
        ({**factors(UP[0]), key(UP[0], "lora_B.bias"): some(24)}, {}, "the base's has no bias"),
        (
            {key("model.embed_tokens.token_adapter", "trainable_tokens_delta"): some(2, 16)},
            {"trainable_token_indices": [1]},
            "names 1 row ",
        ),
        (
            {key("model.embed_tokens.token_adapter", "trainable_tokens_delta"): some(1, 16)},
            {"trainable_token_indices": {"embed_tokens": [32]}},
            "names rows that",
        ),
        (
            {key("model.layers.0.mlp", "lora_A.weight"): some(4, 16)}
            | {key("model.layers.0.mlp", "lora_B.weight"): some(9, 4)},
            {"target_parameters": ["mlp.up_proj.weight", "mlp.gone"]},
            "of those that target_parameters names the base has none",
        ),
        ({f"{Q}.weight": some(16, 16), key(Q, "weight"): some(16, 16)}, {}, f"replaces '{Q}.weight' twice, as"),
        ({key(Q, "weight"): some(16, 16), key(Q, "modules_to_save.default.weight"): some(16, 16)}, {}, "twice, as"),
        (factors(Q) | {k.replace("model.l", "model.language_model.l"): v for k, v in factors(Q).items()}, {}, "twice"),
        (factors(Q, rank=1025), {"r": 1025}, "more than 1,024 add nothing to such a matrix"),
        ({}, {}, "holds no tensors"),
    ],
)
def test_tensors_that_are_refused(
    tensors: dict[str, Stored], config: dict[str, object], words: str, models: Path
) -> None:
    found = problems_of(models, tensors, **config)
    assert any(words in problem for problem in found), found
    assert all(str(models / "wrong" / "adapter_model.safetensors") in problem for problem in found)


def test_everything_that_is_wrong_is_listed(models: Path) -> None:
    wrong = {**factors(*UP), key(Q, "lora_A.weight"): some(4, 16), key("x", "lora_B.weight"): some(3, 4)}
    assert len(problems_of(models, wrong)) == 2
    (models / "wrong").rename(models / "first")
    assert len(problems_of(models, wrong, init_lora_weights="olora", use_qalora=True, lora_alpha="x")) == 3


def test_ambiguous_square_parameter_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    name = "model.layers.0.mlp.experts"
    write_checkpoint(tmp_path / "base", {f"{name}.down_proj": floats(rng.normal(size=(2, 8, 8)))})
    tensors = {key(name, "lora_A.weight"): some(4, 8), key(name, "lora_B.weight"): some(8, 4)}
    config = {"target_parameters": ["experts.down_proj"], "r": 2}
    found = problems_of(tmp_path, tensors, **config, peft_version="0.20.0")
    assert "down_proj is square" in found[0]
    known = write_adapter(tmp_path / "older", tensors, **config, peft_version="0.18.1")
    assert open_checkpoint(known, base=open_checkpoint(tmp_path / "base")).tensors[f"{name}.down_proj"].dtype == "F32"


EXPERTS = "model.layers.0.mlp.experts"


def stacked_pairs(out: int, width: int, *, seed: int = 5) -> tuple[dict[str, Stored], np.ndarray]:
    """A pair for each of three experts, as SkyRL writes them, and twice their products."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-8, 9, shape) / 64 for shape in ((3, 4, width), (3, out, 4)))
    name = f"base_model.model.{EXPERTS}.gate_up_proj"
    return {f"{name}.lora_A.weight": floats(a, "F32"), f"{name}.lora_B.weight": floats(b, "F32")}, 2 * (b @ a)


@pytest.mark.parametrize("layout", ["one tensor", "transposed", "a tensor for each"])
def test_a_pair_for_each_expert(layout: str, tmp_path: Path) -> None:
    start = np.random.default_rng(0).integers(-8, 9, (3, 12, 8)) / 64
    tensors, update = stacked_pairs(12, 8)
    wanted = start + update
    made: dict[str, np.ndarray] = {}
    for values in (start, wanted):
        if layout == "a tensor for each":
            cut = {("gate", e): values[e, :6] for e in range(3)} | {("up", e): values[e, 6:] for e in range(3)}
            found = {f"{EXPERTS}.{e}.{part}_proj.weight": value for (part, e), value in cut.items()}
        else:
            found = {f"{EXPERTS}.gate_up_proj": values.transpose(0, 2, 1) if layout == "transposed" else values}
        if not made:
            write_checkpoint(tmp_path / "base", {name: floats(value, "F32") for name, value in found.items()})
        made = found
    ramerge.convert(f"{tmp_path / 'base'}+{write_adapter(tmp_path / 'x', tensors)}", tmp_path / "out")
    ours = read_checkpoint(tmp_path / "out")
    assert ours.keys() == made.keys()
    assert all(ours[name].bits.tobytes() == floats(value, "F32").bits.tobytes() for name, value in made.items())


@pytest.mark.parametrize(
    ("shape", "config", "words"),
    [
        ((2, 12, 8), {}, "and the base has 2 experts"),
        ((3, 12, 9), {}, "does not fit the base's"),
        (None, {}, "and the base has no such projection of experts"),
        ((3, 12, 8), {"use_dora": True}, "DoRA of experts is not read"),
        ((3, 12, 8), {"r": 3}, "has the rank 4, but by r and rank_pattern"),
    ],
)
def test_pairs_of_experts_that_do_not_fit(
    shape: tuple[int, ...] | None, config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    name = f"{EXPERTS}.gate_up_proj" if shape else "model.norm.weight"
    write_checkpoint(tmp_path / "base", {name: floats(np.ones(shape or 8), "F32")})
    (problem,) = problems_of(tmp_path, stacked_pairs(12, 8)[0], **config)
    assert words in problem


def test_placeholders_for_what_the_base_lacks_are_skipped(models: Path, messages: Messages) -> None:
    """Tinker writes empty gates of experts that have none; empty factors of a module that is there are a fault."""
    empty = {key("model.layers.0.mlp.w3", f"lora_{letter}.weight"): some(0) for letter in "AB"}
    agent = open_checkpoint(write_adapter(models / "x", factors(Q) | empty), base=open_checkpoint(models / "base"))
    assert any("'model.layers.0.mlp.w3': placeholders without elements" in note for note in agent.notes)
    assert agent.tensors[f"{Q}.weight"].dtype == "F32"
    messages.check(*problems_of(models, empty))


def test_weights_of_the_base_that_cannot_be_changed(tmp_path: Path, messages: Messages) -> None:
    write_base(tmp_path / "base", "F64")
    messages.check(*problems_of(tmp_path, factors(Q)))


def test_damaged_weights_are_refused_by_name(models: Path) -> None:
    tensors = factors(*UP)
    first = tensors[key(UP[0], "lora_B.weight")]
    first.bits.reshape(-1)[3] = 0x7FC00000
    write_adapter(models / "damaged", tensors)
    with pytest.raises(WeightsError, match=rf"damaged.*{UP[0]}|{UP[0]}.*damaged"):
        ramerge.merge(recipe(models, ["damaged"]), models / "out")


def test_damaged_adapted_weights_name_both_files(models: Path) -> None:
    tensors = factors(*UP)
    tensors[key(UP[0], "lora_B.weight")].bits.reshape(-1)[3] = 0x7FC00000
    write_adapter(models / "damaged", tensors)
    files = f"{models / 'damaged/adapter_model.safetensors'} or {models / 'base/model.safetensors'}: model: tensor"
    with pytest.raises(WeightsError, match=re.escape(files)):
        ramerge.convert(f"{models / 'base'}+{models / 'damaged'}", models / "out")


def test_another_base_is_a_warning(models: Path, messages: Messages) -> None:
    for place, named in (("same", "/data/models/base"), ("cached", "/x/models--org--base/snapshots/0123")):
        write_adapter(models / place, factors(Q), base_model_name_or_path=named)
        assert ramerge.plan(recipe(models, [place])).warnings == ()
    write_adapter(models / "other", factors(Q), base_model_name_or_path="org/base-Instruct", new_trick=True)
    messages.check(*ramerge.plan(recipe(models, ["other"])).warnings)


_TWO_LAYERS = {
    f"model.layers.{layer}.{name}": shape
    for layer in range(2)
    for name, shape in {
        "self_attn.q_proj.weight": (16, 16),
        "self_attn.q_proj.bias": (16,),
        "mlp.up_proj.weight": (24, 16),
        "mlp.experts.0.up_proj.weight": (24, 16),
    }.items()
} | {"model.embed_tokens.weight": (32, 16), "lm_head.weight": (32, 16), "visual.up_proj.weight": (24, 16)}
_HEAD = {"base_model.model.lm_head.weight": floats(np.zeros((32, 16)), "F32")}
_BIASES = {
    f"base_model.model.model.layers.{layer}.self_attn.q_proj.bias": floats(np.ones(16), "F32") for layer in range(2)
}


def lost_parts(folder: Path, tensors: Mapping[str, Stored], layers: int = 2, **config: object) -> list[str]:
    """Warnings about an adapter of a model with two layers, experts and a head."""
    base = folder / "base"
    if not base.exists():
        stored = {name: floats(np.full(shape, 0.5)) for name, shape in _TWO_LAYERS.items()}
        write_checkpoint(base, stored, config={"model_type": "test", "num_hidden_layers": layers})
    place = folder / f"adapter {len(list(folder.iterdir()))}"
    return list(open_checkpoint(write_adapter(place, tensors, **config), base=open_checkpoint(base)).warnings)


@pytest.mark.parametrize(
    ("tensors", "config", "lost"),
    [
        (factors(Q), {"target_modules": ["q_proj"]}, "'q_proj' (1 of 2, such as 'model.layers.1.self_attn.q_proj.w"),
        (factors(*UP), {"target_modules": ["q_proj", "up_proj"]}, "target_modules: 'q_proj' (2 of 2"),
        (factors(*UP), {"target_modules": r"model\.layers.*_proj"}, "target_modules: 'q_proj' (2 of 2"),
        (factors(*UP), {"modules_to_save": ["lm_head"]}, "modules_to_save: 'lm_head' (1 of 1"),
        (factors(*UP), {"target_parameters": ["q_proj.weight"]}, "target_parameters: 'q_proj.weight' (2 of 2"),
        (factors(*UP), {"bias": "all"}, "bias: all (2 of 2"),
        (factors(*UP), {"bias": "lora_only", "target_modules": ["q_proj"]}, "bias: lora_only (2 of 2"),
        (factors(*UP), {"trainable_token_indices": [3]}, "trainable_token_indices (1 of 1"),
        (factors(*UP), {"trainable_token_indices": {"lm_head": [3]}}, "trainable_token_indices (1 of 1"),
    ],
)
def test_what_a_configuration_states_and_files_lack(
    tensors: dict[str, Stored], config: dict[str, Any], lost: str, tmp_path: Path
) -> None:
    (warning,) = lost_parts(tmp_path, tensors, **config)
    assert "lacks tensors that adapter_config.json states" in warning and lost in warning


@pytest.mark.parametrize(
    ("tensors", "config"),
    [
        (factors(*UP), {"target_modules": ["up_proj", "w1"]}),  # no experts, no other tower, nothing the base lacks
        (factors(*UP), {"target_modules": "all-linear"}),
        (factors(UP[0]), {"target_modules": ["up_proj"], "layers_to_transform": [0]}),
        (factors(UP[0]), {"target_modules": ["up_proj"], "exclude_modules": ["layers.1.mlp.up_proj"]}),
        ({**factors(*UP), **_HEAD}, {"modules_to_save": ["lm_head", "score"]}),
        ({**factors(*UP), **_BIASES}, {"bias": "all"}),
        (factors(*UP), {"bias": "lora_only", "target_modules": ["up_proj"]}),
        (factors(*UP), {"target_modules": "(a+)+(?:q_proj)"}),  # takes long to match
    ],
)
def test_whole_adapters_lose_nothing(tensors: dict[str, Stored], config: dict[str, Any], tmp_path: Path) -> None:
    assert lost_parts(tmp_path, tensors, **config) == []


def test_layers_that_transformers_leaves_out_are_not_lost(tmp_path: Path) -> None:
    assert lost_parts(tmp_path, factors(Q), layers=1, target_modules=["q_proj"]) == []


@pytest.mark.parametrize("option", ["use_new", "new_config"])
def test_new_kinds_of_updates_are_refused(option: str, models: Path) -> None:
    (problem,) = problems_of(models, factors(Q), **{option: {"scale": 2}})
    assert f"'{option}' is set, which is not known here" in problem
    off = write_adapter(models / "off", factors(Q), **{option: False})
    assert not open_checkpoint(off, base=open_checkpoint(models / "base")).warnings


_ODD: tuple[Any, ...] = (None, 0, -1, float("inf"), True, "", [], {}, [1], {"a": 1}, "x", 10**400, "(a+)+", {"(": 1})
_MORE = ([[1]], {"embed_tokens": [True]}, {"embed_tokens": [10**30, 1]}, -5.5)


def test_no_configuration_does_more_than_be_refused(models: Path) -> None:
    full = {
        **CONFIG,
        **{"init_lora_weights": True, "use_rslora": True, "use_dora": False, "peft_version": "0.21.2"},
        **{"alpha_pattern": {"up_proj": 4, "^a.*": 2}, "target_parameters": ["mlp.experts.down_proj"]},
        **{"trainable_token_indices": {"embed_tokens": [1, 2]}, "ensure_weight_tying": False},
    }
    tokens = {key("model.embed_tokens.token_adapter", "trainable_tokens_delta"): some(2, 16)}
    adapter, base = write_adapter(models / "odd", factors(*UP) | tokens, **full), open_checkpoint(models / "base")
    assert open_checkpoint(adapter, base=base).tensors["model.embed_tokens.weight"].dtype == "F32"
    for name in full:
        for value in (*_ODD, *_MORE):
            (adapter / "adapter_config.json").write_text(json.dumps({**full, name: value}))
            with suppress(CheckpointError):
                open_checkpoint(adapter, base=base)


def test_adapters_of_megatron_are_named(models: Path, messages: Messages) -> None:
    module = "decoder.layers.0.self_attention.linear_qkv.adapter"
    tensors = {f"{module}.linear_in.weight": some(4, 16), f"{module}.linear_out.weight": some(16, 4)}
    (problem,) = problems_of(models, tensors)
    messages.check(problem)


@pytest.mark.parametrize("base", ["org/base-bnb-4bit", "org/base-unsloth-bnb-4bit"])
def test_adapters_that_were_trained_in_4_bits(base: str, models: Path) -> None:
    folder = write_adapter(models / "x", factors(Q), base_model_name_or_path=base)
    agent = open_checkpoint(folder, base=open_checkpoint(models / "base"))
    assert agent.warnings == () and any("QLoRA" in note for note in agent.notes)


def test_problems_that_are_alike_are_one(tmp_path: Path, messages: Messages) -> None:
    names = [f"model.layers.{layer}.mlp.up_proj" for layer in range(9)]
    write_checkpoint(tmp_path / "base", {f"{name}.weight": floats(np.ones((24, 16)), "BF16") for name in names})
    tensors = {key(name, f"lora_{letter}.weight"): some(*shape) for name in names for letter, shape in PAIR.items()}
    (problem,) = problems_of(tmp_path, tensors)
    messages.check(problem)


def test_part_of_an_adapter_is_refused(models: Path, messages: Messages) -> None:
    tensors = {key(Q, "lora_A.weight"): some(4, 16), key(Q, "lora_B.weight"): some(8, 4)}
    (problem,) = problems_of(models, tensors)
    messages.check(problem)


PAIR = {"A": (4, 7), "B": (5, 4)}
ROWS = {"q": (8, 16), "k": (4, 16), "v": (4, 16)}


@pytest.mark.parametrize("whole_base", [True, False])
def test_projections_in_one_tensor_or_each_its_own(whole_base: bool, tmp_path: Path) -> None:
    """An adapter of one projection on a matrix that holds three, and the other way round."""
    rng = np.random.default_rng(0)
    start = {part: rng.integers(-8, 9, shape) / 64 for part, shape in ROWS.items()}
    a, b = rng.integers(-8, 9, (4, 16)) / 64, rng.integers(-8, 9, (16, 4)) / 64
    module, parts = "model.layers.0.self_attn", np.split(b, [8, 12])
    if whole_base:
        tensors = {f"{module}.qkv_proj.weight": np.concatenate(list(start.values()))}
        pairs = {f"{module}.{part}_proj": (a, rows) for part, rows in zip(ROWS, parts, strict=True)}
    else:
        tensors = {f"{module}.{part}_proj.weight": values for part, values in start.items()}
        pairs = {f"{module}.qkv_proj": (a, b)}
    write_checkpoint(tmp_path / "base", {name: floats(values, "F32") for name, values in tensors.items()})
    stored = {
        key(name, f"lora_{letter}.weight"): floats(factor, "F32")
        for name, pair in pairs.items()
        for letter, factor in zip("AB", pair, strict=True)
    }
    ramerge.convert(f"{tmp_path / 'base'}+{write_adapter(tmp_path / 'x', stored)}", tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    made = np.concatenate([found[name].numbers(np.float32) for name in tensors])
    assert made.tolist() == (np.concatenate(list(start.values())) + 2 * b @ a).tolist()


@pytest.mark.parametrize("front", ["model.language_model.", "thinker.model.", "llm.", ""])
def test_modules_are_found_under_other_prefixes(front: str, models: Path) -> None:
    base = read_checkpoint(models / "base")
    write_checkpoint(models / "other", {name.replace("model.", front): tensor for name, tensor in base.items()})
    ramerge.convert(f"{models / 'base'}+{models / 'code'}", models / "wanted")
    ramerge.convert(f"{models / 'other'}+{models / 'code'}", models / "out")
    wanted, found = read_checkpoint(models / "wanted"), read_checkpoint(models / "out")
    assert all(
        found[name.replace("model.", front)].bits.tobytes() == tensor.bits.tobytes() for name, tensor in wanted.items()
    )


@pytest.mark.parametrize("parts", ["q", "k", "v", "qk", "qv", "kv", "qkv"])
def test_some_projections_of_a_fused_tensor(parts: str, tmp_path: Path) -> None:
    """Keys and values have the same number of rows, so that the place of each part follows from the others."""
    rng, stem, rows = np.random.default_rng(5), "model.layers.0.self_attn", {"q": 16, "k": 8, "v": 8}
    start = rng.normal(0, 0.05, (32, 16))
    write_checkpoint(tmp_path / "base", {f"{stem}.qkv_proj.weight": floats(start, "F32")})
    stored, wanted = {}, start.astype(np.float32).astype(np.float64)
    for part in parts:
        a, b = rng.normal(0, 0.1, (4, 16)), rng.normal(0, 0.1, (rows[part], 4))
        module = f"base_model.model.{stem}.{part}_proj"
        stored |= {f"{module}.lora_A.weight": floats(a, "F32"), f"{module}.lora_B.weight": floats(b, "F32")}
        first = {"q": 0, "k": 16, "v": 24}[part]
        wanted[first : first + rows[part]] += 2 * (b @ a)
    write_adapter(tmp_path / "code", stored)
    ramerge.convert(f"{tmp_path / 'base'}+{tmp_path / 'code'}", tmp_path / "out", dtype="float32")
    found = read_checkpoint(tmp_path / "out")[f"{stem}.qkv_proj.weight"].bits.view(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


TOWER = "base_model.model.model.visual.blocks.0.attn.qkv"


def test_towers_that_a_text_model_lacks_are_dropped(models: Path, messages: Messages) -> None:
    tower = {f"{TOWER}.lora_A.weight": some(4, 16), f"{TOWER}.lora_B.weight": some(48, 4)}
    write_adapter(models / "vision", factors(*UP, seed=1) | tower)
    opened = open_checkpoint(models / "vision", base=open_checkpoint(models / "base"))
    assert any("visual" in note and "dropped" in note for note in opened.notes)
    ramerge.convert(f"{models / 'base'}+{models / 'vision'}", models / "out", dtype="float32")
    ramerge.convert(f"{models / 'base'}+{models / 'code'}", models / "wanted", dtype="float32")
    close(read_checkpoint(models / "out"), read_checkpoint(models / "wanted"))
    write_adapter(models / "only", tower)
    with messages.raises(CheckpointError):
        open_checkpoint(models / "only", base=open_checkpoint(models / "base"))


def test_trained_head_is_never_dropped(models: Path) -> None:
    head = {"base_model.model.score.weight": some(1, 16)}
    write_adapter(models / "reward", factors(*UP, seed=1) | head, modules_to_save=["score"])
    (problem,) = ramerge.plan(recipe(models, ["reward"])).problems
    assert "score.weight" in problem and "allow" not in problem


def test_adapters_that_leave_packed_weights_alone(tmp_path: Path) -> None:
    """Codes of a base in 4 bits stay as they are if the recipe accepts its quantization."""
    base = write_base(tmp_path / "base", quantization_config={"quant_method": "gptq", "bits": 4})
    packed = Stored("I32", np.arange(12, dtype=np.int32).reshape(3, 4))
    write_safetensors(base / "model.safetensors", read_checkpoint(base) | {"model.layers.1.k_proj.qweight": packed})
    write_adapter(tmp_path / "code", factors(*UP, seed=1))
    assert "allow: {config: [quantization_config]}" in ramerge.plan(recipe(tmp_path, ["code"])).problems[0]
    source = recipe(tmp_path, ["code"], "task_arithmetic", dtype="float32", allow={"config": ["quantization_config"]})
    ramerge.merge(source, tmp_path / "out")
    close(read_checkpoint(tmp_path / "out"), whole(base, tmp_path / "code"))
