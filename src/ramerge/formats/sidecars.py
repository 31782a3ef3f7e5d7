"""The files next to the weights: configuration, tokenizer, chat template and the rest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ramerge.formats.encodings.decode import KEYS, without_declaration
from ramerge.formats.files import read_json
from ramerge.foundation.dtypes import full_name
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.jsontext import dumped
from ramerge.storage.location import Location, relative
from ramerge.tensors.embeddings import set_vocabulary, untie
from ramerge.tensors.paths import leads_outside, linked_out

# Weights in any format, their indices, and a trainer's state: these do not belong to the merged model.
_NOT_COMPANIONS = (
    "*.safetensors",
    "*.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.pkl",
    "*.distcp",
    "*.npz",
    "*.npy",
    "*.nemo",
    "*.pdparams",
    "*.log",
    "events.out.*",
    "zero_to_fp32.py",
    "latest",
    "latest_*",
    "README.md",
    "ramerge.json",
    "ramerge.yaml",
    "trainer_state.json",
    ".*",
)

# Folders of other models and of a trainer's state inside of a model's folder.
_NOT_COMPANION_FOLDERS = (
    "checkpoint-*",
    "global_step*",
    "iter_*",
    "lora_adapter",
    "optimizer*",
    "pytorch_model_fsdp*",
    "runs",
    "wandb",
)

# Names that only files have; a folder of such a name stands where a file should be.
_NAMES_OF_FILES = ("*.json", "*.jinja", "*.tiktoken", "*.txt", "tokenizer.model")

# The files that `companions: AGENT` takes from that agent, not from the base.
_TOKENIZER_FILES = (
    "tokenizer*",
    "*.tiktoken",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "chat_templates/*",
    "additional_chat_templates/*",
    "generation_config.json",
)

# Those of them without which there is no tokenizer.
_VOCABULARIES = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.*", "tekken.json")

_DTYPE_KEYS = ("dtype", "torch_dtype")


def companion_files(
    base: Sequence[Location], tokenizer_from: Sequence[Location] = (), *, allow_outside_links: bool = False
) -> dict[str, Location]:
    """Relative name to source of every file to copy.

    Args:
        base: the base checkpoint, then folders whose tokenizer files come instead of its own, such as adapters.
        tokenizer_from: the same of the checkpoint that gives tokenizer, chat template and generation config; empty for
            the base.
        allow_outside_links: follow links that lead out of a checkpoint.

    Raises:
        CheckpointError: a link leads out of its checkpoint, or what should be a file is none.
    """
    chosen = dict(_companions(base[0]))
    if tokenizer_from:
        chosen = {name: path for name, path in chosen.items() if not _is_tokenizer(name)}
    for folder in tokenizer_from or base[1:]:
        chosen |= {name: path for name, path in _companions(folder) if _is_tokenizer(name)}
    outside = [path for path in chosen.values() if all(leads_outside(path, root) for root in (*base, *tokenizer_from))]
    if outside and not allow_outside_links:
        raise CheckpointError(map(linked_out, outside))
    return chosen


def _companions(directory: Location) -> Iterator[tuple[str, Location]]:
    found: Iterator[Location] = directory.rglob("*")
    for path in sorted(found, key=str):
        name = relative(path, directory)
        hidden = any(part.startswith(".") for part in name.parts)
        foreign = any(fnmatch(part, pattern) for part in name.parts[:-1] for pattern in _NOT_COMPANION_FOLDERS)
        if hidden or foreign or any(fnmatch(name.name, pattern) for pattern in _NOT_COMPANIONS):
            continue
        if path.is_symlink() and not path.exists():
            raise CheckpointError(f"{path}: is a broken link; download the file again, or remove the link")
        if path.is_file():
            if isinstance(path, Path) and not os.access(path, os.R_OK):
                raise CheckpointError(f"{path}: no permission to read it; change its permissions, or remove it")
            yield name.as_posix(), path
        elif not path.is_dir() or any(fnmatch(name.name, pattern) for pattern in _NAMES_OF_FILES):
            raise CheckpointError(f"{path}: is not a regular file; put the file in its place, or remove it")


def _is_tokenizer(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _TOKENIZER_FILES)


def has_tokenizer(names: Iterable[str]) -> bool:
    """Whether a tokenizer is among files of these names."""
    return any(fnmatch(name, pattern) for name in names for pattern in _VOCABULARIES)


def companions_of(
    files: Mapping[str, Location],
    dtype: str | None,
    *,
    dequantized: bool = False,
    vocabulary: int | None = None,
    apart: bool = False,
) -> Iterator[tuple[str, Location | str]]:
    """The output's companions, by relative name: the file to copy byte for byte, or a text.

    `config.json` is changed only where it states something else than the output has.

    Args:
        files: relative name to source.
        dtype: safetensors' name of the dtype to state; None to keep what the base states.
        dequantized: whether the output has no quantization although the configuration declares one.
        vocabulary: the number of tokens to state; None if the output keeps the base's.
        apart: whether input and output embeddings are two tensors although the configuration may tie them.
    """
    for name, source in files.items():
        changed = name == "config.json" and _changed(read_json(source), dtype, dequantized, vocabulary, apart)
        yield name, changed or source


def _changed(
    config: dict[str, Any], dtype: str | None, dequantized: bool, vocabulary: int | None, apart: bool
) -> str | None:
    """A configuration that states what the output has; None if it does so already."""
    before = deepcopy(config)
    if dequantized:
        config = without_declaration(config)
    if dtype is not None and not _set_dtype(config, full_name(dtype)):
        config["torch_dtype"] = full_name(dtype)
    if vocabulary is not None:
        set_vocabulary(config, vocabulary)
    if apart:
        untie(config)
    return dumped(config, constants=True) if config != before else None


def _set_dtype(config: dict[str, Any], dtype: str) -> bool:
    stated = False
    for key, value in config.items():
        if key in _DTYPE_KEYS and isinstance(value, str):
            config[key] = dtype
            stated = True
        elif isinstance(value, dict) and key not in KEYS:
            stated |= _set_dtype(value, dtype)
    return stated
