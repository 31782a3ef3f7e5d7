"""Reads `pytorch_model.bin` with torch, always with weights_only=True. Needs the extra `torch`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from ramerge.checkpoint.tensor import Tensor
from ramerge.foundation.dtypes import torch_dtypes
from ramerge.foundation.errors import CheckpointError

_DTYPES = {dtype: name for name, dtype in torch_dtypes().items()}


def read_pickled(path: Path) -> tuple[list[Tensor], int]:
    """Tensors of a pickled checkpoint, mapped if its format allows it, and the bytes that had to be loaded.

    Raises:
        CheckpointError: `torch.load(weights_only=True)` refuses the file, or it is not a flat dictionary of tensors.
    """
    state, mapped = _load(path)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise CheckpointError(f"{path}: must hold a dictionary of tensors; save model.state_dict() as safetensors")
    problems, tensors, resident = [], [], 0
    for name, value in state.items():
        if value.dtype not in _DTYPES or value.layout != torch.strided:
            problems.append(f"{path}: tensor {name!r}: dtype {value.dtype} cannot be merged")
            continue
        flat = value.detach().reshape(-1).contiguous()
        resident += 0 if mapped and value.is_contiguous() else flat.nbytes
        memory = flat.view(torch.uint8).numpy()
        tensors.append(Tensor(name, _DTYPES[value.dtype], tuple(value.shape), path, 0, flat.nbytes, memory))
    if problems:
        raise CheckpointError(problems)
    return tensors, resident


def _load(path: Path) -> tuple[Any, bool]:
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True), True
        except RuntimeError:
            # the format of torch before 1.6 cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True), False
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        # torch's own message is not shown, because it recommends to allow the execution of code
        raise CheckpointError(
            f"{path}: refused, torch.load(weights_only=True) cannot read it ({type(error).__name__}); "
            "a pickle may run code when it is opened, so ramerge does not read it otherwise; convert it to safetensors"
        ) from error
