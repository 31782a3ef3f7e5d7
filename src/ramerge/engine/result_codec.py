"""What workers find in blocks, and the same as bytes, for journals."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramerge.kernels.piece import no_counts
from ramerge.methods.base import Counts, Statistic
from ramerge.planning.model import Batch, Block, MergePlan

# bytes that were read, elements, number of statistics, of entries of `wrong` or -1, of `unequal`, whether roundings are
# counted
_HEAD = struct.Struct("<QQHiHB")
# index of the statistic, number of entries that are not 0, or _ALL
_COUNTED = struct.Struct("<HI")
_ALL = 2**32 - 1
# Of histograms, which are nearly empty for a block, only the entries that are not 0 are kept.
_LARGE = 4096


Results = Mapping[tuple[Statistic, str], Any]
"""Results of statistics, by statistic and part of the model."""


@dataclass(frozen=True)
class BlockResult:
    """What a worker found in a block, or in several of a tensor that it has counted together.

    Attributes:
        block: the block, or the first of them.
        elements: elements of all of them.
        bytes_read: bytes of input.
        counted: by statistic.
        rounding: int64: for each point what the last rounding does to the updates of N agents, as
            `kernels.piece.no_counts` has it; None where it can do nothing.
        wrong: for each source how many of its elements are NaN, Inf or a negative importance, where inputs or result
            are not finite; all zero for an overflow.
        unequal: indices of sources whose bytes differ from the first source's, in a tensor that must be equal.
    """

    block: Block
    elements: int
    bytes_read: int
    counted: Mapping[Statistic, Counts] = field(default_factory=dict)
    rounding: Counts | None = None
    wrong: tuple[int, ...] | None = None
    unequal: tuple[int, ...] = ()


def blank(plan: MergePlan) -> Counts:
    """An array for what rounding does to the agents' updates in each point."""
    return np.stack([no_counts(len(plan.agents)) for _ in plan.points])


class ResultCodec:
    """Turns the results of a pass into bytes and back.

    Args:
        plan: the plan.
        wanted: what the pass counts, by the tensor's index.
    """

    def __init__(self, plan: MergePlan, wanted: Mapping[int, Sequence[Statistic]]) -> None:
        self._wanted = wanted
        self._blanks = {each: each.blank(len(plan.agents)) for counted in wanted.values() for each in counted}
        self._rounding = blank(plan)

    def encode(self, result: BlockResult) -> tuple[bytes, int]:
        """A result, and how many bytes of input were read for it."""
        wanted = self._wanted.get(result.block.tensor, ())
        wrong = result.wrong if result.wrong is not None else ()
        counts = len(wrong) if result.wrong is not None else -1
        rounded = result.rounding is not None
        parts = [
            _HEAD.pack(result.bytes_read, result.elements, len(result.counted), counts, len(result.unequal), rounded),
            struct.pack(f"<{len(wrong)}q{len(result.unequal)}I", *wrong, *result.unequal),
        ]
        if result.rounding is not None:
            parts.append(result.rounding.tobytes())
        for statistic, counted in result.counted.items():
            parts += _packed(wanted.index(statistic), counted)
        return b"".join(parts), result.bytes_read

    def decode(self, batch: Batch, data: bytes) -> BlockResult:
        """The result of blocks that were done together."""
        bytes_read, elements, statistics, counts, differ, rounded = _HEAD.unpack_from(data)
        position = _HEAD.size
        numbers = struct.unpack_from(f"<{max(counts, 0)}q{differ}I", data, position)
        position += 8 * max(counts, 0) + 4 * differ
        wrong, unequal = numbers[: max(counts, 0)], numbers[max(counts, 0) :]

        def array(dtype: Any, size: int) -> np.ndarray[Any, Any]:
            nonlocal position
            found = np.frombuffer(data, dtype, size, position)
            position += found.nbytes
            return found

        like = self._rounding
        rounding = array(like.dtype, like.size).reshape(like.shape) if rounded else None
        counted: dict[Statistic, Any] = {}
        for _ in range(statistics):
            index, entries = _COUNTED.unpack_from(data, position)
            position += _COUNTED.size
            statistic = self._wanted[batch[0].tensor][index]
            like = self._blanks[statistic]
            if entries == _ALL:
                counted[statistic] = array(like.dtype, like.size).reshape(like.shape)
            else:
                places, counted[statistic] = array(np.uint32, entries), np.zeros_like(like)
                counted[statistic].reshape(-1)[places] = array(like.dtype, entries)
        return BlockResult(batch[0], elements, bytes_read, counted, rounding, wrong if counts >= 0 else None, unequal)


def _packed(index: int, counted: Counts) -> list[bytes]:
    if counted.nbytes > _LARGE:
        flat = counted.reshape(-1)
        places = np.flatnonzero(flat != 0)  # far faster than of the numbers
        if places.size * (4 + flat.itemsize) < counted.nbytes:
            return [_COUNTED.pack(index, places.size), places.astype(np.uint32).tobytes(), flat[places].tobytes()]
    return [_COUNTED.pack(index, _ALL), counted.tobytes()]
