"""Merged bytes into a delta on the base, instead of into files of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.delta.codec import BLOCK, Encoded, Encoder, blocks_of, digest
from ramerge.checkpoint.delta.write import DeltaWriter, TensorDigest
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.read import Files, Reader
from ramerge.checkpoint.tensor import Tensor
from ramerge.foundation.dtypes import itemsize
from ramerge.planning.model import Block, Part, Plan

Bytes = NDArray[np.uint8]
# Blocks that wait for an earlier one.
_MOST_WAITING = 16


@dataclass
class _Half:
    """A block of which some bytes are still to come."""

    data: Bytes
    missing: int


class Patches:
    """Compares merged blocks with the base's, in the workers' threads, and writes them in order, in its own thread.

    Args:
        plan: its merging pass goes forwards, so the block that is written next is always being merged.
        base: the model that the delta is for.
        writer: of the delta.
    """

    in_order = True

    def __init__(self, plan: Plan, base: Checkpoint, writer: DeltaWriter) -> None:
        self._parts = {part.name: part for tensor in plan.tensors for part in tensor.parts}
        self._plan = plan
        self._base = {name: tensor for name, tensor in base.tensors.items() if _fits(tensor, self._parts.get(name))}
        self._others = [tensor for name, tensor in base.tensors.items() if name not in self._base]
        self._files = Files(MappingProxyType(dict(base.files)))
        self._mine = threading.local()
        self._writer = writer
        self._halves: dict[tuple[str, int], _Half] = {}
        self._ready: dict[tuple[str, int], Encoded | Bytes] = {}
        self._next: tuple[str, int] | None = None
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ramerge-delta", daemon=True)
        self._thread.start()

    def write(self, point: int, tensor: int, part: int, start: int, data: Bytes) -> None:
        """See `Sink.write`."""
        planned = self._plan.tensors[tensor].parts[part]
        for number, block in self._blocks(planned, planned.begin + start, data):
            self._put(planned, number, block)

    def _blocks(self, part: Part, begin: int, data: Bytes) -> Iterator[tuple[int, Bytes]]:
        """The blocks of which all bytes are there now."""
        size = BLOCK * itemsize(part.dtype)
        while data.size:
            number, offset = divmod(begin, size)
            whole = min(size, part.whole_nbytes - number * size)
            piece = data[: whole - offset]
            begin, data = begin + piece.size, data[piece.size :]
            if piece.size == whole:
                yield number, piece
            elif (block := self._completed((part.name, number), whole, offset, piece)) is not None:
                yield number, block

    def _completed(self, key: tuple[str, int], size: int, offset: int, piece: Bytes) -> Bytes | None:
        """Keep a piece of a block; gives the block if nothing is missing."""
        with self._changed:
            half = self._halves.setdefault(key, _Half(np.empty(size, np.uint8), size))
            half.data[offset : offset + piece.size] = piece
            half.missing -= piece.size
            return self._halves.pop(key).data if not half.missing else None

    def _put(self, part: Part, number: int, block: Bytes) -> None:
        """Compare a block with the base's, and leave it for the writer."""
        key, base = (part.name, number), self._base.get(part.name)
        found = block.copy() if base is None else self._encoded(base, number, block)
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._ready) < _MOST_WAITING or key == self._next or self._failure or self._closed
            )
            if self._failure is not None:
                raise self._failure
            self._ready[key] = found
            self._changed.notify_all()

    def _encoded(self, base: Tensor, number: int, block: Bytes) -> Encoded:
        if not hasattr(self._mine, "encoder"):
            # small, because it is made to be sent
            self._mine.encoder, self._mine.reader = Encoder("zstd"), Reader(self._files)
        word = np.dtype(f"u{itemsize(base.dtype)}")
        start = number * BLOCK
        old = np.empty(block.size, np.uint8)
        self._mine.reader.begin(0, 0)
        self._mine.reader.read(base, start, start + block.size // word.itemsize, old)
        encoder: Encoder = self._mine.encoder
        return encoder.encode(old.view(word), np.ascontiguousarray(block).view(word))

    def _run(self) -> None:
        """Write tensor after tensor."""
        try:
            for part in self._parts.values():
                write: Callable[..., None] = self._writer.changed if part.name in self._base else self._writer.whole
                write(part.name, part.dtype, part.shape, self._taken(part))
        except _StoppedError:
            pass
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _taken(self, part: Part) -> Iterator[Encoded | Bytes]:
        """The blocks of a tensor in order, each as soon as it is there."""
        for number in range(blocks_of(part.whole_nbytes // itemsize(part.dtype))):
            with self._changed:
                self._next = part.name, number
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next in self._ready or self._closed)
                if self._closed:
                    raise _StoppedError
                found = self._ready.pop(self._next)
                self._changed.notify_all()
            yield found

    def advance(self, block: Block) -> None:
        """Nothing to do."""

    def owner(self, block: Block) -> int | None:
        """See `Sink.owner`."""

    def holds(self, block: Block) -> bool:
        """See `Sink.holds`."""
        return True

    def sync(self) -> None:
        """Nothing to do: no other process works."""

    def finish(self) -> int:
        """Wait until everything is written, and note the base's tensors that have no counterpart.

        Returns:
            Bytes of the delta's tensors.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        reader = Reader(self._files)
        for tensor in self._others:
            found = TensorDigest()
            for start in range(0, tensor.elements, BLOCK):
                stop = min(start + BLOCK, tensor.elements)
                reader.begin(start, stop)
                found.add(digest(reader.block(tensor)[: (stop - start) * itemsize(tensor.dtype)]))
            self._writer.base_tensor(tensor.name, tensor.dtype, tensor.shape, found.text)
        return self._writer.written

    def close(self) -> None:
        """Make waiting threads stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._files.close()


class _StoppedError(Exception):
    """Nobody waits for the delta any more."""


def _fits(tensor: Tensor, part: Part | None) -> bool:
    return part is not None and (tensor.dtype, tensor.shape) == (part.dtype, part.shape)
