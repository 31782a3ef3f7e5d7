"""The safetensors files of an agent's importances: which tensor lies in which file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ramerge.sdk.formats import INDEX
from ramerge.sdk.outputs import Shard, StagingDir, lay_out
from ramerge.sdk.tensors import Tensor

SHARD_BYTES = 5_000_000_000


def shards_of(tensors: Sequence[Tensor]) -> list[Shard]:
    """Files of importances: a float32 tensor for each of the model's, with at most 5 GB of data each.

    A tensor that is larger than that gets a file of its own.
    """
    groups: list[list[Tensor]] = [[]]
    room = SHARD_BYTES
    for tensor in tensors:
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


def write_index(staging: StagingDir, shards: Sequence[Shard], tensors: Sequence[Tensor]) -> None:
    """Write the index of the files of importances, where there is more than one."""
    if len(shards) == 1:
        return
    elements = sum(tensor.elements for tensor in tensors)
    index = {
        "metadata": {"total_parameters": elements, "total_size": 4 * elements},
        "weight_map": dict(sorted((name, shard.name) for shard in shards for name in shard.offsets)),
    }
    staging.write(INDEX, json.dumps(index, indent=2) + "\n")
