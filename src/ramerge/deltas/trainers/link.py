"""A link of a chain: the interface of trainers' deltas for `convert`, which passes the blocks of a model in order.

A chain is applied block by block: each link changes the previous link's result, and verifies its own result with the
trainer's checksums. So a chain of any length takes one read of the base and no copies of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramerge import CheckpointError
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas.trainers.frames import Frame, FrameStream
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Files, Reader, Tensor
from ramerge.sdk.text import quoted


@dataclass(frozen=True)
class Link(ABC):
    """A trainer's delta after reading its small files.

    Attributes:
        before: the version that it builds on, less than `version`.
    """

    folder: Path
    version: int
    before: int
    files: Mapping[Location, Identity]

    @property
    def is_whole(self) -> bool:
        """Whether the link is a whole model, which builds on no other version."""
        return False

    @property
    def root(self) -> int:
        """The version of the whole model at the start of the chain."""
        return 0

    @abstractmethod
    def check(self, base: Checkpoint) -> None:
        """Check that the link fits the model at the start of the chain."""

    @abstractmethod
    def pass_over(self, base: Checkpoint, files: Files) -> LinkPass:
        """Open the link for a pass over the model's blocks."""


class LinkPass(ABC):
    """A link during a pass over a model: tensors in the order of sorted names, and their blocks in order."""

    @abstractmethod
    def begin(self, tensor: Tensor) -> bool:
        """Begin the next tensor. Return whether its blocks are needed, to change them or to check them."""

    @abstractmethod
    def change(self, block: Bytes, start: int) -> None:
        """Change the next block of the tensor in place; `start` is its first byte in the tensor."""

    @abstractmethod
    def end(self) -> None:
        """End the tensor, and check it."""

    @abstractmethod
    def finish(self) -> None:
        """End the model, and check it."""


class Xor:
    """The change of a tensor by xor: a frame with one byte for each byte of the tensor."""

    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream
        self._part = np.empty(0, np.uint8)

    @staticmethod
    def from_frame(frame: Frame, files: Files, nbytes: int) -> Xor:
        """Return the change by xor that a frame holds."""
        if (size := frame.declared_size(files)) not in (None, nbytes):
            raise frame.wrong(f"unpacks to {size:,} bytes, but the tensor has {nbytes:,}")
        return Xor(frame.stream(files))

    def apply(self, block: Bytes, start: int) -> None:
        """Change the tensor's next block in place; `start` is its first byte in the tensor."""
        if self._part.size < block.size:
            self._part = np.empty(block.size, np.uint8)
        part = self._part[: block.size]
        self._stream.fill(part)
        np.bitwise_xor(block, part, out=block)

    def end(self) -> None:
        """Refuse bytes in the frame beyond the tensor."""
        self._stream.end()


@dataclass(frozen=True)
class WholeTensors(Link):
    """A whole model among deltas, which replaces all tensors; the chain continues from it."""

    tensors: Mapping[str, Tensor]

    @property
    def is_whole(self) -> bool:
        return True

    def check(self, base: Checkpoint) -> None:
        problems = [f"{name} is missing" for name in base.tensors.keys() - self.tensors.keys()]
        problems += [f"{name} is not in the base" for name in self.tensors.keys() - base.tensors.keys()]
        problems += [
            f"{quoted(name)} is {tensor.dtype} {list(tensor.shape)}, in the base {other.dtype} {list(other.shape)}"
            for name, tensor in self.tensors.items()
            if (other := base.tensors.get(name)) and (tensor.dtype, tensor.shape) != (other.dtype, other.shape)
        ]
        if problems:
            raise CheckpointError(f"{self.folder}: is a whole model, which does not fit: {text}" for text in problems)

    def pass_over(self, base: Checkpoint, files: Files) -> LinkPass:
        return _PassOfWhole(self, files)


class _PassOfWhole(LinkPass):
    def __init__(self, link: WholeTensors, files: Files) -> None:
        self._tensors, self._reader = link.tensors, Reader(files, Arena())
        self._tensor: Tensor | None = None

    def begin(self, tensor: Tensor) -> bool:
        self._tensor = self._tensors[tensor.name]
        return True

    def change(self, block: Bytes, start: int) -> None:
        assert self._tensor is not None
        width = itemsize(self._tensor.dtype)
        self._reader.begin(0, 0)
        self._reader.read(self._tensor, start // width, (start + block.size) // width, block)

    def end(self) -> None:
        pass

    def finish(self) -> None:
        pass


def misfits(folder: Path, base: Checkpoint, changes: Mapping[str, tuple[str, tuple[int, ...]] | None]) -> list[str]:
    """Return problems of tensors in a trainer's delta that the base lacks, or has with another dtype or shape."""
    problems = []
    if base.quantized is not None:
        problems.append(
            f"{folder}: changes the stored bytes of a quantized model ({base.title}), which ramerge does not support; "
            "apply it with the trainer's own tools"
        )
    for name, layout in changes.items():
        tensor = base.tensors.get(name)
        if tensor is None:
            problems.append(f"{folder}: changes {quoted(name)}, which {base.directory} does not have; is it its base?")
        elif layout is not None and layout != (tensor.dtype, tensor.shape):
            problems.append(
                f"{folder}: changes {quoted(name)} as {layout[0]} {quoted(list(layout[1]))}, but in "
                f"{base.directory} it is {tensor.dtype} {list(tensor.shape)}; is it its base?"
            )
    return problems
