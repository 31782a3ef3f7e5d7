"""Outcomes of a pass as bytes, for journals, and back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zstandard

from ramerge.engine.worker import Outcome, blank
from ramerge.methods.base import Counted
from ramerge.planning.model import Block, Plan

# bytes that were read, number of statistics, of elements of `wrong` or -1, of `unequal`, whether roundings are counted
_HEAD = struct.Struct("<QHiHB")
# Histograms, which are nearly empty for a block, are compressed.
_LARGE = 4096
_FASTEST = -5


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
            _HEAD.pack(outcome.bytes_read, len(outcome.counted), counts, len(outcome.unequal), rounded),
            struct.pack(f"<{len(wrong)}q{len(outcome.unequal)}I", *wrong, *outcome.unequal),
        ]
        if outcome.rounding is not None:
            parts.append(outcome.rounding.tobytes())
        for statistic, counted in outcome.counted.items():
            parts += [struct.pack("<H", wanted.index(statistic)), counted.tobytes()]
        data = b"".join(parts)
        if len(data) < _LARGE:
            return b"\0" + data, outcome.bytes_read
        return b"\1" + zstandard.ZstdCompressor(_FASTEST).compress(data), outcome.bytes_read

    def decode(self, block: Block, data: bytes) -> Outcome:
        """The outcome of a block."""
        packed, data = data[0], data[1:]
        data = zstandard.ZstdDecompressor().decompress(data) if packed else data
        bytes_read, statistics, counts, differ, rounded = _HEAD.unpack_from(data)
        position = _HEAD.size
        numbers = struct.unpack_from(f"<{max(counts, 0)}q{differ}I", data, position)
        position += 8 * max(counts, 0) + 4 * differ
        wrong, unequal = numbers[: max(counts, 0)], numbers[max(counts, 0) :]

        def array(like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            nonlocal position
            found = np.frombuffer(data, like.dtype, like.size, position).reshape(like.shape)
            position += like.nbytes
            return found

        rounding = array(self._rounding) if rounded else None
        counted: dict[Counted, Any] = {}
        for _ in range(statistics):
            (index,) = struct.unpack_from("<H", data, position)
            position += 2
            statistic = self._wanted[block.tensor][index]
            counted[statistic] = array(self._blanks[statistic])
        return Outcome(block, bytes_read, counted, rounding, wrong if counts >= 0 else None, unequal)
