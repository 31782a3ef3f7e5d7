"""Appends the blocks of a spool to a delta's files, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ramerge.deltas.codec import BLOCK, Compression, Encoded, Encoder, digest
from ramerge.deltas.spool import Bytes, Spool, SpooledTensor
from ramerge.deltas.write import DeltaWriter, TensorDigest
from ramerge.sdk.tensors import Checkpoint, Files, Reader, Tensor, itemsize

Found = TypeVar("Found")


def collect(spool: Spool, writer: DeltaWriter, base: Checkpoint, compression: Compression) -> None:
    """Append all blocks, and note the base's tensors that have no entry in the spool.

    One thread does so when all slots are full. Alongside the workers it would take longer: they would wait for each
    other.
    """
    spool.begin_reading()
    with Files(base.files) as files:
        _Collector(spool, writer, base, Reader(files), Encoder(compression)).run()


class _Collector:
    def __init__(self, spool: Spool, writer: DeltaWriter, base: Checkpoint, reader: Reader, encoder: Encoder) -> None:
        self._spool, self._writer, self._base = spool, writer, base
        self._reader, self._encoder = reader, encoder

    def run(self) -> None:
        entries = self._spool.slots.entries
        for index, entry in enumerate(entries):
            self._append(index, entry)
        compared = {entry.name for entry in entries if entry.kind != "whole"}
        for tensor in (tensor for name, tensor in self._base.tensors.items() if name not in compared):
            self._note(tensor.name, tensor.dtype, tensor.shape, self._digests(tensor))

    def _append(self, index: int, entry: SpooledTensor) -> None:
        spool, named = self._spool, (entry.name, entry.dtype, entry.shape)
        if entry.kind == "base":
            self._note(*named, self._taken(index, entry, spool.take_digests))
        elif entry.kind == "whole":
            self._writer.whole(*named, self._taken(index, entry, spool.take_bytes))
        elif entry.kind == "encoded":
            self._writer.changed(*named, self._taken(index, entry, spool.take))
        else:
            blocks = self._taken(index, entry, spool.take_bytes)
            self._writer.changed(*named, self._compared(self._base.tensors[entry.name], blocks))

    @staticmethod
    def _taken(index: int, entry: SpooledTensor, take: Callable[[int, int], Iterator[Found]]) -> Iterator[Found]:
        for slot in range(entry.slots):
            yield from take(index, slot)

    def _compared(self, base: Tensor, blocks: Iterator[Bytes]) -> Iterator[Encoded]:
        """Blocks whose bytes are in the spool, with the base's."""
        word = f"u{itemsize(base.dtype)}"
        for old, block in zip(self._blocks(base), blocks, strict=True):
            yield self._encoder.encode(old.view(word), block.view(word))

    def _note(self, name: str, dtype: str, shape: tuple[int, ...], digests: Iterator[bytes]) -> None:
        """A tensor that the delta says nothing of but that the base has it."""
        found = TensorDigest()
        for block in digests:
            found.add(block)
        self._writer.base_tensor(name, dtype, shape, found.text)

    def _digests(self, tensor: Tensor) -> Iterator[bytes]:
        yield from map(digest, self._blocks(tensor))

    def _blocks(self, tensor: Tensor) -> Iterator[Bytes]:
        for start in range(0, tensor.elements, BLOCK):
            stop = min(start + BLOCK, tensor.elements)
            self._reader.begin(start, stop)
            yield self._reader.block(tensor)[: (stop - start) * itemsize(tensor.dtype)]
