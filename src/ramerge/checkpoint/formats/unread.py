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


def _zero(folder: Path) -> str:
    """DeepSpeed puts its script into every checkpoint."""
    is_root = (folder / "zero_to_fp32.py").is_file()
    root, tag = (folder, "") if is_root else (folder.parent, f" --tag {quote(folder.name)}")
    script, out = quote(str(root / "zero_to_fp32.py")), quote(f"{root}-fp32")
    return (
        f"python {script} {quote(str(root))} {out}{tag} --safe_serialization, which keeps float32; "
        f"then copy config.json and the tokenizer to {out}"
    )


def _torch_dist(folder: Path) -> str:
    actor = next((place for place in (folder, *folder.parents[:3]) if (place / "huggingface").is_dir()), None)
    actor = actor or next((place for place in folder.parents[:3] if (place / "model" / "huggingface").is_dir()), None)
    if actor is not None:
        return (
            f"python -m verl.model_merger merge --backend megatron --local_dir {quote(str(actor))} "
            f"--target_dir {quote(f'{folder}-hf')}"
        )
    return (
        f"python tools/convert_torch_dist_to_hf.py --input-dir {quote(str(folder))} --output-dir "
        f"{quote(f'{folder}-hf')} --origin-hf-dir BASE --vocab-size N, in slime's repository; BASE is the model that "
        "training began with, and N the vocab_size of its config.json"
    )


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
        "a model, with config.json beside it"
    )


def _llama(folder: Path) -> str:
    return (
        f"python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir {quote(str(folder))} "
        f"--model_size SIZE --output_dir {quote(f'{folder}-hf')}"
    )


_STATE_DICTS = ("pytorch_model_fsdp.bin", "model_state.pt", "model.pt", "pytorch_model.pt", "*.ckpt")
_KINDS = (
    _Kind(
        "a checkpoint of DeepSpeed, in parts of ZeRO",
        ("*_model_states.pt", "*_optim_states.pt", "zero_to_fp32.py", "global_step*/*_model_states.pt"),
        _zero,
    ),
    _Kind("a checkpoint of Megatron in its old format", ("mp_rank_*", "iter_*/mp_rank_*"), _mp_rank),
    _Kind("the original files of Llama", ("consolidated.*.pth",), _llama),
    _Kind("a file of torch.save under another name", _STATE_DICTS, _one_file),
)
_DIST = ("", "dist_ckpt", "model/dist_ckpt", "actor/dist_ckpt", "actor/model/dist_ckpt")


def advice(folder: Path) -> str | None:
    """What a folder is, and the command that converts it; None if it is of no kind that is known here."""
    if (dist := _torch_dist_in(folder)) is not None:
        return f"is a checkpoint of Megatron (torch_dist), which is not read; convert it: {_torch_dist(dist)}"
    for kind in _KINDS:
        if any(any(folder.glob(pattern)) for pattern in kind.patterns):
            return f"is {kind.title}, which is not read; convert it: {kind.advice(folder)}"
    return None


def is_torch_dist(folder: Path) -> bool:
    """Whether Megatron wrote a distributed checkpoint: it has one file more than those of torch."""
    return (folder / "metadata.json").is_file() and ((folder / ".metadata").is_file() or any(folder.glob("*.distcp")))


def _torch_dist_in(folder: Path) -> Path | None:
    """Where Megatron's distributed checkpoint is: the folder itself, or one inside."""
    places = (*(folder / name for name in _DIST), *sorted(folder.glob("iter_*"))[-1:])
    return next(filter(is_torch_dist, places), None)
