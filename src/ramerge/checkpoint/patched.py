"""An origin that adds changes to a base: a tensor of a delta."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.arena import room
from ramerge.checkpoint.delta.codec import BLOCK, COLUMNS, DamagedError, Row, blocks_of, decode, most_stored
from ramerge.checkpoint.read import Files, Reader
from ramerge.checkpoint.tensor import Origin, Stored, Tensor
from ramerge.foundation.dtypes import itemsize
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.text import quoted

Bytes = NDArray[np.uint8]

_ROW = 8 * COLUMNS


@dataclass(frozen=True)
class Patched(Origin):
    """The elements of a base, changed where a delta says so. Each block of the base must be the one that was meant.

    Attributes:
        base: of the same dtype and shape.
        table: a `codec.Row` for each block.
        data: the blocks' bytes; None if nothing has changed.
        wanted: digest of the model that the delta is for, for messages.
    """

    base: Tensor
    table: Stored
    data: Stored | None
    wanted: str

    @property
    def encoding(self) -> str:
        """See `Origin`."""
        return self.base.encoding

    def usual_dtype(self, tensor: Tensor) -> str:
        """See `Origin`."""
        return self.base.usual_dtype

    def leaves(self) -> Iterator[Stored]:
        """See `Origin`."""
        if self.data is not None:
            yield self.data
        yield self.table
        yield from self.base.origin.leaves()

    def scratch(self, tensor: Tensor, elements: int) -> int:
        """See `Origin`. Includes what libraries allocate while they decompress."""
        width, block = itemsize(tensor.dtype), min(BLOCK, tensor.elements)
        apart = room(block * width)
        changes = 3 * room(most_stored(block, width)) if self.data is not None else 0
        return apart + room(_ROW * (2 + elements // BLOCK)) + changes + self.base.scratch(block)

    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        """See `Origin`.

        Raises:
            CheckpointError: also if the base is another one, or the delta is damaged.
        """
        width = itemsize(tensor.dtype)
        for number, row in self._rows(reader, tensor, start // BLOCK, blocks_of(stop)):
            first, last = number * BLOCK, min((number + 1) * BLOCK, tensor.elements)
            low, high = max(first, start), min(last, stop)
            place = out[(low - start) * width : (high - start) * width]
            with reader.arena.scratch():
                if (low, high) == (first, last):
                    self._read_block(reader, tensor, number, row, place)
                else:
                    whole = reader.arena.take((last - first) * width)
                    self._read_block(reader, tensor, number, row, whole)
                    place[:] = whole[(low - first) * width : (high - first) * width]

    def moved(self, files: Files) -> int:
        """How many elements differ from the base's, by the table. Reads nothing else."""
        table = np.empty(self.table.nbytes, np.uint8)
        files.fill(self.table.path, self.table.offset, table)
        return int(table.view(np.uint64).reshape(-1, COLUMNS)[:, Row._fields.index("moved")].sum())

    def _rows(self, reader: Reader, tensor: Tensor, first: int, last: int) -> Iterator[tuple[int, Row]]:
        """What the delta says of the blocks from `first` up to `last`, with their numbers."""
        numbers = reader.arena.take(_ROW * (last - first))
        reader.files.fill(self.table.path, self.table.offset + first * _ROW, numbers)
        data_bytes = self.data.nbytes if self.data is not None else 0
        for number, each in enumerate(numbers.view(np.uint64).reshape(-1, COLUMNS), first):
            row = Row.of(each)
            try:
                row.check(min(BLOCK, tensor.elements - number * BLOCK), itemsize(tensor.dtype), data_bytes)
            except DamagedError as error:
                raise self._damaged(tensor, number, error) from error
            yield number, row

    def _read_block(self, reader: Reader, tensor: Tensor, number: int, row: Row, out: Bytes) -> None:
        """Fill `out` with the block of that number."""
        first = number * BLOCK
        stop = first + out.size // itemsize(tensor.dtype)
        base = reader.lent(self.base, first, stop, out)
        if reader.digest(self.base, first, stop, base) != row.base:
            raise CheckpointError(
                f"{self.base.place}: tensor {quoted(tensor.name)} is not that of the model that the delta "
                f"{self.table.path.parent} is for, which has the digest {self.wanted}; give that model as the base, or "
                "the deltas that lead to it"
            )
        if row.moved:
            self._patch(reader, tensor, number, row, base, out)
        elif base is not out:
            out[:] = base

    def _patch(self, reader: Reader, tensor: Tensor, number: int, row: Row, base: Bytes, out: Bytes) -> None:
        assert self.data is not None
        payload = reader.arena.take(row.stored)
        reader.files.fill(self.data.path, self.data.offset + row.begin, payload)
        word = f"u{itemsize(tensor.dtype)}"
        try:
            decode(row, payload, base.view(word), out.view(word), reader.arena.take)
        except DamagedError as error:
            raise self._damaged(tensor, number, error) from error

    def _damaged(self, tensor: Tensor, number: int, error: DamagedError) -> CheckpointError:
        return CheckpointError(
            f"{self.table.path}: tensor {quoted(tensor.name)} is damaged: {error} (block {number}); get the delta again"
        )
