"""Copies blocks from a full spool into a delta's files, in order; called by `make` and `delta_output`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.storage.own_files import BLOCK
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas.codec import Compression, EncodedBlock, Encoder, digest, tensor_digest
from ramerge.deltas.spool import Spool, SpooledTensor
from ramerge.deltas.word_patches import Bytes
from ramerge.deltas.write import DeltaWriter
from ramerge.sdk.tensors import Files, Reader, Tensor

Item = TypeVar("Item")


def collect(spool: Spool, writer: DeltaWriter, base: Checkpoint, compression: Compression) -> None:
    """Append all blocks of a spool to a delta, and record the base's tensors that have no entry in the spool.

    One thread does this when all slots are full. Doing it alongside the workers would take longer, because threads
    would wait for each other.
    """
    spool.begin_reading()
    entries = spool.slots.entries
    with Files(base.files) as files:
        reader, encoder = Reader(files), Encoder(compression)
        for index, entry in enumerate(entries):
            header = entry.name, entry.dtype, entry.shape
            if entry.kind == "base":
                writer.base_tensor(*header, _digest_of(_collect_slots(index, entry, spool.take_digests)))
            elif entry.kind == "whole":
                writer.whole(*header, _collect_slots(index, entry, spool.take_bytes))
            elif entry.kind == "encoded":
                writer.changed(*header, _collect_slots(index, entry, spool.take))
            else:
                blocks = _collect_slots(index, entry, spool.take_bytes)
                writer.changed(*header, _encode_changes(reader, encoder, base.tensors[entry.name], blocks))
        names = {entry.name for entry in entries if entry.kind != "whole"}
        for tensor in (tensor for name, tensor in base.tensors.items() if name not in names):
            digest_text = _digest_of(map(digest, _read_blocks(reader, tensor)))
            writer.base_tensor(tensor.name, tensor.dtype, tensor.shape, digest_text)


def _collect_slots(index: int, entry: SpooledTensor, take: Callable[[int, int], Iterator[Item]]) -> Iterator[Item]:
    for slot in range(entry.slots):
        yield from take(index, slot)


def _encode_changes(reader: Reader, encoder: Encoder, base: Tensor, blocks: Iterator[Bytes]) -> Iterator[EncodedBlock]:
    word = f"u{itemsize(base.dtype)}"
    for old, block in zip(_read_blocks(reader, base), blocks, strict=True):
        yield encoder.encode(old.view(word), block.view(word))


def _digest_of(digests: Iterable[bytes]) -> str:
    digest = tensor_digest()
    for block in digests:
        digest.update(block)
    return digest.hexdigest()


def _read_blocks(reader: Reader, tensor: Tensor) -> Iterator[Bytes]:
    for start in range(0, tensor.elements, BLOCK):
        stop = min(start + BLOCK, tensor.elements)
        reader.begin(start, stop)
        yield reader.block(tensor)[: (stop - start) * itemsize(tensor.dtype)]
