"""Tiny models of transformers' own classes with random weights: default configurations, made small."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TEXTS = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
CLASSES = {**TEXTS, **dict(modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)}

# Numbers by the names that configurations have for them.
_SIZES = (
    (r"(.*_)?vocab_size(_.*)?", 96),
    (r"num_hidden_layers|n_layers?|num_layers|depth|(encoder|decoder)_layers|num_blocks", 2),
    (r"num_experts_per_tok|moe_topk|top_k_experts|moe_k|num_experts_per_token|num_selected_experts|moe_top_k|top_k", 2),
    (r"n_group|topk_group|n_groups|num_expert_group|mamba_n_groups|n_shared_experts|moe_num_shared_experts", 1),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts|num_routed_experts", 4),
    (r".*(num_key_value_heads|kv_heads|n_head_kv|num_kv_heads)", 2),
    (r".*(attention_heads|_heads|n_heads?|num_heads)", 4),
    (r"(global_)?(swa_)?(v_)?head_dim|attention_head_dim|linear_.*_head_dim|kv_channels|index_head_dim", 8),
    (r"qk_nope_head_dim", 8),
    (r"qk_rope_head_dim", 4),
    (r".*_rank", 8),
    (r".*(intermediate|ffn|d_ff|inner|mlp_dim|feedforward).*", 64),
    (r"(.*_)?hidden_size|n_embd|d_model|embed_dim|width|embedding_size|(hidden_|output_|projection_|proj_)?dim", 32),
    (r"max_position_embeddings|n_positions|max_seq_len|n_ctx|max_sequence_length|context_length", 128),
    (r"image_size|img_size|input_resolution", 28),
    (r"(.*_)?patch_size", 14),
)
_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type")
_MOST_PARAMETERS = 3_000_000


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """Make a configuration small, and those of all parts of the model."""
    for key, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            shrink(value)
        elif key in _KINDS and isinstance(value, list | tuple):
            kinds = list(dict.fromkeys(value))  # a layer of each kind
            setattr(config, key, (kinds + list(value))[: max(2, len(kinds))])
        elif not isinstance(value, bool):
            _set(config, key, value)
    for kinds in (getattr(config, key, None) for key in _KINDS):
        if isinstance(kinds, list) and hasattr(config, "num_hidden_layers"):
            config.num_hidden_layers = len(kinds)
    for rope in (getattr(config, key, None) for key in ("rope_parameters", "rope_scaling")):
        if isinstance(rope, dict) and "mrope_section" in rope:
            rope["mrope_section"] = [2, 1, 1]
    if hasattr(config, "pad_token_id"):
        config.pad_token_id = None  # its embedding is set to 0 where a model is loaded
    return config


def _set(config: PreTrainedConfig, key: str, value: Any) -> None:
    most = next((number for pattern, number in _SIZES if re.fullmatch(pattern, key)), None)
    if most is not None and isinstance(value, int) and value > most:
        setattr(config, key, most)
    elif most is not None and isinstance(value, list | tuple) and all(type(each) is int for each in value):
        setattr(config, key, [min(each, most) for each in value])
    elif key.endswith(("token_id", "token_index", "_id")) and isinstance(value, int) and value >= 90:
        setattr(config, key, 60 + sum(map(ord, key)) % 30)


def build(kind: str) -> Any:
    """A model of a family, in bfloat16."""
    config = shrink(CONFIG_MAPPING[kind]())
    return made(getattr(transformers, CLASSES[kind]), config)


def made(cls: Any, config: PreTrainedConfig) -> Any:
    """A model of a class."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls._from_config(copy.deepcopy(config)).parameters())
    assert size <= _MOST_PARAMETERS, f"{cls.__name__}: {size:,} parameters"
    torch.manual_seed(0)
    return cls._from_config(config).to(torch.bfloat16).eval()


def text_class(model: Any) -> tuple[Any, PreTrainedConfig] | None:
    """The class of the text model in a larger model, and its configuration; None if there is no such class."""
    text = model.config.get_text_config(decoder=True)
    if text is model.config or text.model_type not in TEXTS:
        return None
    text = copy.deepcopy(text)
    if (tied := getattr(model.config, "tie_word_embeddings", None)) is not None:
        text.tie_word_embeddings = tied
    return getattr(transformers, TEXTS[text.model_type]), text
