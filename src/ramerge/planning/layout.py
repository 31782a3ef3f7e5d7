"""Where every tensor of the output lies: which file, at which byte, in which dtype."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ramerge.checkpoint.dtypes import FROM_FULL_NAME, itemsize
from ramerge.checkpoint.index import Checkpoint
from ramerge.checkpoint.tensor import Tensor
from ramerge.checkpoint.write import Shard, lay_out
from ramerge.planning.model import TensorPlan
from ramerge.recipe import Recipe

Entry = tuple[str, str, Sequence[int], int]

_LAYER = re.compile(r"^(.*?\.(?:layers|layer|h|blocks|block)\.\d+)\.")


def plan_tensors(
    base: Checkpoint, sources: Mapping[str, Mapping[str, Tensor]], recipe: Recipe, scope: str
) -> tuple[list[Shard], list[TensorPlan]]:
    """The output's files, as the base's or of the size that was asked for, and the tensors in them.

    Args:
        base: the base.
        sources: for every agent, in recipe order, the tensor that stands for each of the base's.
        recipe: says dtype and size of shards.
        scope: what statistics are counted over: `model`, `layer` or `tensor`.
    """
    wanted = FROM_FULL_NAME[recipe.dtype] if recipe.dtype else None
    dtypes = {name: wanted if wanted and tensor.is_float else tensor.dtype for name, tensor in base.tensors.items()}
    groups = {
        _safetensors_name(shard): [_entry(base.tensors[name], dtypes[name]) for name in names]
        for shard, names in base.shards.items()
    }
    if recipe.shard_size is not None:
        groups = _regroup([entry for group in groups.values() for entry in group], recipe.shard_size)
    shards = [lay_out(name, entries) for name, entries in groups.items()]
    tensors = [
        TensorPlan(
            base=base.tensors[name],
            agents=tuple(source[name] for source in sources.values()),
            merged=base.tensors[name].is_float,
            dtype=dtypes[name],
            shard=shard.name,
            offset=offset,
            group=_group(name, scope),
        )
        for shard in shards
        for name, offset in shard.offsets.items()
    ]
    return shards, tensors


def _entry(tensor: Tensor, dtype: str) -> Entry:
    return tensor.name, dtype, tensor.shape, tensor.elements * itemsize(dtype)


def _group(name: str, scope: str) -> str:
    if scope == "model":
        return ""
    layer = _LAYER.match(name) if scope == "layer" else None
    return layer[1] if layer else name


def _regroup(entries: Sequence[Entry], limit: int) -> dict[str, list[Entry]]:
    """Shards of at most `limit` bytes of data each; a larger tensor gets one of its own."""
    groups: list[list[Entry]] = [[]]
    room = limit
    for entry in entries:
        if groups[-1] and entry[3] > room:
            groups.append([])
            room = limit
        groups[-1].append(entry)
        room -= entry[3]
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{place:05}-of-{len(groups):05}.safetensors": group for place, group in enumerate(groups, 1)}


def _safetensors_name(shard: str) -> str:
    """Name of an output file: the base's, or its counterpart in safetensors."""
    if not shard.endswith(".bin"):
        return shard
    return shard.replace("pytorch_model", "model").removesuffix(".bin") + ".safetensors"
