"""Mixtures of experts as transformers saves them and as it has them in memory: base and agent may differ."""

from pathlib import Path
from typing import Any

import pytest

import ramerge
from tests.checkpoints import read_checkpoint
from tests.conformance.test_merge import same

pytestmark = [pytest.mark.full, pytest.mark.needs("torch", "transformers")]  # torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import save_file  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 12, "intermediate_size": 8, "moe_intermediate_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
LOCAL: dict[str, Any] = {"num_local_experts": 3, "num_experts_per_tok": 2}
ROUTED: dict[str, Any] = {"n_routed_experts": 3, "num_experts_per_tok": 2, "first_k_dense_replace": 0}
COUNTED: dict[str, Any] = {"num_experts": 3, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 4, "q_lora_rank": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
SHARED = {"shared_expert_intermediate_size": 8, "layer_types": ["full_attention"] * 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "aria_text": {"moe_num_experts": 3, "moe_topk": 2, "moe_num_shared_experts": 1},
    "deepseek_v3": ROUTED | LATENT | {"n_group": 1, "topk_group": 1},
    "ernie4_5_moe": {"moe_num_experts": 3, "moe_k": 2},
    "exaone_moe": COUNTED,
    "glm4_moe": ROUTED | {"n_group": 1, "topk_group": 1},
    "granitemoe": LOCAL,
    "granitemoeshared": LOCAL | {"shared_intermediate_size": 8},
    "hunyuan_v1_moe": {"num_experts": 3, "moe_topk": 2},
    "lfm2_moe": COUNTED | {"layer_types": ["full_attention"] * 2, "num_dense_layers": 0},
    "mimo_v2_flash": ROUTED | {"layer_types": ["full_attention", "sliding_attention"], "v_head_dim": 8},
    "minimax_m2": LOCAL,
    "mixtral": LOCAL,
    "nemotron_h": ROUTED | {"mamba_num_heads": 2, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 4},
    "olmoe": COUNTED,
    "phimoe": LOCAL,
    "qwen3_moe": COUNTED,
    "qwen3_next": COUNTED | SHARED,
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_files_and_memory_are_matched(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **SIZES | FAMILIES[kind])
    )
    for name in ("base", "agent"):
        for tensor in model.state_dict().values():
            tensor.add_(torch.randn_like(tensor), alpha=0.002)
        model.save_pretrained(tmp_path / "files" / name)
        model.config.save_pretrained(tmp_path / "memory" / name)
        save_file(model.state_dict(), tmp_path / "memory" / name / "model.safetensors")
    for base, agent in (("files", "memory"), ("memory", "files")):
        recipe = {
            "method": "linear", "base": str(tmp_path / base / "base"), "agents": {"a": str(tmp_path / agent / "agent")}
        }  # fmt: skip
        ramerge.merge(recipe, tmp_path / "out", options=ramerge.Options(overwrite=True))
        same(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / base / "agent"))
