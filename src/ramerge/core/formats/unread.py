"""Recognizes unsupported folders of trainers, and tells how to convert them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from shlex import quote

from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location

_STATE_DICTS = ("pytorch_model_fsdp.bin", "model_state.pt", "model.pt", "pytorch_model.pt", "*.ckpt")
_MLX = ("adapters.safetensors", "*_adapters.safetensors", "adapters.npz")
# The kind of folder, alternative patterns of names inside of it, and advice with fields {run} and {file}.
_KINDS = (
    (
        "the sharded state of a vLLM engine (save_sharded_state)",
        ("model-rank-*-part-*",),
        "give the folder that the engine was loaded from, or save the model with its trainer; no tool joins the shards",
    ),
    (
        "a diffusers pipeline",
        ("model_index.json",),
        "give the trained model in it, such as {run}/transformer or {run}/unet, and the same folder of the base",
    ),
    (
        "a checkpoint in Megatron's old format",
        ("mp_rank_*", "iter_*/mp_rank_*"),
        "convert it: torchrun pretrain_gpt.py with the arguments of the training, --load {run} --ckpt-convert-format "
        "torch_dist --ckpt-convert-save {run}-dist, in Megatron-LM's repository; then convert that to the layout of "
        "transformers",
    ),
    (
        "a model in Llama's original format",
        ("consolidated.*.pth",),
        "convert it: python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir {run} --model_size "
        "SIZE --output_dir {run}-hf",
    ),
    (
        "an MLX adapter",
        _MLX,
        "convert it: mlx_lm.fuse --model BASE --adapter-path {run} --save-path {run}-fused, with the unquantized base "
        "as BASE; then give {run}-fused",
    ),
    (
        "a file of torch.save under another name",
        _STATE_DICTS,
        "convert it: mv {file} {run}/pytorch_model.bin, if the file is the state dict of a model, with config.json "
        "next to it",
    ),
)


# Names of adapters' factors on Megatron's modules, by Megatron-Bridge.
_OF_MEGATRON = re.compile(r"\.adapter\.linear_(in|out)\.|\.linear_(qkv|proj|fc1|fc2)\.(adapter|lora)")

# Names of whole weights of Megatron's layers, by Megatron-FSDP.
_OF_MEGATRON_FSDP = re.compile(r"(?:^|\.)module\.(?:[\w.]+\.)?linear_(?:qkv|proj|fc1|fc2)\.weight(?:_[vw])?$")

# Names of LoRA factors, by PEFT, MLX, diffusers and Kohya's scripts.
_FACTOR = re.compile(r"[._](?:lora_(?:embedding_)?[AaBb]|lora_(?:down|up)|lora_linear_layer\.(?:down|up))(?=\.|$)")


def adapter_of_megatron(folder: Location, names: Iterable[str]) -> str | None:
    """Return advice if tensors of these names are a Megatron adapter; otherwise None."""
    example = next((name for name in names if _OF_MEGATRON.search(name)), None)
    if example is None:
        return None
    run = quote(str(folder))
    return (
        f"{folder}: is a Megatron adapter ({quoted(example)} and others), which ramerge does not read; convert it, in "
        "Megatron-Bridge's repository: python examples/conversion/adapter/export_adapter.py --hf-model-id BASE "
        f"--megatron-peft-checkpoint {run} --output-hf-path {run}-peft"
    )


def unmerged_adapter_advice(folder: Location, names: Iterable[str]) -> str | None:
    """Return advice if there are LoRA factors among tensors of these names; otherwise None."""
    names = list(names)
    factors = [name for name in names if _FACTOR.search(name)]
    if not factors:
        return None
    such = f"{quoted(factors[0])} and others"
    if len(factors) < len(names) and any(name.endswith(".base_layer.weight") for name in names):
        return (
            f"{folder}: holds a model with LoRA adapters that were not merged into it ({such}), which no program reads "
            "as a model: load it as it was trained, then merge and save it with PEFT (model.merge_and_unload() and "
            "save_pretrained), or save the adapter alone, with its adapter_config.json"
        )
    return (
        f"{folder}: holds LoRA factors ({such}) without an adapter_config.json with r and lora_alpha, so their "
        "update is unknown: save them with PEFT (save_pretrained), or merge them into the base "
        "with the tool that wrote them, and give the result"
    )


def fsdp_of_megatron(folder: Location, names: Iterable[str]) -> str | None:
    """Return advice if Megatron-FSDP saved tensors of these names; otherwise None."""
    example = next((name for name in names if _OF_MEGATRON_FSDP.search(name)), None)
    if example is None:
        return None
    return (
        f"{folder}: is a Megatron-FSDP checkpoint, fsdp_dtensor ({quoted(example)} and others), which ramerge does not "
        "read: load it with the program that trained it and save it in the Hugging Face layout (Megatron-Bridge: "
        "AutoBridge.save_hf_pretrained), or train with --ckpt-format torch_dist"
    )


def advice_by_names(folder: Location, names: Iterable[str]) -> str | None:
    """Return advice if tensors of these names are not a plain model; otherwise None."""
    names = list(names)
    return unmerged_adapter_advice(folder, names) or fsdp_of_megatron(folder, names)


def is_mlx(folder: Location) -> bool:
    """Whether a folder holds an MLX adapter but no PEFT adapter. Both have an `adapter_config.json`."""
    return not any(folder.glob("adapter_model*")) and any(any(folder.glob(pattern)) for pattern in _MLX)


def advice(folder: Location) -> str | None:
    """Describe an unsupported folder, and how to convert it; None if the kind is unknown."""
    for title, patterns, command in _KINDS:
        if paths := [path for pattern in patterns for path in sorted(map(str, folder.glob(pattern)))]:
            run = quote(str(folder))
            return f"is {title}, which ramerge does not read; {command.format(run=run, file=quote(paths[0]))}"
    return None
