"""An origin that adds changes to a base: a tensor of a delta."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.deltas.codec import BLOCK, COLUMNS, BlockRow, DamagedError, blocks_of, decode, fold, most_stored
from ramerge.foundation.dtypes import itemsize
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.text import quoted
from ramerge.kernels.weighted import add_changes
from ramerge.tensors.arena import room
from ramerge.tensors.reader import Reader
from ramerge.tensors.tensor import Origin, Stored, Tensor

Bytes = NDArray[np.uint8]

_ROW = 8 * COLUMNS
# Bytes that are requested on both sides of where some blocks of many are expected.
_UNEVEN = 1 << 16


@dataclass(frozen=True)
class Patched(Origin):
    """The elements of a base, changed where a delta says so. Each block of the base must be the one that was meant.

    Attributes:
        base: of the same dtype and shape.
        table: a `codec.Row` for each block.
        data: the blocks' bytes; None if nothing has changed.
        required: digest of the model that the delta is for, for messages.
    """

    base: Tensor
    table: Stored
    data: Stored | None
    required: str

    @property
    def encoding(self) -> str:
        return self._root.encoding

    @property
    def grain(self) -> int:
        return BLOCK

    @property
    def _root(self) -> Tensor:
        """What lies below all changes. Chains may be longer than Python lets functions call each other."""
        *_, link = _links(self)
        return link.base

    def usual_dtype(self, tensor: Tensor) -> str:
        return self._root.usual_dtype

    def leaves(self) -> Iterator[Stored]:
        for link in _links(self):
            yield from link._stored()
        yield from link.base.origin.leaves()

    def _stored(self) -> Iterator[Stored]:
        if self.data is not None:
            yield self.data
        yield self.table

    def is_change_of(self, other: Tensor) -> bool:
        return any(link.base is other for link in _links(self))

    def changes_of(self, other: Tensor) -> Iterator[Stored]:
        for link in _links_over(self, other):
            yield from link._stored()

    def ahead(self, tensor: Tensor, start: int, stop: int) -> Iterator[Stored]:
        """Where blocks end is known only from the table, so they are thought to be of equal size."""
        first, last = start // BLOCK, blocks_of(stop)
        for link in _links(self):
            yield Stored(link.table.path, link.table.offset + first * _ROW, (last - first) * _ROW)
            if link.data is not None:
                count, size = blocks_of(tensor.elements), link.data.nbytes
                begin = max(size * first // count - _UNEVEN, 0)
                end = min(size * last // count + _UNEVEN, size)
                yield Stored(link.data.path, link.data.offset + begin, end - begin)
        yield from link.base.origin.ahead(link.base, start, stop)

    def scratch(self, tensor: Tensor, elements: int) -> int:
        """Includes what libraries allocate while they decompress."""
        width, touched = itemsize(tensor.dtype), min((2 + elements // BLOCK) * BLOCK, tensor.elements)
        sizes = [link.data.nbytes if link.data is not None else 0 for link in _links(self)]
        stored = min(most_stored(touched, width), max(sizes))
        changes = room(stored) + 2 * room(most_stored(touched, width)) if stored else 0
        return 2 * room(touched * width) + max(room(_ROW * blocks_of(touched)) + changes, self._root.scratch(touched))

    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        """Blocks are read whole, and all together; of a chain, one link after another."""
        width = itemsize(tensor.dtype)
        low, high = start // BLOCK * BLOCK, min(blocks_of(stop) * BLOCK, tensor.elements)
        whole = out if (low, high) == (start, stop) else reader.arena.take((high - low) * width)
        chain = [self]
        while isinstance(below := chain[-1].base.origin, Patched) and not reader.holds(chain[-1].base, low, high):
            chain.append(below)
        data = reader.lent(chain[-1].base, low, high, whole)
        for link in reversed(chain):
            with reader.arena.scratch():
                data = link._apply(reader, tensor, low, high, data, whole)
        if whole is not out:
            out[:] = whole[(start - low) * width : (stop - low) * width]

    def _apply(self, reader: Reader, tensor: Tensor, low: int, high: int, base: Bytes, out: Bytes) -> Bytes:
        """Fill `out` with whole blocks, given the base's."""
        width, first = itemsize(tensor.dtype), low // BLOCK
        rows = self._rows(reader, tensor, first, blocks_of(high))
        for number, row in enumerate(rows, first):
            self._check_base(reader, tensor, number, row, base[(number - first) * BLOCK * width :][: BLOCK * width])
        if any(row.moved for row in rows):
            self._patch(reader, tensor, first, rows, base, out)
        elif base is not out:
            out[:] = base
        return out

    def add_changes(
        self,
        reader: Reader,
        tensor: Tensor,
        other: Tensor,
        start: int,
        stop: int,
        held: Bytes,
        weight: float,
        total: NDArray[Any],
        *,
        verify: bool,
    ) -> None:
        """As `Origin.add_changes`. Of a chain, the first link is always verified.

        Changes are xors with the base, so what is wrong in one link stays wrong in all that follow: to verify the last
        one is enough.
        """
        links = _links_over(self, other)
        if len(links) > 1:
            old = reader.arena.take(held.size)
            old[:] = held
            for link in reversed(links):
                with reader.arena.scratch():
                    link._apply(reader, tensor, start, stop, held, held)
            add_changes(tensor.dtype, [old, held], [weight], total)
            return
        verify = verify or not isinstance(self.base.origin, Patched)
        if self.data is None and not verify:
            return
        first, size = start // BLOCK, BLOCK * itemsize(tensor.dtype)
        rows = self._rows(reader, tensor, first, blocks_of(stop))
        for index, row in enumerate(rows if verify else ()):
            self._check_base(reader, tensor, first + index, row, held[index * size :][:size])
        if not any(row.moved for row in rows):
            return
        try:
            fold(rows, self._payload(reader, rows), tensor.dtype, held, weight, total, reader.arena.take)
        except DamagedError as error:
            raise self._damaged(tensor, first + error.index, error) from error

    def _rows(self, reader: Reader, tensor: Tensor, first: int, last: int) -> list[BlockRow]:
        """What the delta says of the blocks from `first` up to `last`."""
        numbers = reader.arena.take(_ROW * (last - first))
        reader.fill(self.table.path, self.table.offset + first * _ROW, numbers)
        data_bytes = self.data.nbytes if self.data is not None else 0
        rows = [BlockRow.of(each) for each in numbers.view(np.uint64).reshape(-1, COLUMNS)]
        for number, row in enumerate(rows, first):
            try:
                row.check(min(BLOCK, tensor.elements - number * BLOCK), itemsize(tensor.dtype), data_bytes)
            except DamagedError as error:
                raise self._damaged(tensor, number, error) from error
        return rows

    def _check_base(self, reader: Reader, tensor: Tensor, number: int, row: BlockRow, base: Bytes) -> None:
        """Refuse a block of the base that is not the one that was meant."""
        start = number * BLOCK
        if reader.digest(self.base, start, start + base.size // itemsize(tensor.dtype), base) != row.base:
            raise CheckpointError(
                f"{self.base.place}: tensor {quoted(tensor.name)} is not that of the model that the delta "
                f"{self.table.path.parent} is for, which has the digest {self.required}; give that model as the base, "
                "or the deltas that lead to it"
            )

    def _patch(self, reader: Reader, tensor: Tensor, first: int, rows: list[BlockRow], base: Bytes, out: Bytes) -> None:
        word = f"u{itemsize(tensor.dtype)}"
        try:
            decode(rows, self._payload(reader, rows), base.view(word), out.view(word), reader.arena.take)
        except DamagedError as error:
            raise self._damaged(tensor, first + error.index, error) from error

    def _payload(self, reader: Reader, rows: list[BlockRow]) -> Bytes:
        """The bytes of blocks, one after another; those that lie so in the file are read at once."""
        assert self.data is not None
        stored = [row for row in rows if row.stored]
        stops = list(accumulate(row.stored for row in stored))
        payload = reader.arena.take(stops[-1])
        # where a block lies in the file, less its place here, is the same for all that follow each other in both
        shifts = [row.begin + row.stored - stop for row, stop in zip(stored, stops, strict=True)]
        start = 0
        for shift, together in groupby(zip(shifts, stops, strict=True), itemgetter(0)):
            *_, (_, stop) = together
            reader.fill(self.data.path, self.data.offset + shift + start, payload[start:stop])
            start = stop
        return payload

    def _damaged(self, tensor: Tensor, number: int, error: DamagedError) -> CheckpointError:
        return CheckpointError(
            f"{self.table.path}: tensor {quoted(tensor.name)} is damaged: {error} (block {number}); get the delta again"
        )


def _links(origin: Patched) -> Iterator[Patched]:
    """A delta, and the deltas below it, the last one first."""
    below: Origin = origin
    while isinstance(below, Patched):
        yield below
        below = below.base.origin


def _links_over(origin: Patched, other: Tensor) -> list[Patched]:
    """The deltas that lie over another tensor, the last one first."""
    found = []
    for link in _links(origin):
        found.append(link)
        if link.base is other:
            break
    return found


def moved_of(table: Bytes) -> int:
    """How many elements differ from the base's, by the bytes of a tensor's table."""
    return int(table.view(np.uint64).reshape(-1, COLUMNS)[:, BlockRow._fields.index("moved")].sum())
