"""Folders that trainers write and that are not read: each is refused with the command that makes one that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote


@dataclass(frozen=True)
class _Kind:
    """A kind of folder.

    Attributes:
        title: what it is.
        patterns: of names inside; one that matches is enough.
        advice: what to do, given the folder.
    """

    title: str
    patterns: tuple[str, ...]
    advice: Callable[[Path], str]


def _mp_rank(folder: Path) -> str:
    return (
        "torchrun pretrain_gpt.py with the arguments of the training, --load "
        f"{quote(str(folder))} --ckpt-convert-format torch_dist --ckpt-convert-save {quote(f'{folder}-dist')}, in "
        "Megatron-LM's repository; then convert that to the layout of transformers"
    )


def _one_file(folder: Path) -> str:
    name = next(path.name for pattern in _STATE_DICTS for path in sorted(folder.glob(pattern)))
    return (
        f"mv {quote(str(folder / name))} {quote(str(folder / 'pytorch_model.bin'))}, if the file is the state dict of "
        "a model, with config.json next to it"
    )


def _llama(folder: Path) -> str:
    return (
        f"python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir {quote(str(folder))} "
        f"--model_size SIZE --output_dir {quote(f'{folder}-hf')}"
    )


_STATE_DICTS = ("pytorch_model_fsdp.bin", "model_state.pt", "model.pt", "pytorch_model.pt", "*.ckpt")
_KINDS = (
    _Kind("a checkpoint of Megatron in its old format", ("mp_rank_*", "iter_*/mp_rank_*"), _mp_rank),
    _Kind("the original files of Llama", ("consolidated.*.pth",), _llama),
    _Kind("a file of torch.save under another name", _STATE_DICTS, _one_file),
)


def advice(folder: Path) -> str | None:
    """What a folder is, and the command that converts it; None if it is of no kind that is known here."""
    for kind in _KINDS:
        if any(any(folder.glob(pattern)) for pattern in kind.patterns):
            return f"is {kind.title}, which is not read; convert it: {kind.advice(folder)}"
    return None
