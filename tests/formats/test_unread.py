"""Folders that are recognized and not read: the message is the command that converts them."""

from pathlib import Path

import pytest

from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError

CASES = {
    "old Megatron": (("run/iter_0000001/mp_rank_00/model_optim_rng.pt",), "run",
                     "--load {run} --ckpt-convert-format torch_dist"),
    "Llama": (("run/consolidated.00.pth",), "run", "convert_llama_weights_to_hf --input_dir {run}"),
    "another name": (("run/model_state.pt",), "run", "mv {run}/model_state.pt {run}/pytorch_model.bin"),
    "accelerate": (("run/pytorch_model_fsdp.bin",), "run", "mv {run}/pytorch_model_fsdp.bin {run}/pytorch_model.bin"),
    "MLX": (("run/adapters.safetensors", "run/adapter_config.json"), "run",
            "mlx_lm.fuse --model BASE --adapter-path {run} --save-path {run}-fused"),
    "MLX, a step": (("run/0000100_adapters.safetensors",), "run", "mlx_lm.fuse --model BASE --adapter-path {run}"),
    "MLX, older": (("run/adapters.npz", "run/adapter_config.json"), "run", "--adapter-path {run}"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_the_command_that_converts_it(case: str, tmp_path: Path) -> None:
    files, named, command = CASES[case]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="is not read; convert it") as found:
        open_checkpoint(tmp_path / named)
    assert command.format(run=tmp_path / "run") in str(found.value)
