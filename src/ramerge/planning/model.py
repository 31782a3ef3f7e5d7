"""What a plan is: every tensor, file and byte of a merge that can be known from headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramerge.checkpoint.dtypes import full_name, itemsize
from ramerge.checkpoint.hub import Model
from ramerge.checkpoint.tensor import Tensor
from ramerge.checkpoint.write import Shard
from ramerge.methods import Method
from ramerge.recipe import Recipe

# Every array in a worker's buffer begins at a cache line, a page and a few lines behind the end of the one before:
# large arrays at distances of a power of two are read at half the speed, presumably because they compete for the
# same sets of the caches and the same banks of memory. `benchmarks/kernels.py` measures both.
CACHE_LINE = 64
STAGGER = 4096 + 5 * CACHE_LINE


def room(size: int) -> int:
    """Bytes of a buffer that an array of `size` bytes takes up."""
    return -(-size // CACHE_LINE) * CACHE_LINE + STAGGER


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of the output.

    Attributes:
        base: the base's tensor.
        agents: the agents' tensors in recipe order; the base's own where an agent leaves it as it is.
        merged: whether the method computes it; else all inputs must hold the same bytes, which are copied.
        dtype: safetensors dtype of the output.
        shard: name of the output file.
        offset: byte in that file where its data begins.
        group: what the method's statistics are counted over, by the scope.
    """

    base: Tensor
    agents: tuple[Tensor, ...]
    merged: bool
    dtype: str
    shard: str
    offset: int
    group: str

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.base.name

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Base and agents."""
        return (self.base, *self.agents)

    @property
    def bytes_read(self) -> int:
        """Bytes of one read of all inputs. What an agent shares with the base is read once."""
        return self.base.nbytes + sum(agent.nbytes for agent in self.agents if agent is not self.base)

    @property
    def bytes_written(self) -> int:
        """Bytes of the output."""
        return self.base.elements * itemsize(self.dtype)

    @property
    def buffer_bytes_per_element(self) -> int:
        """What a worker holds for an element: inputs, output, and where dtypes differ a widened copy of all."""
        dtypes = [source.dtype for source in self.inputs]
        held = sum(map(itemsize, dtypes)) + itemsize(self.dtype)
        uniform = not self.merged or set(dtypes) == {self.dtype}
        return held if uniform else held + 8 * (len(dtypes) + 1)


@dataclass(frozen=True)
class Tie:
    """An output embedding that an agent stores although the base ties it: it must equal the agent's embedding."""

    agent: str
    head: Tensor
    embedding: Tensor


@dataclass(frozen=True)
class Resources:
    """How the work is cut up.

    Attributes:
        workers: threads.
        block_elements: elements that a worker holds of each input at a time.
        buffer_bytes: size of a worker's buffer.
        peak_memory_bytes: what the process will take at most, an estimate from above.
    """

    workers: int
    block_elements: int
    buffer_bytes: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class Plan:
    """Everything about a merge that can be known from headers. It can be carried out if `problems` is empty.

    Sizes are in bytes. `bytes_read` counts every pass.
    """

    recipe: Recipe
    method: Method
    parameters: Any
    out: Path | None
    overwrite: bool
    base: Model
    agents: Mapping[str, Model]
    resources: Resources
    tensors: tuple[TensorPlan, ...] = ()
    shards: tuple[Shard, ...] = ()
    ties: tuple[Tie, ...] = ()
    companions: Mapping[str, Path] = field(default_factory=dict)
    passes: int = 1
    bytes_read: int = 0
    bytes_written: int = 0
    disk_free: int | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def parameters_count(self) -> int:
        """Elements of the output."""
        return sum(tensor.base.elements for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """The output's dtype by its full name, `mixed` if it has several; floating-point tensors only."""
        names = {full_name(tensor.dtype) for tensor in self.tensors if tensor.base.is_float}
        return names.pop() if len(names) == 1 else ("mixed" if names else "none")

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "method": self.method.name,
            "parameters": self.parameters.model_dump(),
            "base": self.base.place,
            "agents": {name: model.place for name, model in self.agents.items()},
            "out": str(self.out) if self.out else None,
            "tensors": len(self.tensors),
            "merged_tensors": sum(tensor.merged for tensor in self.tensors),
            "parameters_count": self.parameters_count,
            "dtypes": dict(Counter(full_name(tensor.dtype) for tensor in self.tensors)),
            "shards": [shard.name for shard in self.shards],
            "companions": sorted(self.companions),
            "passes": self.passes,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "disk_free": self.disk_free,
            "workers": self.resources.workers,
            "block_elements": self.resources.block_elements,
            "peak_memory_bytes": self.resources.peak_memory_bytes,
            "notes": list(self.notes),
            "problems": list(self.problems),
        }
