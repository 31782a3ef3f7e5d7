"""A spool: a file with slots, which holds the blocks of a delta or adapter until all exist.

A block's size is known only when it is encoded, and a delta's files hold blocks in order. So blocks first go into a
file with slots for a few blocks each, large enough for any encoding. Any thread of any process can fill any slot at any
time. The file is sparse: it takes only as much disk as was written to it.
"""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.output.staging import StagingDir
from ramerge.core.storage.own_files import BLOCK
from ramerge.deltas.codec import COLUMNS, TOGETHER, BlockRow, EncodedBlock, blocks_of, digest, most_nbytes
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.outputs import OutputSpec, Shard, Writer, fingerprint_of
from ramerge.sdk.plans import MergePlan

SpooledKind = Literal["encoded", "merged", "whole", "base"]

_NAME = "blocks"
# Blocks are soon in the delta's files. Short work never brings them to the disk first.
_SECONDS_BETWEEN_SYNCS = 5.0
# Slots of encoded blocks begin at pages, so that unwritten parts take no disk.
_PAGE = 4096
_DIGEST, _CHECKSUM = 16, 8
_HEAD = struct.Struct(f"<{COLUMNS}Q{_DIGEST}s")


def _damage_error() -> OSError:
    return OSError(errno.EIO, "the file system returned other bytes than were written", _NAME)


def _checksum(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_digest(data)


@dataclass(frozen=True)
class SpooledTensor:
    """A tensor whose blocks are spooled in any order.

    Attributes:
        kind: the content of its slots. `encoded`: blocks from `codec.Encoder`; `merged`: its bytes, which are compared
            with the base's when they are appended; `whole`: its bytes, which become a part of the delta; `base`: only
            digests of the base's blocks.
        together: the number of blocks in a slot.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: SpooledKind
    together: int = TOGETHER

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        return self.together * BLOCK

    @property
    def slots(self) -> int:
        return -(-self.elements // self.span)

    @property
    def slot_bytes(self) -> int:
        width = itemsize(self.dtype)
        if self.kind == "base":
            return _CHECKSUM + self.together * _DIGEST
        if self.kind != "encoded":
            return self.span * width
        size = _CHECKSUM + self.together * (_HEAD.size + most_nbytes(min(BLOCK, self.elements), width))
        return -(-size // _PAGE) * _PAGE

    def elements_in(self, slot: int) -> int:
        """Return the number of elements in a slot of the spooled tensor; the last slot may have fewer."""
        return min((slot + 1) * self.span, self.elements) - slot * self.span


@dataclass(frozen=True)
class SpoolSlots:
    """Positions of all tensors' slots in the file of the spool.

    Attributes:
        entries: the tensors, in the order in which they are appended. Slots refer to them by index.
    """

    entries: Sequence[SpooledTensor]

    @cached_property
    def _slot_starts(self) -> Sequence[int]:
        sizes = (-(-entry.slots * entry.slot_bytes // _PAGE) * _PAGE for entry in self.entries)
        return list(accumulate(sizes, initial=0))

    @property
    def file(self) -> Shard:
        return Shard(_NAME, b"", {}, self._slot_starts[-1])

    def place(self, entry: int, slot: int) -> int:
        """Return the byte of the spool where a slot begins."""
        return self._slot_starts[entry] + slot * self.entries[entry].slot_bytes


class Spool:
    """Fills slots of the spool, and reads them. A pickled copy in another process uses the same file."""

    def __init__(self, slots: SpoolSlots, file: Writer) -> None:
        self.slots = slots
        self._file = file

    def put(self, entry: int, slot: int, blocks: Sequence[EncodedBlock]) -> None:
        """Fill a slot of the spool with encoded blocks."""
        heads = b"".join(_HEAD.pack(*block.row.numbers.tolist(), block.result) for block in blocks)
        self._write_slot(entry, slot, b"".join([_checksum(heads), heads, *(block.payload for block in blocks)]))

    def put_bytes(self, entry: int, begin: int, data: Bytes) -> None:
        """Write bytes of a `merged` or `whole` tensor into the spool, from its byte `begin` on."""
        self._file.write(_NAME, self.slots.place(entry, 0) + begin, data)

    def put_digests(self, entry: int, slot: int, data: Bytes) -> None:
        """Fill a slot of the spool with `data`, digests of blocks that only the base has."""
        size = BLOCK * itemsize(self.slots.entries[entry].dtype)
        digests = b"".join(digest(data[begin : begin + size]) for begin in range(0, data.size, size))
        self._write_slot(entry, slot, _checksum(digests) + digests)

    def _write_slot(self, entry: int, slot: int, data: bytes) -> None:
        self._file.write(_NAME, self.slots.place(entry, slot), np.frombuffer(data, np.uint8))

    def take(self, entry: int, slot: int) -> Iterator[EncodedBlock]:
        """Yield the encoded blocks of a slot of the spool."""
        spooled_tensor, begin = self.slots.entries[entry], self.slots.place(entry, slot)
        count = blocks_of(spooled_tensor.elements_in(slot))
        heads = list(_HEAD.iter_unpack(self._verified_bytes(begin, count * _HEAD.size)))
        rows = [BlockRow.from_numbers(np.array(numbers, np.uint64)) for *numbers, _ in heads]
        payloads = self._read_bytes(begin + _CHECKSUM + count * _HEAD.size, sum(row.nbytes for row in rows))
        for row, (*_, result), end in zip(rows, heads, accumulate(row.nbytes for row in rows), strict=True):
            payload = payloads[end - row.nbytes : end]
            if xxhash.xxh3_64_intdigest(payload) != row.payload:
                raise _damage_error()
            yield EncodedBlock(row, payload, result)

    def take_bytes(self, entry: int, slot: int) -> Iterator[Bytes]:
        """Yield the bytes of a slot's blocks, for a `merged` or `whole` tensor."""
        spooled_tensor = self.slots.entries[entry]
        width = itemsize(spooled_tensor.dtype)
        data = self._read_bytes(self.slots.place(entry, slot), spooled_tensor.elements_in(slot) * width)
        data_of_slot = np.frombuffer(data, np.uint8)
        yield from (data_of_slot[begin : begin + BLOCK * width] for begin in range(0, data_of_slot.size, BLOCK * width))

    def read_bytes(self, entry: int, start: int, stop: int) -> Bytes:
        """Return elements `start:stop` of a `merged` or `whole` tensor in the spool."""
        width = itemsize(self.slots.entries[entry].dtype)
        return np.frombuffer(
            self._read_bytes(self.slots.place(entry, 0) + start * width, (stop - start) * width), np.uint8
        )

    def take_digests(self, entry: int, slot: int) -> Iterator[bytes]:
        """Yield the digests of a slot's blocks, for a tensor that only the base has."""
        count = blocks_of(self.slots.entries[entry].elements_in(slot))
        data = bytes(self._verified_bytes(self.slots.place(entry, slot), count * _DIGEST))
        yield from (data[begin : begin + _DIGEST] for begin in range(0, len(data), _DIGEST))

    def _verified_bytes(self, begin: int, size: int) -> memoryview:
        """Read bytes of the spool, and verify the checksum in front of them."""
        data = self._read_bytes(begin, _CHECKSUM + size)
        if bytes(data[:_CHECKSUM]) != _checksum(data[_CHECKSUM:]):
            raise _damage_error()
        return data[_CHECKSUM:]

    def _read_bytes(self, begin: int, size: int) -> memoryview:
        out = np.empty(size, np.uint8)
        self._file.read(_NAME, begin, out)
        return out.data

    def begin_reading(self) -> None:
        """Prepare for reading, when all slots are full.

        On a network file system, other processes' writes become visible only when a file is opened. So it is reopened.
        """
        self._file.close()
        self._file.check()

    def sync(self) -> None:
        """Sync the spool's file to disk."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def spooled(slots: SpoolSlots) -> dict[str, int]:
    """Return the name and size of the file that a spool fills, for `OutputSpec`."""
    return {slots.file.name: slots.file.file_bytes}


def spec_of(plan: MergePlan, slots: SpoolSlots) -> OutputSpec:
    """Return the `OutputSpec` of a merge whose files are written at the end, from the spool."""
    target = plan.output.target
    assert target is not None
    return OutputSpec(target, plan.output.overwrite, fingerprint_of(plan), plan.bytes_read, spooled=spooled(slots))


def spool_of(slots: SpoolSlots, folder: Path, before_sync: Callable[[], Callable[[], None]]) -> Spool:
    """Open a spool in a folder; it resumes from an earlier run's spool there."""
    file = slots.file
    staging = StagingDir(folder, [file.name] if (folder / file.name).exists() else [], reserves=False)
    return Spool(slots, Writer(staging, [file], before_sync, _SECONDS_BETWEEN_SYNCS))
