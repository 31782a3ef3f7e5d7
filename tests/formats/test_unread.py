"""Folders that are recognized and not read: the message is the command that converts them."""

from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError, InputError
from tests.checkpoints import floats, recipe, write_checkpoint, write_simple
from tests.messages import Messages

CASES = {
    "old Megatron": (("run/iter_0000001/mp_rank_00/model_optim_rng.pt",), "run",
                     "--load {run} --ckpt-convert-format torch_dist"),
    "Llama": (("run/consolidated.00.pth",), "run", "convert_llama_weights_to_hf --input_dir {run}"),
    "another name": (("run/model_state.pt",), "run", "mv {run}/model_state.pt {run}/pytorch_model.bin"),
    "accelerate": (("run/pytorch_model_fsdp.bin",), "run", "mv {run}/pytorch_model_fsdp.bin {run}/pytorch_model.bin"),
    "vLLM": (("run/model-rank-0-part-0.safetensors", "run/model-rank-1-part-0.safetensors", "run/config.json"), "run",
             "give the folder that the engine was loaded from"),
    "diffusers": (("run/model_index.json", "run/transformer/config.json"), "run", "such as {run}/transformer"),
    "MLX": (("run/adapters.safetensors", "run/adapter_config.json"), "run",
            "mlx_lm.fuse --model BASE --adapter-path {run} --save-path {run}-fused"),
    "MLX, a step": (("run/0000100_adapters.safetensors",), "run", "mlx_lm.fuse --model BASE --adapter-path {run}"),
    "MLX, older": (("run/adapters.npz", "run/adapter_config.json"), "run", "--adapter-path {run}"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_the_command_that_converts_it(case: str, tmp_path: Path, messages: Messages) -> None:
    files, named, command = CASES[case]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"{}")
    with messages.raises(CheckpointError) as found:
        open_checkpoint(tmp_path / named)
    assert command.format(run=tmp_path / "run") in str(found.value)


@pytest.mark.parametrize("inner", ["policy/weights", "model/consolidated", "a/b/c/hf"])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model-00001-of-00001.bin", ".metadata"])
def test_weights_deep_in_steps_are_named(inner: str, file: str, tmp_path: Path, messages: Messages) -> None:
    for step in (9, 10):
        folder = tmp_path / f"run/step_{step}" / inner if "a/b" not in inner else tmp_path / "run" / inner
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")
    (tmp_path / "run/tokenizer.json").write_bytes(b"{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/model.safetensors").write_bytes(b"")
    (tmp_path / "run/step_11").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path / "run")
    messages.check(str(caught.value))


@pytest.mark.parametrize("prefix", ["", "model."])
def test_modules_of_megatron_are_named(prefix: str, tmp_path: Path, messages: Messages) -> None:
    name = f"{prefix}module.decoder.layers.0.mlp.linear_fc1.weight_w"
    model = write_checkpoint(tmp_path / "run", {name: floats(np.ones((4, 16)))})
    with pytest.raises(CheckpointError, match="fsdp_dtensor") as caught:
        open_checkpoint(model)
    assert name in str(caught.value)
    messages.check(str(caught.value))


@pytest.mark.parametrize(
    "factor",
    [
        "model.q_proj.lora_A.default.weight",
        "model.q_proj.lora_B.weight",
        "model.embed_tokens.lora_embedding_A.default",
        "model.layers.0.q_proj.lora_a",
        "transformer.blocks.0.attn.to_q.lora_down.weight",
        "lora_unet_blocks_0_attn_to_q.lora_up.weight",
        "unet.to_q.processor.to_q_lora.lora_linear_layer.up.weight",
    ],
)
def test_factors_of_adapters_are_no_model(factor: str, tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1})
    pairs, beside = {factor: floats(np.ones((4, 16)))}, {"model.q_proj.base_layer.weight": floats(np.ones((16, 16)))}
    for number, (tensors, words) in enumerate(((pairs, "with r and lora_alpha"), (pairs | beside, "were not merged"))):
        model = write_checkpoint(tmp_path / f"model {number}", tensors)
        for source in (recipe(tmp_path, [model.name]), model, f"{tmp_path / 'base'}+{model}"):
            with pytest.raises(InputError) as caught:
                if isinstance(source, dict):
                    ramerge.merge(source, tmp_path / "out")
                else:
                    ramerge.convert(source, tmp_path / "out")
            (problem,) = caught.value.problems
            assert words in problem and factor in problem and "extra_tensors" not in problem


def test_names_like_those_of_factors_are_weights(tmp_path: Path) -> None:
    names = [
        "explora_attention.weight",
        "model.lora_adapter_gate.weight",
        "model.base_layer.weight",
        "lora_a_norm.weight",
    ]
    model = write_checkpoint(tmp_path / "model", {name: floats(np.ones((4, 4))) for name in names})
    assert set(open_checkpoint(model).tensors) == set(names)
