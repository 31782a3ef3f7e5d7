"""The origin of a delta's tensors: elements of a base, with the changes of a chain of deltas."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge import CheckpointError
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.kernels.weighted import add_changes
from ramerge.core.storage.own_files import BLOCK
from ramerge.core.tensors.arena import room
from ramerge.core.tensors.reader import MOST_KEPT
from ramerge.deltas.codec import (
    COLUMNS,
    NOTHING,
    SEVERAL_FORMS,
    BlockRow,
    BlockTable,
    DamagedError,
    blocks_of,
    decode,
    fold,
    most_nbytes,
)
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.tensors import Origin, Reader, Stored, Tensor
from ramerge.sdk.text import quoted

_ROW = 8 * COLUMNS
# Number of blocks whose rows are read and checked at a time.
_WINDOW = 64
# Bytes of changes that are added at a time, so that a block of a model is read from the cache for the next link.
_TOGETHER = 4 << 20
# Bytes that are requested on both sides of where some blocks of many are expected.
_UNEVEN = 1 << 16


@dataclass(frozen=True)
class Patched(Origin):
    """The elements of a base with a delta's changes. The digest of each block of the base must match.

    Attributes:
        table: a `codec.BlockRow` for each block.
        data: the blocks' bytes; None if nothing has changed.
    """

    base: Tensor
    table: Stored
    data: Stored | None
    base_digest: str

    @property
    def encoding(self) -> str:
        return self._root_tensor.encoding

    @property
    def likeness(self) -> Hashable:
        return "delta", any(link.data is not None for link in _chain_links(self)), self._root_tensor.likeness

    @property
    def below(self) -> Tensor:
        return self.base

    @property
    def grain(self) -> int:
        return BLOCK

    @property
    def _root_tensor(self) -> Tensor:
        """The tensor below all changes; found by a loop, because chains may exceed Python's recursion limit."""
        *_, link = _chain_links(self)
        return link.base

    def usual_dtype(self, tensor: Tensor) -> str:
        return self._root_tensor.usual_dtype

    def leaves(self) -> Iterator[Stored]:
        for link in _chain_links(self):
            yield from link.own_leaves()
        yield from link.base.origin.leaves()

    def own_leaves(self) -> Iterator[Stored]:
        if self.data is not None:
            yield self.data
        yield self.table

    def is_change_of(self, other: Tensor) -> bool:
        return any(link.base is other for link in _chain_links(self))

    def changes_of(self, other: Tensor) -> Iterator[Stored]:
        for link in _links_above(self, other):
            yield from link.own_leaves()

    def ahead(self, tensor: Tensor, start: int, stop: int) -> Iterator[Stored]:
        """Yield where the elements lie in files; assumes blocks of equal size, because the table has not been read."""
        first, last = start // BLOCK, blocks_of(stop)
        begin, end = first // _WINDOW * _WINDOW, min(-(-last // _WINDOW) * _WINDOW, blocks_of(tensor.elements))
        for link in _chain_links(self):
            yield Stored(link.table.path, link.table.offset + begin * _ROW, (end - begin) * _ROW)
            if link.data is not None:
                count, size = blocks_of(tensor.elements), link.data.nbytes
                low, high = max(size * first // count - _UNEVEN, 0), min(size * last // count + _UNEVEN, size)
                yield Stored(link.data.path, link.data.offset + low, high - low)
        yield from link.base.origin.ahead(link.base, start, stop)

    def scratch(self, tensor: Tensor, elements: int) -> int:
        """Return the scratch memory of a read. Reads of whole `BLOCK`s begin at block boundaries."""
        is_whole = elements % BLOCK == 0 or elements == tensor.elements
        elements_of_blocks = elements if is_whole else min((2 + elements // BLOCK) * BLOCK, tensor.elements)
        most = max(link.scratch_of_link(tensor, elements_of_blocks) for link in _chain_links(self))
        return room(elements_of_blocks * itemsize(tensor.dtype)) + max(
            most, self._root_tensor.scratch(elements_of_blocks)
        )

    def scratch_of_changes(self, tensor: Tensor, other: Tensor, elements: int) -> int:
        links = _links_above(self, other)
        old = room(elements * itemsize(tensor.dtype)) if len(links) > 1 else 0
        together = room(_TOGETHER + most_nbytes(elements, itemsize(tensor.dtype)))
        return together + old + max(link.scratch_of_link(tensor, elements) for link in links)

    def scratch_of_link(self, tensor: Tensor, elements: int) -> int:
        """Return the bytes for the changes of this link in whole blocks, without the links below it.

        They include what libraries allocate while they decompress.
        """
        if self.data is None:
            return 0
        return 3 * room(most_nbytes(elements, itemsize(tensor.dtype)))

    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        """Read elements: whole blocks of the base, together; then the changes of one link after another."""
        width = itemsize(tensor.dtype)
        low, high = start // BLOCK * BLOCK, min(blocks_of(stop) * BLOCK, tensor.elements)
        whole = out if (low, high) == (start, stop) else reader.arena.take((high - low) * width)
        chain = [self]
        while isinstance(below := chain[-1].base.origin, Patched) and not reader.holds(chain[-1].base, low, high):
            chain.append(below)
        data = reader.lent(chain[-1].base, low, high, whole)
        for link in reversed(chain):
            with reader.arena.scratch():
                data = link.apply(reader, tensor, low, high, data, whole)
        if whole is not out:
            out[:] = whole[(start - low) * width : (stop - low) * width]

    def apply(self, reader: Reader, tensor: Tensor, low: int, high: int, base: Bytes, out: Bytes) -> Bytes:
        """Fill `out` with whole blocks of the agent, given the base's blocks."""
        width, first = itemsize(tensor.dtype), low // BLOCK
        rows = _read_table(reader, tensor, [self], first, blocks_of(high)).rows(0)
        for number, row in enumerate(rows, first):
            self.check_base(reader, tensor, number, row, base[(number - first) * BLOCK * width :][: BLOCK * width])
        if any(row.updates for row in rows):
            word = f"u{width}"
            payload = reader.arena.take(sum(row.nbytes for row in rows))
            try:
                self.fill(reader, [row.begin for row in rows], [row.nbytes for row in rows], payload)
                decode(rows, payload, base.view(word), out.view(word), reader.arena.take)
            except DamagedError as error:
                raise self.damage(tensor, first + error.index, error) from error
        elif base is not out:
            out[:] = base
        return out

    def add_changes(
        self,
        reader: Reader,
        other: Tensor,
        chain: Sequence[tuple[Tensor, float]],
        start: int,
        stop: int,
        words: Bytes,
        total: NDArray[Any],
    ) -> None:
        """Implement `Origin.add_changes`. The base's blocks are verified by digest before the first and the last link.

        Changes are xors with the base, so an error in one link persists in all later links.
        """
        steps: list[tuple[list[Patched], float]] = []
        for tensor, weight in chain:
            link = tensor.origin
            assert isinstance(link, Patched)
            steps.append((_links_above(link, other), weight))
            other = tensor
        links = _LinkApplier(reader, chain[0][0], start, stop, words, total)
        for is_single, together in groupby(steps, lambda step: len(step[0]) == 1):
            if is_single:
                links.add([(link, weight) for (link,), weight in together])
                continue
            for several, weight in together:
                links.add_together(several, weight)

    def check_base(self, reader: Reader, tensor: Tensor, number: int, row: BlockRow, base: Bytes) -> None:
        """Refuse a block that differs from the delta's base."""
        start = number * BLOCK
        if reader.digest(self.base, start, start + base.size // itemsize(tensor.dtype), base) != row.base:
            raise CheckpointError(
                f"{self.base.place}: tensor {quoted(tensor.name)} differs from the base of the delta "
                f"{self.table.path.parent} (digest {self.base_digest}); give the base that the delta was made from, "
                "or all deltas of the chain"
            )

    def fill(
        self, reader: Reader, starts: Sequence[int], sizes: Sequence[int], payload: Bytes, *, gapless: bool = False
    ) -> None:
        """Read the bytes of a delta's blocks in order; contiguous bytes in one read."""
        assert self.data is not None
        if gapless:
            reader.fill(self.data.path, self.data.offset + starts[0], payload)
            return
        spans = [(begin, size) for begin, size in zip(starts, sizes, strict=True) if size]
        stops = list(accumulate(size for _, size in spans))
        # where a block lies in the file, less its place here, is the same for all that follow each other in both
        shifts = [begin + size - stop for (begin, size), stop in zip(spans, stops, strict=True)]
        start = 0
        for shift, together in groupby(zip(shifts, stops, strict=True), itemgetter(0)):
            *_, (_, stop) = together
            reader.fill(self.data.path, self.data.offset + shift + start, payload[start:stop])
            start = stop

    def damage(self, tensor: Tensor, number: int, error: DamagedError) -> CheckpointError:
        return CheckpointError(
            f"{self.table.path}: tensor {quoted(tensor.name)} is damaged: {error} (block {number}); get the delta again"
        )


class _LinkApplier:
    """Adds the changes of a chain's links to a block, many at once, because a call costs as much as a link of few
    changes.
    """

    def __init__(
        self, reader: Reader, tensor: Tensor, start: int, stop: int, words: Bytes, total: NDArray[Any]
    ) -> None:
        self._reader, self._tensor, self._words, self._total = reader, tensor, words, total
        self._start, self._stop, self._first = start, stop, start // BLOCK
        self._room = reader.arena.take(_TOGETHER + most_nbytes(stop - start, itemsize(tensor.dtype)))

    def add(self, links: Sequence[tuple[Patched, float]]) -> None:
        """Add the weighted changes of consecutive links."""
        chain = [link for link, _ in links]
        table = _read_table(self._reader, self._tensor, chain, self._first, blocks_of(self._stop))
        *before, last = range(len(links))
        for places in (before, [last]):
            if places:
                link, size = chain[places[0]], BLOCK * itemsize(self._tensor.dtype)
                for index, row in enumerate(table.rows(places[0])):
                    block = self._words[index * size :][:size]
                    link.check_base(self._reader, self._tensor, self._first + index, row, block)
                for together in _group_links(table, places):
                    self._add_links(links, table, together)

    def _add_links(self, links: Sequence[tuple[Patched, float]], table: BlockTable, places: Sequence[int]) -> None:
        """Add the changes of some links at once."""
        part = table.deltas(places)
        starts, sizes, position = part.numbers[:, :, 0].tolist(), part.nbytes.tolist(), 0
        for place, begin, size, gapless in zip(places, starts, sizes, part.gapless, strict=True):
            room = self._room[position : position + sum(size)]
            links[place][0].fill(self._reader, begin, size, room, gapless=gapless)
            position += room.size
        weights = [links[place][1] for place in places]
        try:
            with self._reader.arena.scratch():
                take = self._reader.arena.take
                fold(part, self._room[:position], self._tensor.dtype, self._words, weights, self._total, take)
        except DamagedError as error:
            number, block = divmod(error.index, len(sizes[0]))
            raise links[places[number]][0].damage(self._tensor, self._first + block, error) from error

    def add_together(self, links: Sequence[Patched], weight: float) -> None:
        """Add the changes of several links with one weight, last link first."""
        with self._reader.arena.scratch():
            old = self._reader.arena.take(self._words.size)
            old[:] = self._words
            for link in reversed(links):
                with self._reader.arena.scratch():
                    link.apply(self._reader, self._tensor, self._start, self._stop, self._words, self._words)
            add_changes(self._tensor.dtype, [old, self._words], [weight], self._total)


def _group_links(table: BlockTable, places: Sequence[int]) -> Iterator[list[int]]:
    """Yield places of links with changes, in groups for one call each: of one form, and few bytes."""
    forms, sizes = table.forms, table.nbytes.sum(axis=1).tolist()
    together, nbytes = list[int](), 0
    for place in places:
        if forms[place] == NOTHING:
            continue
        if together and (
            SEVERAL_FORMS in (forms[place], forms[together[-1]])
            or forms[place] != forms[together[-1]]
            or nbytes > _TOGETHER
        ):
            yield together
            together, nbytes = [], 0
        together.append(place)
        nbytes += sizes[place]
    if together:
        yield together


def _read_table(reader: Reader, tensor: Tensor, links: Sequence[Patched], first: int, last: int) -> BlockTable:
    """Return the rows of links for the blocks from `first` up to `last`.

    Rows are read and checked for many blocks at a time, and cached until other blocks are requested.
    """
    begin = first // _WINDOW * _WINDOW
    if last > begin + _WINDOW:
        return _checked_table(reader, tensor, links, first, last)
    key = id(links[0]), len(links), begin
    table: BlockTable | None = reader.kept.get(key)
    if table is None:
        table = _checked_table(reader, tensor, links, begin, min(begin + _WINDOW, blocks_of(tensor.elements)))
        while reader.kept and sum(len(each.numbers) for each in reader.kept.values()) + len(links) > MOST_KEPT:
            del reader.kept[next(iter(reader.kept))]
        reader.kept[key] = table
    return table.blocks(first - begin, last - begin)


def _checked_table(reader: Reader, tensor: Tensor, links: Sequence[Patched], first: int, last: int) -> BlockTable:
    numbers = np.empty((len(links), last - first, COLUMNS), np.uint64)
    for link, rows in zip(links, numbers, strict=True):
        reader.fill(link.table.path, link.table.offset + first * _ROW, rows.view(np.uint8).reshape(-1))
    data_bytes = [link.data.nbytes if link.data is not None else 0 for link in links]
    try:
        return BlockTable.check_rows(numbers, first, tensor.elements, itemsize(tensor.dtype), data_bytes)
    except DamagedError as error:
        place, block = divmod(error.index, last - first)
        raise links[place].damage(tensor, first + block, error) from error


def _chain_links(origin: Patched) -> Iterator[Patched]:
    """Yield a delta, and the deltas below it in the chain, last first."""
    below: Origin = origin
    while isinstance(below, Patched):
        yield below
        below = below.base.origin


def _links_above(origin: Patched, other: Tensor) -> list[Patched]:
    """Return the deltas above another tensor of the chain, last first."""
    links = []
    for link in _chain_links(origin):
        links.append(link)
        if link.base is other:
            break
    return links


def changed_element_count(table: Bytes) -> int:
    """Return the number of elements that a delta changes, from the bytes of a tensor's table."""
    return int(table.view(np.uint64).reshape(-1, COLUMNS)[:, BlockRow._fields.index("updates")].sum())
