"""The tensors of a checkpoint folder: which file holds each tensor, and where in the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from ramerge.checkpoint.header import read_header
from ramerge.checkpoint.identity import Identity, identify
from ramerge.checkpoint.paths import climbs_out, is_too_long, leads_outside, target
from ramerge.checkpoint.tensor import Tensor
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.extras import install
from ramerge.foundation.jsontext import Limits, read
from ramerge.foundation.text import quoted

SAFETENSORS_INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
# Enough for a configuration, or an index of 150,000 tensors.
_LIMITS = Limits(size=32_000_000, signs=1_000_000)
# Planning takes a kilobyte of memory for each tensor.
_MOST_TENSORS = 250_000
_MOST_FILES = 10_000


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name, in the order of shards and of bytes inside them.

    Attributes:
        directory: the folder.
        tensors: name to tensor.
        shards: file names in order, each with the names of its tensors in the order of their bytes.
        config: `config.json`; empty if there is none.
        files: the identity of every file before it was read.
        resident_bytes: bytes of weights that had to be loaded into memory (pickles of the old format).
    """

    directory: Path
    tensors: Mapping[str, Tensor]
    shards: Mapping[str, tuple[str, ...]]
    config: Mapping[str, Any]
    files: Mapping[Path, Identity]
    resident_bytes: int = 0

    @property
    def is_pickled(self) -> bool:
        """Whether it is pickled, so that torch has read it."""
        return any(shard.endswith(".bin") for shard in self.shards)


def open_checkpoint(directory: Path, *, allow_outside_links: bool = False) -> Checkpoint:
    """Read the headers of a checkpoint and check that index and files agree.

    Raises:
        CheckpointError: there is no such folder, it holds no weights, or a file is wrong; all problems are listed.
    """
    if not directory.is_dir():
        raise CheckpointError(_not_a_directory(directory))
    if not os.access(directory, os.R_OK | os.X_OK):
        raise CheckpointError(f"{directory}: no permission to read it; change its permissions")
    described = (directory / name for name in (SAFETENSORS_INDEX, TORCH_INDEX, "config.json"))
    identities = identify(path for path in described if path.is_file())
    files, listed = _weight_files(directory)
    problems = [
        f"{directory / name}: {_absence(directory / name, listed is not None)}"
        for name in files
        if not (directory / name).is_file()
    ]
    if not allow_outside_links:
        problems += [
            f"{directory / name}: links to {target(directory / name)}, outside the checkpoint; "
            "set allow.outside_links: true in the recipe if you trust it"
            for name in (*files, "config.json")
            if leads_outside(directory / name, directory)
        ]
    if problems:
        raise CheckpointError(problems)
    identities |= identify(directory / name for name in files)
    tensors: dict[str, Tensor] = {}
    shards: dict[str, tuple[str, ...]] = {}
    resident = 0
    read_tensors = _torch_tensors if files[0].endswith(".bin") else _safetensors_tensors
    for name in files:
        try:
            found, loaded = read_tensors(directory / name)
        except CheckpointError as error:
            problems.extend(error.problems)
            continue
        resident += loaded
        problems += [
            f"{directory / name}: tensor {quoted(tensor.name)} is also in {tensors[tensor.name].path.name}"
            for tensor in found
            if tensor.name in tensors
        ]
        shards[name] = tuple(tensor.name for tensor in found)
        tensors.update({tensor.name: tensor for tensor in found})
        if len(tensors) > _MOST_TENSORS:
            raise CheckpointError(f"{directory}: holds more than {_MOST_TENSORS:,} tensors, more than any model has")
    if listed is not None and not problems:
        problems += _index_lies(directory, listed, shards)
    try:
        config = read_json(directory / "config.json") if (directory / "config.json").exists() else {}
    except CheckpointError as error:
        problems.extend(error.problems)
    if problems:
        raise CheckpointError(problems)
    return Checkpoint(directory, tensors, shards, config, identities, resident)


def _absence(path: Path, in_index: bool) -> str:
    if os.path.lexists(path):
        return "is not a regular file" if path.exists() else "is a broken link"
    return "the index names this file, but it is missing" if in_index else "is missing"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: the file cannot be read, is too large, not JSON, or not an object; see `jsontext`.
    """
    try:
        return read(path, _LIMITS)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _not_a_directory(directory: Path) -> str:
    if directory.suffix == ".gguf":
        return (
            f"{directory}: GGUF files are quantised and cannot be merged; "
            "merge the original safetensors checkpoints and convert the result"
        )
    if directory.is_file():
        return f"{directory}: is a file; give the folder that holds config.json and the safetensors files"
    parent = directory.parent
    siblings = [entry.name for entry in islice(parent.iterdir(), 1000) if entry.is_dir()] if parent.is_dir() else []
    near = get_close_matches(directory.name, siblings, n=1)
    return f"{directory}: no such folder" + (f"; did you mean {parent / near[0]}?" if near else "")


def _weight_files(directory: Path) -> tuple[list[str], Mapping[str, str] | None]:
    """Names of the weight files, and the index's map of tensors to files; None without an index.

    The order of preference is that of transformers.
    """
    if (directory / "model.safetensors").exists():
        return ["model.safetensors"], None
    if (directory / SAFETENSORS_INDEX).exists():
        return _from_index(directory / SAFETENSORS_INDEX)
    loose = sorted(path.name for path in directory.glob("*.safetensors"))
    if loose == ["adapter_model.safetensors"]:
        raise CheckpointError(
            f"{directory}: holds a LoRA adapter, not a model; merge it into its base first "
            "(peft: model.merge_and_unload(), then save_pretrained)"
        )
    if loose:
        return loose, None
    if (directory / "pytorch_model.bin").exists():
        return ["pytorch_model.bin"], None
    if (directory / TORCH_INDEX).exists():
        return _from_index(directory / TORCH_INDEX)
    raise CheckpointError(_no_weights(directory))


def _no_weights(directory: Path) -> str:
    if list(directory.glob("*.gguf")):
        return (
            f"{directory}: holds GGUF files only, which are quantised and cannot be merged; "
            "merge the original safetensors checkpoints and convert the result"
        )
    inner = sorted({path.parent.name for path in directory.glob("*/*.safetensors")})
    hint = f"; there are some in {directory / inner[0]}" if inner else ""
    return f"{directory}: no safetensors files inside{hint}"


def _from_index(path: Path) -> tuple[list[str], Mapping[str, str]]:
    weight_map = read_json(path).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise CheckpointError(f"{path}: weight_map must map tensor names to file names")
    files = list(dict.fromkeys(weight_map.values()))
    if len(files) > _MOST_FILES:
        raise CheckpointError(f"{path}: names {len(files):,} files; a checkpoint has at most {_MOST_FILES:,}")
    for wrong, what in ((climbs_out, "leads out of the checkpoint's folder"), (is_too_long, "is too long")):
        if any(map(wrong, files)):
            raise CheckpointError(f"{path}: the shard path {quoted(name)} {what}" for name in files if wrong(name))
    suffix = ".bin" if path.name == TORCH_INDEX else ".safetensors"
    others = [name for name in files if not name.endswith(suffix)]
    if others:
        raise CheckpointError(f"{path}: shard {quoted(name)} is not a {suffix} file" for name in others)
    return sorted(files), weight_map


def _index_lies(directory: Path, listed: Mapping[str, str], shards: Mapping[str, tuple[str, ...]]) -> list[str]:
    actual = {name: shard for shard, names in shards.items() for name in names}
    problems = []
    for name, shard in listed.items():
        if name not in actual:
            problems.append(f"{directory / shard}: the index says it holds {quoted(name)}, but it does not")
        elif actual[name] != shard:
            problems.append(f"{directory}: the index says {quoted(name)} is in {shard}, but it is in {actual[name]}")
    problems += [
        f"{directory / shard}: holds {quoted(name)}, which the index does not list"
        for name, shard in actual.items()
        if name not in listed
    ]
    return problems


def _safetensors_tensors(path: Path) -> tuple[list[Tensor], int]:
    header = read_header(path)
    return [Tensor(e.name, e.dtype, e.shape, path, e.begin, e.end - e.begin) for e in header.entries], 0


def _torch_tensors(path: Path) -> tuple[list[Tensor], int]:
    return _torch_reader()(path)


def _torch_reader() -> Callable[[Path], tuple[list[Tensor], int]]:
    # imported only for pickled checkpoints, because torch is an extra and takes seconds to import
    try:
        from ramerge.checkpoint.pickled import read_pickled
    except ImportError as error:
        raise CheckpointError(
            "pytorch_model.bin is a pickle, which only torch can read safely: install it with "
            f"{install('torch')}, or convert the checkpoint to safetensors"
        ) from error
    return read_pickled
