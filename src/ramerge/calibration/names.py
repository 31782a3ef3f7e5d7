"""From the names of tensors in transformers to those in the checkpoint, for `live`.

Versions of transformers rename, fuse and permute weights when they load some architectures. All of that moves
elements and changes none, so the way back is the same for weights and for what is computed for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch


def to_checkpoint_names(model: Any, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a model's state dict, or others of these shapes, under all names that a checkpoint may have."""
    renamed_values = dict(values)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before version 5, which began to convert
        pass
    else:
        with suppress(Exception):  # nothing promises that every conversion has a way back; others are found below
            renamed_values |= revert_weight_conversion(model, dict(values))
    prefix = f"{model.base_model_prefix}."
    # transformers loads a checkpoint of the model without its head, which lacks the prefix, as well
    short = {name.removeprefix(prefix): value for name, value in renamed_values.items() if name.startswith(prefix)}
    return {**short, **renamed_values}
