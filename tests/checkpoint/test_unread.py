"""Folders that are recognised and not read: the message is the command that converts them."""

from pathlib import Path

import pytest

from ramerge.checkpoint.open import open_checkpoint
from ramerge.foundation.errors import CheckpointError

CASES = {
    "zero": (("run/zero_to_fp32.py", "run/latest", "run/global_step5/mp_rank_00_model_states.pt"), "run",
             "python {run}/zero_to_fp32.py {run} {run}-fp32 --safe_serialization"),
    "a step of zero": (("run/zero_to_fp32.py", "run/step 5/zero_pp_rank_0_mp_rank_00_model_states.pt"), "run/step 5",
                       "python {run}/zero_to_fp32.py {run} {run}-fp32 --tag 'step 5' --safe_serialization"),
    "slime": (("run/iter_0000050/.metadata", "run/iter_0000050/metadata.json"), "run",
              "convert_torch_dist_to_hf.py --input-dir {run}/iter_0000050 --output-dir {run}/iter_0000050-hf"),
    "verl with Megatron": (("run/actor/dist_ckpt/.metadata", "run/actor/dist_ckpt/metadata.json",
                            "run/actor/huggingface/config.json"), "run/actor",
                           "verl.model_merger merge --backend megatron --local_dir {run}/actor"),
    "verl 2 with Megatron": (("run/actor/model/dist_ckpt/__0_0.distcp", "run/actor/model/dist_ckpt/metadata.json",
                              "run/actor/model/huggingface/config.json"), "run/actor",
                             "verl.model_merger merge --backend megatron --local_dir {run}/actor"),
    "old Megatron": (("run/iter_0000001/mp_rank_00/model_optim_rng.pt",), "run",
                     "--load {run} --ckpt-convert-format torch_dist"),
    "Llama": (("run/consolidated.00.pth",), "run", "convert_llama_weights_to_hf --input_dir {run}"),
    "another name": (("run/model_state.pt",), "run", "mv {run}/model_state.pt {run}/pytorch_model.bin"),
    "accelerate": (("run/pytorch_model_fsdp.bin",), "run", "mv {run}/pytorch_model_fsdp.bin {run}/pytorch_model.bin"),
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
