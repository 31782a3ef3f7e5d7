"""Quantized models of real libraries: what transformers and compressed-tensors read and write on a CPU.

Weights are quantized by the references' formulas (tests/formats/quantized.py), because the libraries' own quantizers of
these formats need a GPU; compressed-tensors quantizes on a CPU, so its samples are its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, Qwen3MoeConfig

import ramerge
from tests.formats.quantized import quantized

pytestmark = pytest.mark.full  # torch

_COMMON = {"vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}


def configurations() -> dict[str, Any]:
    """Two layers each; with sizes that are no multiples of 128 where transformers can read them."""
    moe = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "intermediate_size": 128}
    return {
        "qwen3-moe": Qwen3MoeConfig(hidden_size=128, head_dim=64, num_experts=4, **moe, **_COMMON),
        "deepseek-v3": DeepseekV3Config(
            hidden_size=128,
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=128,
            kv_lora_rank=128,
            qk_rope_head_dim=128,
            qk_nope_head_dim=64,
            v_head_dim=64,
            **moe,
            **_COMMON,
        ),
        "gpt-oss": GptOssConfig(
            hidden_size=64,
            intermediate_size=32,
            head_dim=32,
            num_local_experts=4,
            num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"],
            **_COMMON,
        ),
    }


def write(folder: Path, config: Any, seed: int, moved: float = 0.0) -> None:
    """A model in bfloat16; agents move some elements of the model of seed 0."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            change = torch.randn_like(parameter) * 0.01 * (torch.rand(parameter.shape) < moved)
            parameter += change
    model.save_pretrained(folder)


def to_float8(folder: Path) -> None:
    """Quantize the matrices of a model in blocks of 128 x 128, as DeepSeek's and Qwen's are."""
    made: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.ndim == 2 and "_proj" in name:
            codes, scales = quantized("F8_E4M3", "F32", tensor.float().numpy(), (128, 128))
            made[name] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
            made[f"{name}_scale_inv"] = torch.from_numpy(scales)
        else:
            made[name] = tensor
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    declare(folder, {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"})


def to_float4(folder: Path) -> None:
    """Quantize the experts of gpt-oss: exponents of 32, pairs of codes, turned."""
    made: dict[str, torch.Tensor] = {}
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            made[name] = tensor
            continue
        rows = tensor.float().transpose(-1, -2).contiguous()
        groups = rows.reshape(*rows.shape[:-1], -1, 32)
        exponents = groups.abs().amax(-1).clamp(min=1e-30).log2().floor() - 2
        over = groups / exponents.exp2()[..., None]
        codes = (over[..., None] - table).abs().argmin(-1).to(torch.uint8)
        made[f"{name}_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).contiguous()
        made[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    kept = ["self_attn", "router", "embed_tokens", "lm_head"]
    declare(folder, {"quant_method": "mxfp4", "modules_to_not_convert": kept})


def declare(folder: Path, quantization: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    """What transformers makes of a folder, without a GPU and in bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu")
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.dtype == torch.bfloat16}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    differing = [name for name in left if not torch.equal(left[name].view(torch.int16), right[name].view(torch.int16))]
    assert not differing


@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v3", "gpt-oss"])
def test_transformers_reads_codes_and_output_alike(name: str, tmp_path: Path) -> None:
    config = configurations()[name]
    quantize = to_float4 if name == "gpt-oss" else to_float8
    for folder, seed in (("base", 0), ("a", 1)):
        write(tmp_path / folder, config, seed, moved=0.3 * seed)
        quantize(tmp_path / folder)
    ramerge.convert(tmp_path / "base", tmp_path / "plain")
    same(loaded(tmp_path / "plain"), loaded(tmp_path / "base"))
    source = {"method": "ram", "base": str(tmp_path / "base"), "agents": {"a": str(tmp_path / "a")}}
    record = ramerge.merge(source, tmp_path / "out")
    assert record.dtype == "bfloat16"
    merged, base, agent = (loaded(tmp_path / folder) for folder in ("out", "base", "a"))
    assert merged.keys() == base.keys()
    moved = [key for key in base if not torch.equal(base[key], agent[key])]
    assert moved and all(torch.allclose(merged[key], agent[key], atol=2e-2) for key in moved)
    if name != "gpt-oss":
        ramerge.merge({**source, "dtype": "like base"}, tmp_path / "like")
        again = loaded(tmp_path / "like")
        assert all(torch.allclose(again[key].float(), merged[key].float(), atol=1e-3, rtol=0.07) for key in base)


def test_the_edges_of_deepseeks_matrices(tmp_path: Path) -> None:
    """576 and 192 rows (kv_a_proj_with_mqa, q_proj of small heads): transformers cannot read the one, and misreads the
    other, because it derives the size of blocks from the number of scales. DeepSeek's own code cuts blocks at the
    edge."""
    rng = np.random.default_rng(0)
    made: dict[str, torch.Tensor] = {}
    wanted: dict[str, torch.Tensor] = {}
    for rows in (576, 192):
        values = rng.normal(0, 0.02, (rows, 320)).astype(np.float32)
        codes, scales = quantized("F8_E4M3", "F32", values, (128, 128))
        name = f"model.layers.0.self_attn.w{rows}.weight"
        made[name] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        made[f"{name}_scale_inv"] = torch.from_numpy(scales)
        # inference/kernel.py of DeepSeek-V3, in torch
        row, column = torch.arange(rows) // 128, torch.arange(320) // 128
        wanted[name] = made[name].float() * torch.from_numpy(scales)[row][:, column]
    (tmp_path / "fp8").mkdir()
    save_file(made, tmp_path / "fp8/model.safetensors")
    (tmp_path / "fp8/config.json").write_text('{"model_type": "deepseek_v3", "torch_dtype": "bfloat16"}')
    declare(tmp_path / "fp8", {"quant_method": "fp8", "weight_block_size": [128, 128]})
    ramerge.convert(tmp_path / "fp8", tmp_path / "out", dtype="float32")
    found = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("format", "arguments", "parts"),
    [
        ("float-quantized", {"num_bits": 8, "strategy": "tensor"}, (1, 1)),
        ("float-quantized", {"num_bits": 8, "strategy": "channel"}, (96, 1)),
        ("float-quantized", {"num_bits": 8, "strategy": "group", "group_size": 32}, (96, 2)),
        ("float-quantized", {"num_bits": 8, "strategy": "block", "block_structure": [64, 32]}, (2, 2)),
        ("nvfp4-pack-quantized", {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}, (96, 4)),
    ],
    ids=["tensor", "channel", "group", "block", "nvfp4"],
)
def test_what_compressed_tensors_writes(
    format: str, arguments: dict[str, Any], parts: tuple[int, int], tmp_path: Path
) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(type="float", symmetric=True, **arguments))
    torch.manual_seed(0)
    weight = torch.randn(96, 64) * 0.02
    rows, columns = -(-96 // parts[0]), -(-64 // parts[1])
    padded = torch.nn.functional.pad(weight, (0, 0, 0, parts[0] * rows - 96))
    peaks = padded.reshape(parts[0], rows, parts[1], columns).abs().amax((1, 3))
    state = {"weight": weight, "weight_scale": peaks / 448}
    if format == "nvfp4-pack-quantized":
        state["weight_global_scale"] = 448 * 6 / weight.abs().max().reshape(1)
        state["weight_scale"] = (peaks / 6 * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
    elif arguments["strategy"] == "tensor":
        state["weight_scale"] = state["weight_scale"].reshape(1)
    compressor = BaseCompressor.get_value_from_registry(format)
    compressed = compressor.compress(state, scheme)
    wanted = compressor.decompress(compressed, scheme)["weight"]
    (tmp_path / "model").mkdir()
    stored = {f"model.layers.0.q_proj.{name}": tensor.contiguous() for name, tensor in compressed.items()}
    save_file(stored, tmp_path / "model/model.safetensors")
    (tmp_path / "model/config.json").write_text('{"model_type": "llama", "torch_dtype": "bfloat16"}')
    groups = {"group_0": json.loads(scheme.model_dump_json())}
    declare(
        tmp_path / "model",
        {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": []},
    )
    ramerge.convert(tmp_path / "model", tmp_path / "out", dtype="float32")
    found = load_file(tmp_path / "out/model.safetensors")
    assert list(found) == ["model.layers.0.q_proj.weight"]
    # its numbers of 4 bits end in bfloat16
    assert torch.equal(found["model.layers.0.q_proj.weight"].to(wanted.dtype), wanted)
