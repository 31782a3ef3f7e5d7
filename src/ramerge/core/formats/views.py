"""Helpers for formats that torch writes: convert tensors, find tied tensors, and clean names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ramerge.core.formats.torchfile.load import View
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import quoted
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS, is_tied
from ramerge.core.tensors.origins import Transposed
from ramerge.core.tensors.tensor import Stored, Tensor

# Parts of names that torch's wrappers of modules insert, and that do not belong to the model.
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def unwrapped_name(name: str) -> str:
    """Return a tensor's name without the names of wrappers around its modules."""
    return _WRAPPERS.sub("", name)


def tensor_of(name: str, view: View) -> Tensor:
    """Convert a view of a torch file to a tensor of a checkpoint.

    Raises:
        CheckpointError: the elements are neither in row-major order nor transposed.
    """
    shape, strides = view.shape, view.strides
    origin = Stored(view.storage.path, view.storage.offset + view.start * itemsize(view.dtype), view.nbytes)
    if _is_row_major(shape, strides):
        return Tensor(name, view.dtype, shape, origin)
    transposed_shape, steps = _swap_last_two(shape), _swap_last_two(strides)
    if len(shape) > 1 and _is_row_major(transposed_shape, steps):
        return Tensor(name, view.dtype, shape, Transposed(Tensor("", view.dtype, transposed_shape, origin)))
    raise CheckpointError(
        f"{view.storage.path}: tensor {quoted(name)} of shape {list(shape)} is not contiguous (strides "
        f"{list(strides)}); "
        "save it again after .contiguous()"
    )


def _swap_last_two(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers[:-2], *numbers[:-3:-1])


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements are contiguous in row-major order. The stride of a singleton dimension is irrelevant."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return 0 in shape
        step *= extent
    return True


def split_off_ties(
    tensors: Iterable[Tensor], config: Mapping[str, object]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return tensors by name without tied output embeddings, as `save_pretrained` writes them, and notes.

    An output embedding is left out only if its elements are the same bytes of the same file as the input embedding's,
    so that nothing must be compared.
    """
    untied, notes = {tensor.name: tensor for tensor in tensors}, []
    inputs = [tensor for name, tensor in untied.items() if name.endswith(EMBEDDINGS)]
    heads = [tensor for name, tensor in untied.items() if name.endswith(HEADS)] if is_tied(config) else []
    for head in heads:
        if twin := next((one for one in inputs if replace(one, name=head.name) == head), None):
            notes.append(f"{quoted(head.name)} is tied to {quoted(twin.name)}: the same bytes; it is read once")
            del untied[head.name]
    return untied, tuple(notes)
