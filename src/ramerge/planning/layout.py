"""The place of every tensor in the output: its file, its first byte, its dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramerge.checkpoint.open import Checkpoint
from ramerge.checkpoint.tensor import Tensor
from ramerge.checkpoint.write import Shard, lay_out
from ramerge.foundation.dtypes import FROM_FULL_NAME, itemsize, widest
from ramerge.methods.base import Layer
from ramerge.planning.model import Source, TensorPlan
from ramerge.recipe.model import Rule
from ramerge.recipe.points import Point

Entry = tuple[str, str, Sequence[int], int]

# Of an output whose base has no safetensors files: what transformers wrote for years.
_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class Matched:
    """The counterparts of the base's tensors, by name.

    Attributes:
        agents: each agent's tensors, in recipe order.
        importances: each agent's importances, for methods that need them; otherwise empty.
    """

    agents: Mapping[str, Mapping[str, Tensor]]
    importances: Mapping[str, Mapping[str, Tensor]]


def plan_tensors(base: Checkpoint, matched: Matched, points: Sequence[Point]) -> tuple[list[Shard], list[TensorPlan]]:
    """The output's files, like the base's or of the requested size, and the tensors in them.

    Args:
        base: the base.
        matched: the agents' counterparts of the base's tensors.
        points: their recipe gives dtype, size of shards and rules; their methods say what they need.
    """
    recipe = points[0].recipe
    dtypes = {name: _dtype(recipe.dtype, tensor, matched) for name, tensor in base.tensors.items()}
    groups = {
        shard: [_entry(base.tensors[name], dtypes[name]) for name in names] for shard, names in base.shards.items()
    }
    if recipe.shard_size is not None or not groups:
        entries = [_entry(tensor, dtypes[name]) for name, tensor in base.tensors.items()]
        groups = _regroup(entries, recipe.shard_size or _SHARD_BYTES)
    shards = [lay_out(name, entries) for name, entries in groups.items()]
    tensors = []
    for shard in shards:
        for name, offset in shard.offsets.items():
            tensor = base.tensors[name]
            number = recipe.rule_of(name)
            rule = recipe.rules[number - 1] if number else None
            action, sources = _treatment(tensor, rule, matched, points)
            tensors.append(
                TensorPlan(
                    base=tensor,
                    sources=sources,
                    action=action,
                    dtype=dtypes[name],
                    shard=shard.name,
                    offset=offset,
                    rule=number,
                    whole=action == "merge" and any(_is_whole(tensor, point, number) for point in points),
                )
            )
    return shards, tensors


def _dtype(wanted: str | None, tensor: Tensor, matched: Matched) -> str:
    """A tensor's dtype in the output."""
    if wanted is None or not tensor.is_float:
        return tensor.dtype
    if wanted == "widest":
        return widest([tensor.dtype, *[agent[tensor.name].dtype for agent in matched.agents.values()]])
    return FROM_FULL_NAME[wanted]


def _treatment(
    tensor: Tensor, rule: Rule | None, matched: Matched, points: Sequence[Point]
) -> tuple[Literal["merge", "copy", "compare"], tuple[Source, ...]]:
    """The action for a tensor, and the sources that are read for it."""
    base = Source("base", tensor)
    if rule is not None and rule.keep is not None:
        return "copy", (base,)
    if rule is not None and rule.take is not None:
        return "copy", (Source(rule.take, matched.agents[rule.take][tensor.name]),)
    agents = [Source(name, tensors[tensor.name]) for name, tensors in matched.agents.items()]
    if not tensor.is_float:
        return "compare", (base, *agents)
    if not any(point.method.needs_base for point in points):
        return "merge", tuple(agents)
    weighted = [Source(name, tensors[tensor.name], True) for name, tensors in matched.importances.items()]
    return "merge", (base, *agents, *weighted)


def _is_whole(tensor: Tensor, point: Point, rule: int) -> bool:
    return point.method.whole(Layer(tensor.name, tensor.shape), point.parameters[rule])


def _entry(tensor: Tensor, dtype: str) -> Entry:
    return tensor.name, dtype, tensor.shape, tensor.elements * itemsize(dtype)


def _regroup(entries: Sequence[Entry], limit: int) -> dict[str, list[Entry]]:
    """Shards of at most `limit` bytes of data each. A larger tensor gets a shard of its own."""
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
    return {f"model-{number:05}-of-{len(groups):05}.safetensors": group for number, group in enumerate(groups, 1)}
