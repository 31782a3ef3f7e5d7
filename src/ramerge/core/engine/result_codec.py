"""Results of workers for blocks, and their encoding in journals."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ramerge.core.kernels.piece import rounding_counts
from ramerge.core.methods.base import Counts, Statistic
from ramerge.core.planning.model import Batch, Block, MergePlan

_LENGTH = struct.Struct("<I")
# Larger counts are histograms, which are nearly empty for a block, so only nonzero entries are stored.
_LARGE = 4096


Results = Mapping[tuple[Statistic, str], Any]
"""Results of statistics, by statistic and part of the model."""


@dataclass(frozen=True)
class BlockResult:
    """A worker's result for a block, or for several blocks of one tensor that were counted together.

    Attributes:
        block: the block; the first one if there are several.
        elements: elements of all blocks.
        bytes_read: bytes of input that were read.
        counted: counts by statistic.
        rounding: int64 counts of what rounding to the output's dtype does to the updates of N agents, for each point,
            laid out as in `kernels.piece.rounding_counts`; None if nothing was rounded.
        wrong: how many elements of each source are NaN, Inf or a negative importance; None if inputs and result are
            finite, all zero if only the result overflows.
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
    """Return zeroed counts of the effect of rounding on the agents' updates, for each point."""
    return np.stack([rounding_counts(len(plan.inputs.agents)) for _ in plan.points])


class ResultCodec:
    """Encodes the results of a pass as bytes, and decodes them.

    Args:
        plan: the plan.
        statistics: the statistics that the pass counts, by the tensor's index.
    """

    def __init__(self, plan: MergePlan, statistics: Mapping[int, Sequence[Statistic]]) -> None:
        self._statistics = statistics
        self._blanks = {
            each: each.blank(len(plan.inputs.agents)) for each_list in statistics.values() for each in each_list
        }
        self._rounding = blank(plan)

    def encode(self, result: BlockResult) -> tuple[bytes, int]:
        """Return a result as bytes for the journal, and how many bytes of input were read for it."""
        statistics = self._statistics.get(result.block.tensor, ())
        arrays: list[NDArray[Any]] = [] if result.rounding is None else [result.rounding]
        entries: list[tuple[int, int | None]] = []  # index of each statistic, and how many of its entries are stored
        for statistic, counts in result.counted.items():
            places = _nonzero_indices(counts)
            entries.append((statistics.index(statistic), None if places is None else places.size))
            arrays += [counts] if places is None else [places, counts.reshape(-1)[places]]
        bare = (result.bytes_read, result.elements, result.wrong, result.unequal, result.rounding is not None, entries)
        head = json.dumps(bare).encode()
        return b"".join([_LENGTH.pack(len(head)), head, *(array.tobytes() for array in arrays)]), result.bytes_read

    def decode(self, batch: Batch, data: bytes) -> BlockResult:
        """Return the result of blocks that were processed together, from bytes of the journal."""
        position = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        bytes_read, elements, wrong, unequal, has_rounding, entries = json.loads(data[_LENGTH.size : position])

        def array(dtype: DTypeLike, size: int) -> NDArray[Any]:
            nonlocal position
            values = np.frombuffer(data, dtype, size, position)
            position += values.nbytes
            return values

        like = self._rounding
        rounding = array(like.dtype, like.size).reshape(like.shape) if has_rounding else None
        counts: dict[Statistic, Any] = {}
        for index, entry_count in entries:
            statistic = self._statistics[batch[0].tensor][index]
            like = self._blanks[statistic]
            if entry_count is None:
                counts[statistic] = array(like.dtype, like.size).reshape(like.shape)
            else:
                places, counts[statistic] = array(np.uint32, entry_count), np.zeros_like(like)
                counts[statistic].reshape(-1)[places] = array(like.dtype, entry_count)
        wrong_counts = tuple(wrong) if wrong is not None else None
        return BlockResult(batch[0], elements, bytes_read, counts, rounding, wrong_counts, tuple(unequal))


def _nonzero_indices(counts: Counts) -> NDArray[np.uint32] | None:
    """Return the indices of nonzero counts, if storing only these is shorter; otherwise None."""
    if counts.nbytes <= _LARGE:
        return None
    places = np.flatnonzero(counts.reshape(-1) != 0)  # far faster on booleans than on integers
    return places.astype(np.uint32) if places.size * (4 + counts.itemsize) < counts.nbytes else None
