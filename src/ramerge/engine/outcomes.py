"""Outcomes of a pass as bytes, for journals, and back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramerge.engine.worker import Outcome, blank
from ramerge.methods.base import Counted, Counts
from ramerge.planning.model import Batch, Plan

# bytes that were read, elements, number of statistics, of entries of `wrong` or -1, of `unequal`, whether roundings are
# counted
_HEAD = struct.Struct("<QQHiHB")
# index of the statistic, number of entries that are not 0, or _ALL
_COUNTED = struct.Struct("<HI")
_ALL = 2**32 - 1
# Of histograms, which are nearly empty for a block, only the entries that are not 0 are kept.
_LARGE = 4096


class Outcomes:
    """A codec of the outcomes of a pass.

    Args:
        plan: the plan.
        wanted: what the pass counts, by the tensor's index.
    """

    def __init__(self, plan: Plan, wanted: Mapping[int, Sequence[Counted]]) -> None:
        self._wanted = wanted
        self._blanks = {each: each.blank(len(plan.agents)) for counted in wanted.values() for each in counted}
        self._rounding = blank(plan)

    def encode(self, outcome: Outcome) -> tuple[bytes, int]:
        """An outcome, and how many bytes of input were read for it."""
        wanted = self._wanted.get(outcome.block.tensor, ())
        wrong = outcome.wrong if outcome.wrong is not None else ()
        counts = len(wrong) if outcome.wrong is not None else -1
        rounded = outcome.rounding is not None
        parts = [
            _HEAD.pack(
                outcome.bytes_read, outcome.elements, len(outcome.counted), counts, len(outcome.unequal), rounded
            ),
            struct.pack(f"<{len(wrong)}q{len(outcome.unequal)}I", *wrong, *outcome.unequal),
        ]
        if outcome.rounding is not None:
            parts.append(outcome.rounding.tobytes())
        for statistic, counted in outcome.counted.items():
            parts += _packed(wanted.index(statistic), counted)
        return b"".join(parts), outcome.bytes_read

    def decode(self, batch: Batch, data: bytes) -> Outcome:
        """The outcome of blocks that were done together."""
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
        counted: dict[Counted, Any] = {}
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
        return Outcome(batch[0], elements, bytes_read, counted, rounding, wrong if counts >= 0 else None, unequal)


def _packed(index: int, counted: Counts) -> list[bytes]:
    """Counts of a statistic, by its index."""
    if counted.nbytes > _LARGE:
        flat = counted.reshape(-1)
        places = np.flatnonzero(flat != 0)  # far faster than of the numbers
        if places.size * (4 + flat.itemsize) < counted.nbytes:
            return [_COUNTED.pack(index, places.size), places.astype(np.uint32).tobytes(), flat[places].tobytes()]
    return [_COUNTED.pack(index, _ALL), counted.tobytes()]
