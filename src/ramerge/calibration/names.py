"""From a model's parameters, as transformers names and shapes them, to the tensors that its checkpoint stores.

Versions of transformers rename, fuse and permute weights when they load some architectures. All of that moves
elements and changes none, so the way back is the same for weights and for what is computed for each of them. It is
proved on the weights: what would be written under a name must be, bit for bit, what the checkpoint stores there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ramerge.calibration.layout import floats_of
from ramerge.foundation.dtypes import itemsize, torch_dtypes
from ramerge.foundation.errors import CheckpointError
from ramerge.tensors.checkpoint import Checkpoint
from ramerge.tensors.reader import Files, Reader
from ramerge.tensors.tensor import Tensor

_DTYPES = torch_dtypes()
# what older versions of transformers stored alongside the weights: frequencies and masks, which no training moves
_BUFFER = re.compile(r"(^|\.)(inv_freq|masked_bias|attn\.bias|attention\.bias)$")
_BLOCK = 1 << 20


def parameters_of(model: Any) -> dict[str, torch.Tensor]:
    """A model's parameters under all of their names, detached; tied ones under several."""
    return {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}


def as_stored(model: Any, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of the shapes of the model's parameters under all names that a checkpoint may have for them."""
    found = {**values, **_reverted(model, values)}
    prefix = f"{model.base_model_prefix}."
    # transformers loads a checkpoint of the model without its head, which lacks the prefix, as well
    short = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    return {**short, **found}


def _reverted(model: Any, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before version 5, which began to convert
        return {}
    try:
        return dict(revert_weight_conversion(model, dict(values)))
    except Exception:  # nothing promises that every conversion has a way back; a tensor without one is found below
        return {}


def check_names(model: Any, checkpoint: Checkpoint) -> frozenset[str]:
    """Prove that `as_stored` gives every floating-point tensor of the checkpoint."""
    stored = as_stored(model, parameters_of(model))
    prefix = f"{model.base_model_prefix}."
    buffers = {name for full, _ in model.named_buffers() for name in (full, full.removeprefix(prefix))}
    problems, untrained = [], set()
    with Files() as files:
        reader = Reader(files)
        for tensor in floats_of(checkpoint):
            value = stored.get(tensor.name)
            if value is None and (tensor.name in buffers or _BUFFER.search(tensor.name)):
                untrained.add(tensor.name)
            elif (problem := _difference(reader, tensor, value)) is not None:
                problems.append(f"{tensor.path}: tensor {tensor.name!r} {problem}")
    if problems:
        raise CheckpointError(problems)
    return frozenset(untrained)


def _difference(reader: Reader, tensor: Tensor, value: torch.Tensor | None) -> str | None:
    """Why a tensor of the checkpoint is not what the model has under its name; None if it is."""
    advice = "save the model again with this version of transformers (save_pretrained), or use another version"
    if value is None:
        return f"has no counterpart in the model that transformers makes of the checkpoint; {advice}"
    if tuple(value.shape) != tensor.shape:
        return f"has shape {list(tensor.shape)}, and {list(value.shape)} in the model; {advice}"
    if not _same(reader, tensor, value):
        return f"has other values in the model that transformers makes of the checkpoint; {advice}"
    return None


def _same(reader: Reader, tensor: Tensor, value: torch.Tensor) -> bool:
    """Whether the file's values, in the parameter's dtype, are the parameter's; NaN equals NaN."""
    flat, width = value.reshape(-1), itemsize(tensor.dtype)
    for start in range(0, tensor.elements, _BLOCK):
        block = flat[start : start + _BLOCK]
        raw = np.empty(len(block) * width, np.uint8)
        reader.read(tensor, start, start + len(block), raw)
        filed = torch.from_numpy(raw).view(_DTYPES[tensor.dtype]).to(block.dtype)
        if not torch.allclose(filed, block, rtol=0, atol=0, equal_nan=True):
            return False
    return True
