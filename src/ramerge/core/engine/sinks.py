"""Sinks of merged bytes: files on disk, or a function that takes whole tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.dtypes import TORCH_NAMES, torch_dtypes
from ramerge.core.foundation.progress import Listener, silence
from ramerge.core.output.write import Shard, Writer
from ramerge.core.planning.model import Block, MergePlan

_SLOTS = 2


@dataclass(frozen=True)
class MergedTensor:
    """A merged tensor.

    Attributes:
        point: the values of the parameters that vary in a sweep; otherwise empty.
        name: the tensor's name in the checkpoint.
        dtype: the name of the dtype in safetensors, such as `BF16`.
        shape: the tensor's shape.
        data: the tensor's bytes, uint8; the array is not reused. `numpy()` and `torch()` return shaped numbers.

    Example:
        >>> tensor = next(ramerge.plan("recipe.yaml").tensors())
        >>> tensor.dtype, tensor.numpy().dtype.name
        ('BF16', 'float32')
    """

    point: Mapping[str, Any]
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8] = field(repr=False)

    def numpy(self) -> NDArray[Any]:
        """Return the tensor as a NumPy array.

        Bfloat16, which NumPy lacks, is widened to float32, which holds every value exactly. Arrays of other dtypes
        share the memory of `data`.

        Example:
            >>> import numpy as np, ramerge
            >>> ones = ramerge.MergedTensor({}, "w", "BF16", (1, 2), np.array([0x80, 0x3F] * 2, np.uint8))
            >>> ones.numpy()
            array([[1., 1.]], dtype=float32)
        """
        if self.dtype == "BF16":
            return (self.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return self.data.view(TORCH_NAMES[self.dtype]).reshape(self.shape)

    def torch(self) -> Any:
        """Return the tensor as a torch tensor that shares the memory of `data`."""
        import torch

        dtype = torch_dtypes()[self.dtype]
        if not self.data.size:  # NumPy gives such arrays strides of 0, which torch cannot view as another dtype
            return torch.empty(self.shape, dtype=dtype, device="cpu")
        return torch.from_numpy(self.data).view(dtype).reshape(self.shape)


class Shards:
    """The sink of a local output: writes merged bytes into the shards of every point.

    Args:
        complete: shards that were already uploaded; bytes that are merged again for them are discarded.
    """

    in_order = False

    def __init__(self, plan: MergePlan, writer: Writer, complete: Collection[str] = ()) -> None:
        self._plan = plan
        self._writer = writer
        self._complete = complete

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        layout = self._plan.tensors[tensor].parts[part]
        shard = shard_name(self._plan, point, layout.shard)
        if shard not in self._complete:
            self._writer.write(shard, layout.offset + layout.begin + start, data)

    def advance(self, block: Block) -> None:
        """Do nothing: this sink does not need to know when a shard is complete."""

    def sync(self) -> None:
        self._writer.sync()

    def finish(self, listen: Listener = silence) -> int:
        """Wait until all shards are on the disk; return their size in bytes."""
        self._writer.finish()
        return self._plan.bytes_written

    def close(self) -> None:
        """Close the shards without waiting for the disk."""
        self._writer.close()


def shard_name(plan: MergePlan, point: int, shard: str) -> str:
    """Return the name of a point's shard, relative to the output folder of a merge or sweep."""
    folder = plan.points[point].name
    return f"{folder}/{shard}" if folder else shard


def all_shards(plan: MergePlan) -> list[Shard]:
    """Return the shards of all points, with names relative to the output folder."""
    return [
        Shard(shard_name(plan, point, shard.name), shard.header, shard.offsets, shard.file_bytes)
        for point in range(len(plan.points))
        for shard in plan.shards
    ]


class InMemorySink:
    """Collects whole tensors in memory and passes each to a function, in the thread that runs the pass.

    At most two tensors are collected at a time; workers wait, so a slow function does not use more memory. Blocks are
    taken in the order of tensors, so every tensor that was begun will be completed.
    """

    in_order = True

    def __init__(self, plan: MergePlan, function: Callable[[MergedTensor], None]) -> None:
        self._plan = plan
        self._function = function
        self._slots = threading.Semaphore(_SLOTS)
        self._lock = threading.Lock()
        # rows of a tensor that are planned separately are collected together, under the first index
        firsts: dict[str, int] = {}
        self._first = [firsts.setdefault(tensor.parts[0].name, index) for index, tensor in enumerate(plan.tensors)]
        self._arrays: dict[int, list[list[NDArray[np.uint8]]]] = {}  # by first index, then point and part
        self._missing: dict[int, int] = {}
        self._is_closed = False

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        first = self._first[tensor]
        with self._lock:
            is_new = first in self._arrays
        if not is_new:
            self._allocate_tensor(first)
        start += self._plan.tensors[tensor].parts[part].begin
        self._arrays[first][point][part][start : start + data.size] = data
        with self._lock:
            self._missing[first] -= data.size

    def _allocate_tensor(self, tensor: int) -> None:
        while not self._slots.acquire(timeout=0.1):
            with self._lock:
                if tensor in self._arrays:
                    return
            if self._is_closed:
                raise RuntimeError("the function that takes merged tensors has failed")
        with self._lock:
            if tensor in self._arrays:
                self._slots.release()
                return
            parts = self._plan.tensors[tensor].parts
            self._arrays[tensor] = [
                [np.empty(part.whole_nbytes, np.uint8) for part in parts] for _ in self._plan.points
            ]
            self._missing[tensor] = sum(part.whole_nbytes for part in parts) * len(self._plan.points)

    def advance(self, block: Block) -> None:
        """Pass completed tensors to the function."""
        self._deliver_complete_tensors()

    def _deliver_complete_tensors(self) -> None:
        with self._lock:
            complete = [tensor for tensor, missing in self._missing.items() if not missing]
        for index in complete:
            parts = self._plan.tensors[index].parts
            for point, arrays in zip(self._plan.points, self._arrays[index], strict=True):
                for part, data in zip(parts, arrays, strict=True):
                    self._function(MergedTensor(point.varied, part.name, part.dtype, part.shape, data))
            with self._lock:
                del self._arrays[index], self._missing[index]
            self._slots.release()

    def sync(self) -> None:
        """Do nothing: no other process writes to this sink."""

    def finish(self) -> None:
        """Pass tensors without elements to the function; no block completes these."""
        for index, tensor in enumerate(self._plan.tensors):
            if not tensor.bytes_written:
                self._allocate_tensor(index)
                self._deliver_complete_tensors()

    def close(self) -> None:
        """Stop workers that wait."""
        self._is_closed = True
