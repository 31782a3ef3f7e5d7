"""Text agents of vision and omni models, and other differences in what two saved models of one kind hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.conformance.test_merge import same
from tests.messages import Messages
from tests.planning.test_name_mappings import Model, dense, written

TEXT: dict[str, Any] = {"hidden_size": 4, "num_hidden_layers": 2, "vocab_size": 10, "tie_word_embeddings": False}
Change = Callable[[Model], Model]


def vision(kind: str = "qwen3_5", **text: object) -> dict[str, Any]:
    """A configuration of a vision model."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": kind,
        "text_config": {**TEXT, "model_type": f"{kind}_text", **text},
        "vision_config": {"model_type": kind, "depth": 2, "hidden_size": 3},
        "image_token_id": 7,
        "tie_word_embeddings": False,
    }


def text(kind: str = "qwen3_5_text", **more: object) -> dict[str, Any]:
    return {"architectures": ["Qwen3_5ForCausalLM"], **TEXT, "model_type": kind, **more}


def under(stem: str, head: str = "lm_head.weight") -> Change:
    """The text model under another prefix."""
    return lambda model: {
        head if name == "lm_head.weight" else name.replace("model.", stem, 1): values for name, values in model.items()
    }


def tower(stem: str) -> Model:
    rng = np.random.default_rng(9)
    shapes = {f"{stem}blocks.{block}.attn.qkv.weight": (9, 3) for block in range(2)}
    shapes |= {f"{stem}patch_embed.proj.weight": (3, 5), f"{stem}merger.linear_fc1.weight": (4, 3)}
    return {name: rng.normal(0, 0.02, shape) for name, shape in shapes.items()}


MTP = {"mtp.fc.weight": np.ones((4, 8)), "mtp.layers.0.self_attn.q_proj.weight": np.ones((6, 4))}
OMNI = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
    "model_type": "qwen3_omni_moe",
    "thinker_config": vision("qwen3_omni_moe_thinker"),
    "talker_config": {"model_type": "talker", "text_config": {**TEXT, "model_type": "talker_text"}},
}
FLAT = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], **TEXT, "model_type": "qwen2_5_vl"}
FLAT |= {"vision_config": {"model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 3}}
FLAT["rope_scaling"] = {"type": "mrope", "mrope_section": [1, 1]}
INTERN = {
    "model_type": "internvl_chat",
    "llm_config": {**TEXT, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "vision_config": {"model_type": "intern_vit_6b", "hidden_size": 3},
}
NESTED = {"architectures": FLAT["architectures"], "model_type": "qwen2_5_vl", "vision_config": FLAT["vision_config"]}
NESTED["text_config"] = {**TEXT, "model_type": "qwen2_5_vl_text", "rope_scaling": FLAT["rope_scaling"]}
INSIDE, THINKER = under("model.language_model."), under("thinker.model.", "thinker.lm_head.weight")
TALKER = {name.replace("model.", "talker.model."): values for name, values in dense(5).items() if "lm_head" not in name}


def plain(model: Model) -> Model:
    return model


# configuration, the text model's names and the rest, of the base; then configuration and names of the agents
CASES: dict[str, tuple[dict[str, Any], Change, Model, dict[str, Any], Change]] = {
    "Qwen3.5": (vision(), INSIDE, tower("model.visual.") | MTP, text(), plain),
    "Qwen3.5, whole configuration": (
        vision(), INSIDE, tower("model.visual."), vision() | {"architectures": ["Qwen3_5ForCausalLM"]}, plain,
    ),
    "Qwen3.5, prefix three times": (
        vision(), INSIDE, tower("model.visual."), vision(), under(f"model.{3 * 'language_model.'}"),
    ),
    "thinker's text": (
        OMNI, THINKER, tower("thinker.visual.") | TALKER, text("qwen3_omni_moe_thinker_text"), plain,
    ),
    "InternVL": (
        INTERN, under("language_model.model.", "language_model.lm_head.weight"),
        tower("vision_model.encoder.") | {"mlp1.0.weight": np.ones(3)}, text("qwen3"), plain,
    ),
    "Qwen2.5-VL without text_config": (FLAT, plain, tower("visual."), text("qwen2"), plain),
    "Qwen2.5-VL of transformers 5": (FLAT, plain, {}, NESTED, INSIDE),
    "Qwen2.5-VL of transformers 4": (NESTED, INSIDE, {}, FLAT, plain),
}  # fmt: skip


def check(folder: Path, base: Model, agents: list[Model], agent_names: Change, *configs: dict[str, Any]) -> Any:
    """Merge agents, of which those tensors count that the base has, and compare with the reference."""
    write_checkpoint(folder / "base", written(base), config=configs[0])
    for name, agent in zip(("a", "b"), agents, strict=True):
        write_checkpoint(folder / name, written(agent_names(agent)), config=configs[1])
    source = recipe(folder, ["a", "b"], "task_arithmetic")
    plan = ramerge.plan(source)
    assert plan.problems == () and not [text for text in plan.warnings if "config.json" in text]
    ramerge.merge(source, folder / "out")
    return plan


@pytest.mark.parametrize("case", list(CASES))
def test_text_agents(case: str, tmp_path: Path) -> None:
    config, names, rest, agent_config, agent_names = CASES[case]
    plan = check(tmp_path, names(dense(0)) | rest, [dense(1), dense(2)], agent_names, config, agent_config)
    wanted = reference.task_arithmetic(
        written(names(dense(0))), {name: written(names(dense(seed))) for seed, name in enumerate("ab", 1)}
    )
    same(read_checkpoint(tmp_path / "out"), {**wanted, **written(rest)})
    assert not rest or sum("the base's are used" in note for note in plan.notes) == 1


def test_a_tower_that_the_base_lacks_is_dropped(tmp_path: Path) -> None:
    plan = check(
        tmp_path, dense(0), [dense(1), dense(2)], lambda model: INSIDE(model) | tower("model.visual."), text(), vision()
    )
    assert any("which the base does not have; they are dropped" in note for note in plan.notes)
    assert read_checkpoint(tmp_path / "out").keys() == dense(0).keys()


@pytest.mark.parametrize("gone", ["layers.1.self_attn.q_proj", "lm_head", "model.norm", "embed_tokens", "layers.1."])
def test_text_model_tensor_is_required(gone: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", written(INSIDE(dense(0)) | tower("model.visual.")), config=vision())
    agent = {name: values for name, values in dense(1).items() if gone not in name}
    write_checkpoint(tmp_path / "a", written(agent), config=text())
    problems = ramerge.plan(recipe(tmp_path, ["a"])).problems
    assert problems and all("visual" not in problem for problem in problems)


def test_half_a_tower_is_a_mistake(tmp_path: Path, messages: Messages) -> None:
    whole = INSIDE(dense(0)) | tower("model.visual.")
    write_checkpoint(tmp_path / "base", written(whole), config=vision())
    half = {name: values for name, values in whole.items() if "visual.blocks.1" not in name}
    write_checkpoint(tmp_path / "a", written(half), config=vision())
    messages.check(*ramerge.plan(recipe(tmp_path, ["a"])).problems)


MASK = np.tril(np.ones((1, 1, 4, 4)))
ABSENT: dict[str, tuple[dict[str, Any], Model]] = {
    "buffers": ({}, {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2), "model.layers.0.attn.bias": MASK}),
    "keys and values": (
        {"num_kv_shared_layers": 1},
        {f"model.layers.1.self_attn.{part}.weight": np.ones(2) for part in ("k_norm", "v_norm", "kv_proj")},
    ),
    "multi-token": ({}, MTP),
    "beyond those that": (
        {"num_nextn_predict_layers": 1}, {"model.layers.2.eh_proj.weight": np.ones((4, 8)),
                                          "model.layers.2.embed_tokens.weight": np.ones((10, 4))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("base_has", [True, False])
@pytest.mark.parametrize("kind", list(ABSENT))
def test_what_only_one_side_stores(kind: str, base_has: bool, tmp_path: Path) -> None:
    config, more = ABSENT[kind]
    base, agent = (more, {}) if base_has else ({}, more)
    plan = check(
        tmp_path, dense(0) | base, [dense(1), dense(2)], lambda model: model | agent, text(**config), text(**config)
    )
    assert sum(kind in note for note in plan.notes) == 1
    wanted = reference.task_arithmetic(
        written(dense(0)), {name: written(dense(seed)) for seed, name in enumerate("ab", 1)}
    )
    same(read_checkpoint(tmp_path / "out"), {**wanted, **written(base)})


def test_mismatching_buffers_are_the_bases(tmp_path: Path) -> None:
    name = "model.layers.0.attn.bias"
    write_checkpoint(tmp_path / "base", {**written(dense(0)), name: floats(MASK, "F32")})
    write_checkpoint(tmp_path / "a", {**written(dense(1)), name: floats(np.tril(np.ones((1, 1, 8, 8))))})
    ramerge.merge(recipe(tmp_path, ["a"]), tmp_path / "out")
    assert read_checkpoint(tmp_path / "out")[name].numbers(np.float32).tolist() == MASK.tolist()


def test_predicting_further_tokens_or_not_is_no_difference(tmp_path: Path) -> None:
    configs = text(num_nextn_predict_layers=1), text(num_nextn_predict_layers=0)
    assert check(tmp_path, dense(0), [dense(1), dense(2)], plain, *configs)


def test_another_architecture_is_still_refused(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", written(INSIDE(dense(0))), config=vision())
    write_checkpoint(tmp_path / "a", written(dense(1)), config=text("llama", architectures=["LlamaForCausalLM"]))
    messages.check(*ramerge.plan(recipe(tmp_path, ["a"])).problems)
