"""`pytorch_model.bin`, one or several with an index, read with torch's weights_only=True. Needs the extra `torch`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.formats.files import check_files, check_index, read_config, read_index
from ramerge.checkpoint.formats.format import Contents, Format, Opening
from ramerge.checkpoint.identity import identify
from ramerge.checkpoint.read import Reader
from ramerge.checkpoint.tensor import Origin, Stored, Tensor
from ramerge.foundation.dtypes import itemsize, torch_dtypes
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.extras import install
from ramerge.foundation.text import quoted

INDEX = "pytorch_model.bin.index.json"
ONE_FILE = "pytorch_model.bin"


@dataclass(frozen=True)
class Loaded(Origin):
    """Bytes that torch has mapped or loaded."""

    path: Path
    name: str
    memory: NDArray[np.uint8] = field(repr=False, compare=False)

    def leaves(self) -> Iterator[Stored]:
        """See `Origin`."""
        yield Stored(self.path, hash(self.name), self.memory.size)

    def scratch(self, tensor: Tensor, elements: int) -> int:
        """See `Origin`."""
        return 0

    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> None:
        """See `Origin`."""
        width = itemsize(tensor.dtype)
        out[:] = self.memory[start * width : stop * width]


def find(folder: Path) -> Path | None:
    """The folder itself if it holds pickled weights."""
    return folder if (folder / ONE_FILE).exists() or (folder / INDEX).exists() else None


def open_folder(folder: Path, opening: Opening) -> Contents:
    """Load or map the tensors.

    Raises:
        CheckpointError: a file is missing or wrong; all problems are listed.
    """
    if (folder / ONE_FILE).exists():
        files, listed = [ONE_FILE], None
    else:
        files, listed = read_index(folder / INDEX, ".bin")
    check_files(folder, files, in_index=listed is not None, allow_outside_links=opening.allow_outside_links)
    identities = identify(folder / name for name in files)
    tensors: dict[str, Tensor] = {}
    shards: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for name in files:
        try:
            found = tensors_of(folder / name)
        except CheckpointError as error:
            problems.extend(error.problems)
            continue
        problems += [
            f"{folder / name}: tensor {quoted(tensor.name)} is also in {tensors[tensor.name].path.name}"
            for tensor in found
            if tensor.name in tensors
        ]
        shards[name] = tuple(tensor.name for tensor in found)
        tensors.update({tensor.name: tensor for tensor in found})
    if listed is not None and not problems:
        problems += check_index(folder, listed, shards)
    if problems:
        raise CheckpointError(problems)
    return Contents(
        tuple(tensors.values()), identities, read_config(folder), folder, {_renamed(n): s for n, s in shards.items()}
    )


def _renamed(shard: str) -> str:
    """Name of an output file: that of the .bin file, with the ending .safetensors."""
    return shard.replace("pytorch_model", "model").removesuffix(".bin") + ".safetensors"


def tensors_of(path: Path) -> list[Tensor]:
    """The tensors of a file.

    Raises:
        CheckpointError: torch is not there, refuses the file, or it is not a flat dictionary of tensors.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            "pytorch_model.bin is a pickle, which only torch can read safely: install it with "
            f"{install('torch')}, or convert the checkpoint to safetensors"
        ) from error
    names = {dtype: name for name, dtype in torch_dtypes().items()}
    state = _load(path)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise CheckpointError(f"{path}: must hold a dictionary of tensors; save model.state_dict() as safetensors")
    problems, tensors = [], []
    for name, value in state.items():
        if value.dtype not in names or value.layout != torch.strided:
            problems.append(f"{path}: tensor {name!r}: dtype {value.dtype} cannot be merged")
            continue
        flat = value.detach().reshape(-1).contiguous()
        memory = flat.view(torch.uint8).numpy()
        tensors.append(Tensor(name, names[value.dtype], tuple(value.shape), Loaded(path, name, memory)))
    if problems:
        raise CheckpointError(problems)
    return tensors


def _load(path: Path) -> Any:
    import torch

    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # the format of torch before 1.6 cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        # torch's own message is not shown, because it recommends to allow the execution of code
        raise CheckpointError(
            f"{path}: refused, torch.load(weights_only=True) cannot read it ({type(error).__name__}); "
            "a pickle may run code when it is opened, so ramerge does not read it otherwise; convert it to safetensors"
        ) from error


FORMAT = Format("bin", "pytorch_model.bin", find, open_folder)
