"""Configurations of base and agents: what may differ, what defaults mean, and what contradicts the weights."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramerge
from ramerge.core.foundation.jsontext import RECORD, dumped, parse
from ramerge.core.planning.configs import ConfigDifferences, are_related, compare_configs, key_table, normalize_config
from tests.checkpoints import floats, recipe, simple, write_checkpoint, write_simple
from tests.messages import Messages

KEYS = st.sampled_from(
    [
        "model_type",
        "architectures",
        "text_config",
        "vision_config",
        "hidden_size",
        "rope_scaling",
        "layer_types",
        "rope_theta",
        "x",
    ]
)


def classes(base: dict, agent: dict) -> tuple[set[str], set[str], set[str]]:
    found = compare_configs(base, agent)
    return set(found.refusals), set(found.warnings), set(found.harmless)


CONSTANTS = st.recursive(
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 1.5, None, "llama"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(config=st.dictionaries(KEYS, CONSTANTS, max_size=6))
def test_every_configuration_equals_itself(config: dict) -> None:
    text = json.dumps(config).encode()
    first, second = (parse(text, RECORD) for _ in range(2))
    assert first == second and compare_configs(first, second) == ConfigDifferences()
    assert are_related(first, second)
    assert json.loads(dumped(first, constants=True).encode(), parse_constant=str) == json.loads(
        text, parse_constant=str
    )


@pytest.mark.parametrize("kind", [ramerge.merge, ramerge.delta])
def test_models_of_an_undefined_kind_are_merged(kind: Callable, tmp_path: Path) -> None:
    config = {"model_type": math.nan, "text_config": {"model_type": math.nan, "hidden_size": math.nan}}
    for seed, name in enumerate(("base", "a")):
        write_checkpoint(tmp_path / name, simple(seed, moved=0.1), config=config)
    source = (recipe(tmp_path, ["a"]),) if kind is ramerge.merge else (tmp_path / "base", tmp_path / "a")
    record = kind(*source, tmp_path / "out")
    assert not any("model_type" in text or "architecture" in text for text in record.warnings)


@pytest.mark.parametrize(
    ("key", "base", "agent", "serious"),
    [
        ("hidden_size", 8, 9, True),
        ("architectures", ["A"], ["B"], True),
        ("hidden_act", "silu", "gelu", True),
        ("rope_theta", 1e4, 1e6, True),
        ("tie_word_embeddings", True, False, True),
        ("num_experts_per_tok", 2, 4, True),
        ("rms_norm_eps", 1e-5, 1e-6, True),
        ("eos_token_id", 1, 2, False),
        ("use_cache", True, False, None),
        ("torch_dtype", "bfloat16", "float32", None),
        ("transformers_version", "4", "5", None),
        ("max_position_embeddings", 10, 20, False),
    ],
)
def test_which_differences_are_known(key, base, agent, serious) -> None:
    found = compare_configs({key: base}, {key: agent})
    assert bool(found.refusals) == (serious is True)
    assert bool(found.harmless) == (serious is False)
    assert not found.warnings


@pytest.mark.parametrize(
    ("key", "base", "agent"),
    [
        ("norm_topk_prob", True, False),
        ("routed_scaling_factor", 1.0, 2.5),
        ("scoring_func", "softmax", "sigmoid"),
        ("topk_method", "greedy", "noaux_tc"),
        ("n_group", 1, 8),
        ("topk_group", 1, 4),
        ("first_k_dense_replace", 1, 3),
        ("decoder_sparse_step", 1, 2),
        ("logits_scaling", 1.0, 8.0),
        ("logit_scale", 0.0625, 1.0),
        ("query_pre_attn_scalar", 256, 224),
        ("use_sliding_window", False, True),
        ("sliding_window_pattern", 4, 6),
        ("qkv_bias", True, False),
        ("use_qk_norm", True, False),
        ("swiglu_limit", 7.0, 10.0),
        ("scale_emb", 12, 1),
        ("scale_depth", 1.4, 1.0),
        ("partial_rotary", 1, 2),
        ("alibi", True, False),
        ("use_parallel_residual", True, False),
        ("a_key_of_tomorrow", "a", "b"),
    ],
)
def test_unknown_key_is_a_warning(key, base, agent) -> None:
    assert classes({key: base}, {key: agent}) == (set(), {key}, set())
    assert classes({"text_config": {key: base}}, {"text_config": {key: agent}}) == (
        set(),
        {f"text_config.{key}"},
        set(),
    )


@pytest.mark.parametrize(
    ("kind", "key", "default", "other"),
    [
        ("qwen2", "rope_theta", 10000.0, 1e6),
        ("mixtral", "rope_theta", 1e6, 1e4),
        ("llama", "rms_norm_eps", 1e-6, 1e-5),
        ("phi3", "rms_norm_eps", 1e-5, 1e-6),
        ("llama", "hidden_act", "silu", "gelu"),
        ("starcoder2", "hidden_act", "gelu_pytorch_tanh", "silu"),
        ("mistral", "sliding_window", 4096, None),
        ("phi3", "sliding_window", None, 2047),
        ("gemma2", "query_pre_attn_scalar", 256, 224),
        ("qwen3_moe", "norm_topk_prob", False, True),
        ("llama", "attention_bias", False, True),
        ("gemma2", "tie_word_embeddings", True, False),
    ],
)
def test_absent_key_has_its_default(kind, key, default, other) -> None:
    without = {"model_type": kind}
    for left, right in ((without, {**without, key: default}), ({**without, key: default}, without)):
        assert classes(left, right) == (set(), set(), set())
    for left, right in ((without, {**without, key: other}), ({**without, key: other}, without)):
        assert classes(left, right) == (set(), {key}, set())
    nested = {"text_config": {**without, key: other}}
    assert classes({"text_config": without}, nested)[1] == {f"text_config.{key}"}


def test_windows_that_are_not_used_may_differ() -> None:
    base = {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
    saved = {"model_type": "qwen2", "sliding_window": None, "max_window_layers": 21, "layer_types": ["full_attention"]}
    base, saved = ({**one, "num_hidden_layers": 1} for one in (base, saved))
    assert classes(base, saved) == (set(), set(), set())
    used = {**base, "use_sliding_window": True}
    assert "use_sliding_window" in classes(base, used)[1]
    assert classes(used, {**used, "sliding_window": 4096, "max_window_layers": 21})[0] == {
        "max_window_layers",
        "sliding_window",
    }


def test_rotary_settings_are_compared_across_versions_of_transformers() -> None:
    nothing = (set(), set(), set())
    old = {"rope_theta": 10000.0, "rope_scaling": None}
    new = {"rope_parameters": {"rope_theta": 10000, "rope_type": "default"}}
    assert classes(old, new) == nothing
    scaled = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0}}
    assert classes(old, scaled)[0] == {"rope_scaling.type", "rope_scaling.factor"}
    assert classes({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4.0}}, scaled) == nothing
    partial = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}}
    assert classes({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, partial) == nothing
    gemma = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    local = {"rope_type": "default", "rope_theta": 1e4}
    both = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": local}
    assert classes(gemma, {"rope_parameters": both}) == nothing
    both["sliding_attention"] = {**local, "rope_theta": 2e4}
    assert classes(gemma, {"rope_parameters": both})[0] == {"rope_local_base_freq"}


def test_quantization_on_one_side_only_is_serious() -> None:
    assert compare_configs({}, {"quantization_config": {"quant_method": "gptq"}}).refusals


WIDE = {"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 6}
EVERY_FOURTH = ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 2


@pytest.mark.parametrize(
    ("kind", "config", "key", "meant", "other"),
    [
        ("llama", {}, "head_dim", 128, 64),
        ("llama", {}, "num_key_value_heads", 16, 8),
        ("qwen3", {}, "head_dim", 128, 64),
        ("qwen3", {"hidden_size": 1024}, "head_dim", 128, 64),
        ("gemma2", {}, "head_dim", 256, 128),
        ("mistral", {}, "num_key_value_heads", 8, 16),
        ("mistral", {"num_key_value_heads": None}, "num_key_value_heads", 16, 8),
        ("mixtral", {}, "num_local_experts", 8, 16),
        ("qwen3_moe", {"num_experts": 64}, "num_local_experts", 64, 128),
        ("qwen3_moe", {}, "mlp_only_layers", [], [0]),
        ("qwen2", {}, "layer_types", ["full_attention"] * 6, ["sliding_attention"] * 6),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 4},
            "layer_types",
            ["full_attention"] * 4 + ["sliding_attention"] * 2,
            ["full_attention"] * 6,
        ),
        ("gemma2", {}, "layer_types", ["sliding_attention", "full_attention"] * 3, ["full_attention"] * 6),
        ("qwen3_next", {}, "layer_types", EVERY_FOURTH, EVERY_FOURTH[::-1]),
        (
            "qwen3_next",
            {"full_attention_interval": 6},
            "layer_types",
            ["linear_attention"] * 5 + ["full_attention"],
            [],
        ),
        ("smollm3", {}, "no_rope_layers", [1, 1, 1, 0, 1, 1], [1] * 6),
        ("smollm3", {"no_rope_layer_interval": 2}, "no_rope_layers", [1, 0] * 3, [1, 1, 1, 0, 1, 1]),
        ("deepseek_v32", {"first_k_dense_replace": 1}, "mlp_layer_types", ["dense"] + ["sparse"] * 5, ["dense"] * 6),
    ],
)
def test_absent_derived_key_is_derived(kind, config, key, meant, other) -> None:
    without = {"model_type": kind, **WIDE, **config}
    for inner in (lambda one: one, lambda one: {"text_config": one}):
        assert classes(inner(without), inner({**without, key: meant})) == (set(), set(), set())
        assert classes(inner({**without, key: meant}), inner(without)) == (set(), set(), set())
        found = compare_configs(inner(without), inner({**without, key: other or ["x"]}))
        (text,) = (found.warnings | found.refusals).values()  # null is a statement
        assert f"none, which means {json.dumps(meant)}" in text or meant == []


@pytest.mark.parametrize(
    ("key", "value", "config"),
    [
        ("layer_types", ["full_attention"], {"model_type": "of tomorrow", **WIDE}),
        ("layer_types", ["full_attention"], {"model_type": "qwen2"}),  # of how many layers?
        ("layer_types", ["full_attention"] * 6, {"model_type": "smollm3", "use_sliding_window": True, **WIDE}),
        ("head_dim", 64, {}),
        ("mlp_only_layers", [3], {}),
    ],
)
def test_what_cannot_be_derived_is_said(key: str, value: object, config: dict) -> None:
    found = compare_configs(config, {**config, key: value})
    assert not found.refusals and found.warnings[key].startswith("base has none, and what that means is not known")
    for same in (None, []):
        assert classes(config, {**config, key: same}) == (set(), set(), set())


@pytest.mark.parametrize("layers", [0, -1, 10**9, "6", 2.5, None])
def test_a_strange_number_of_layers_derives_nothing(layers: object) -> None:
    config = {"model_type": "gemma2", "num_hidden_layers": layers}
    assert classes(config, {**config, "layer_types": ["full_attention"]})[1] == {"layer_types"}


def test_a_merge_prints_them_and_strict_refuses_them(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    for name in ("base", *names):
        config = {"model_type": "qwen3_moe", "norm_topk_prob": name != "tool", "eos_token_id": len(name)}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    source = recipe(tmp_path, names)
    (warning,) = ramerge.merge(source, tmp_path / "out").warnings
    messages.check(warning)
    assert ramerge.plan(source, options=ramerge.Options(strict=True)).problems == (warning,)
    accepted = ramerge.plan(
        recipe(tmp_path, names, allow={"config": ["norm_topk_prob"]}), options=ramerge.Options(strict=True)
    )
    assert not accepted.problems and any("norm_topk_prob" in note for note in accepted.notes)


# --- the table of defaults, and transformers -------------------------------------------------------------------------


@pytest.mark.needs("transformers")
def test_the_table_is_what_transformers_says() -> None:
    from tests.planning.config_defaults import made, rules

    common, models = made()
    table = key_table()
    known = {name: row for name, row in models.items() if row}
    advice = "run python -m tests.planning.config_defaults"
    assert {name: table.models.get(name) for name in known} == known, advice
    assert table.defaults == common, advice
    assert table.lists == rules(), advice


@pytest.mark.needs("transformers")
def test_keys_added_by_transformers_are_no_difference() -> None:
    """For every model type: all keys of the table left out, next to the configuration with all of them."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from tests.planning.config_defaults import defaults_of, model_types

    compared = 0
    for kind in model_types():
        try:
            saved = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
        except Exception:  # some cannot be made without arguments
            continue
        if kind in ("dbrx", "deepseek_v4", "dots3_note_text", "hrm_text", "hyperclovax", "mpt"):
            continue  # with configurations inside, or defaults that depend on others
        rope = set() if normalize_config(saved).get("rope_scaling") else {"rope_parameters"}
        left_out = defaults_of(kind).keys() | rope
        short = {key: value for key, value in saved.items() if key not in left_out}
        found = compare_configs(short, saved)
        assert not found.refusals and not found.warnings, kind
        compared += 1
    assert compared > 150


PUBLISHED = {
    "Qwen2.5-7B-Instruct": '{"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,'
    '"eos_token_id":151645,"hidden_act":"silu","hidden_size":3584,"initializer_range":0.02,"intermediate_size":18944,'
    '"max_position_embeddings":32768,"max_window_layers":28,"model_type":"qwen2","num_attention_heads":28,'
    '"num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_theta":1000000.0,'
    '"sliding_window":131072,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.43.1",'
    '"use_cache":true,"use_sliding_window":false,"vocab_size":152064}',
    "Llama-3.1-8B-Instruct": '{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,'
    '"bos_token_id":128000,"eos_token_id":[128001,128008,128009],"hidden_act":"silu","hidden_size":4096,'
    '"initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":131072,"mlp_bias":false,'
    '"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"pretraining_tp":1,'
    '"rms_norm_eps":1e-05,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,'
    '"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":false,'
    '"torch_dtype":"bfloat16","transformers_version":"4.42.3","use_cache":true,"vocab_size":128256}',
    "Qwen3-30B-A3B": '{"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,'
    '"bos_token_id":151643,"decoder_sparse_step":1,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu",'
    '"hidden_size":2048,"initializer_range":0.02,"intermediate_size":6144,"max_position_embeddings":40960,'
    '"max_window_layers":48,"mlp_only_layers":[],"model_type":"qwen3_moe","moe_intermediate_size":768,'
    '"norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,'
    '"num_key_value_heads":4,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,'
    '"rope_theta":1000000.0,"router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,'
    '"torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,"use_sliding_window":false,'
    '"vocab_size":151936}',
    "Mistral-7B-v0.3": '{"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,'
    '"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,'
    '"max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,'
    '"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,'
    '"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.42.0.dev0","use_cache":true,'
    '"vocab_size":32768}',
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.needs("transformers")
def test_published_and_resaved_configs_agree(name: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    base = json.loads(PUBLISHED[name])
    made = CONFIG_MAPPING[base["model_type"]].from_dict(base)
    for use_diff in (True, False):
        saved = json.loads(made.to_json_string(use_diff=use_diff))
        assert classes(base, saved)[:2] == classes(saved, base)[:2] == (set(), set())


# --- numbers that contradict the weights -----------------------------------------------------------------------------

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SHAPES = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16), "mlp.gate_proj": (24, 16)}


def write_sized(folder: Path, config: dict, seed: int = 0) -> None:
    rng = np.random.default_rng(0)
    shapes = {f"model.layers.{n}.{name}.weight": shape for n in range(2) for name, shape in SHAPES.items()}
    shapes["model.embed_tokens.weight"] = (32, 16)
    write_checkpoint(folder, {k: floats(rng.normal(0, 1, s) + 0.01 * seed) for k, s in shapes.items()}, config=config)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": 32, "head_dim": 4}, "hidden_size is 32, but 'model.embed_tokens.weight' has 16 columns"),
        ({"num_attention_heads": 8, "head_dim": 4}, "num_attention_heads x head_dim is 32"),
        ({"num_key_value_heads": 4}, "num_key_value_heads x head_dim is 16"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, but the weights have 2 layers"),
        ({"vocab_size": 40}, "vocab_size is 40, but 'model.embed_tokens.weight' has 32 rows"),
        ({"intermediate_size": 48}, "intermediate_size is 48"),
    ],
)
def test_a_configuration_that_contradicts_the_weights(changed: dict, said: str, tmp_path: Path) -> None:
    for inner in (lambda config: config, lambda config: {"model_type": "vl", "text_config": config}):
        for seed, name in enumerate(("base", "code", "tool")):
            write_sized(tmp_path / name, inner(SIZES | changed), seed)
        source = recipe(tmp_path, ["code", "tool"])
        (warning,) = ramerge.plan(source).warnings
        assert warning.startswith("base: ") and said in warning
        assert ramerge.plan(source, options=ramerge.Options(strict=True)).problems
        for seed, name in enumerate(("base", "code", "tool")):
            write_sized(tmp_path / name, inner(SIZES), seed)
        assert ramerge.plan(source).warnings == ()


KINDS = (
    "llama qwen2 qwen3 qwen3_moe mistral mixtral gemma2 gemma3_text phi3 deepseek_v3 glm4_moe gpt_oss qwen3_next olmo2"
)


@pytest.mark.parametrize("kind", [*KINDS.split(), "mllama"])
@pytest.mark.needs("torch", "transformers")
def test_models_of_transformers_do_not_contradict_themselves(kind: str) -> None:
    from types import SimpleNamespace

    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from ramerge.core.planning.configs import contradictions

    config = CONFIG_MAPPING[kind]()
    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(config).state_dict()
    tensors = {name: SimpleNamespace(name=name, shape=tuple(one.shape)) for name, one in state.items()}
    stated = json.loads(config.to_json_string(use_diff=False))
    assert contradictions(SimpleNamespace(config=stated, vocabulary=None, tensors=tensors)) == []
