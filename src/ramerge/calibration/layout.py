"""The folder that an estimate leaves: where it may be, and what lies where in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ramerge.formats.safetensors import INDEX
from ramerge.output.staging import StagingDir
from ramerge.output.write import Shard, Writer, lay_out
from ramerge.tensors.checkpoint import Checkpoint
from ramerge.tensors.tensor import Tensor

SHARD_BYTES = 5_000_000_000


def shards_of(checkpoint: Checkpoint) -> list[Shard]:
    """The output's files: a float32 tensor for each floating-point tensor, in files of at most 5 GB of data.

    A tensor that is larger than that gets a file of its own.
    """
    groups: list[list[Tensor]] = [[]]
    room = SHARD_BYTES
    for tensor in floats_of(checkpoint):
        size = 4 * tensor.elements
        if groups[-1] and size > room:
            groups.append([])
            room = SHARD_BYTES
        groups[-1].append(tensor)
        room -= size
    names = ["model.safetensors"]
    if len(groups) > 1:
        names = [f"model-{number:05}-of-{len(groups):05}.safetensors" for number in range(1, len(groups) + 1)]
    return [
        lay_out(name, [(tensor.name, "F32", tensor.shape, 4 * tensor.elements) for tensor in group])
        for name, group in zip(names, groups, strict=True)
    ]


def floats_of(checkpoint: Checkpoint) -> list[Tensor]:
    """The floating-point tensors, in the order of files and of bytes inside them."""
    return [tensor for tensor in checkpoint.tensors.values() if tensor.is_float]


def write_tensor(writer: Writer, shards: Mapping[str, Shard], name: str, values: NDArray[np.float32]) -> None:
    """Write the tensor `name` (float32, contiguous, any shape) to its place in the shard that `shards` names for it."""
    if values.size:
        writer.write(shards[name].name, shards[name].offsets[name], values.reshape(-1).view(np.uint8))


def write_index(staging: StagingDir, shards: Sequence[Shard], checkpoint: Checkpoint) -> None:
    """Write the index, where there is more than one file."""
    if len(shards) == 1:
        return
    elements = sum(tensor.elements for tensor in floats_of(checkpoint))
    index = {
        "metadata": {"total_parameters": elements, "total_size": 4 * elements},
        "weight_map": dict(sorted((name, shard.name) for shard in shards for name in shard.offsets)),
    }
    staging.write(INDEX, json.dumps(index, indent=2) + "\n")
