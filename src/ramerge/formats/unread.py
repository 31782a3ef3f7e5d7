"""Folders that trainers write and that are not read: each is refused with the command that makes one that is."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

_STATE_DICTS = ("pytorch_model_fsdp.bin", "model_state.pt", "model.pt", "pytorch_model.pt", "*.ckpt")
# What it is, patterns of names inside of which one that matches is enough, and what to do with {run} and {file}.
_KINDS = (
    (
        "a checkpoint of Megatron in its old format",
        ("mp_rank_*", "iter_*/mp_rank_*"),
        "torchrun pretrain_gpt.py with the arguments of the training, --load {run} --ckpt-convert-format torch_dist "
        "--ckpt-convert-save {run}-dist, in Megatron-LM's repository; then convert that to the layout of transformers",
    ),
    (
        "the original files of Llama",
        ("consolidated.*.pth",),
        "python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir {run} --model_size SIZE "
        "--output_dir {run}-hf",
    ),
    (
        "a file of torch.save under another name",
        _STATE_DICTS,
        "mv {file} {run}/pytorch_model.bin, if the file is the state dict of a model, with config.json next to it",
    ),
)


def advice(folder: Path) -> str | None:
    """What a folder is, and the command that converts it; None if it is of no kind that is known here."""
    for title, patterns, command in _KINDS:
        if found := [path for pattern in patterns for path in sorted(folder.glob(pattern))]:
            text = command.format(run=quote(str(folder)), file=quote(str(found[0])))
            return f"is {title}, which is not read; convert it: {text}"
    return None
