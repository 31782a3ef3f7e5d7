"""Values of given ranks in each tensor, such as quantiles, found exactly by counting, as in `trim`.

A value is the magnitude of a float32. A first read counts the upper 15 bits of all values, which tells the bins of the
ranks; a second one counts the lower 16 bits of the values in these bins. Infinite values are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels.elementwise import COARSE_BINS, FINE_BINS
from ramerge.kernels.piece import Piece
from ramerge.methods.base import Counts, Statistic
from ramerge.methods.trim import Bin, find

_INFINITE_BIN = 0x7F80


@dataclass(frozen=True)
class Values(ABC):
    """Values of elements in one or several rows, and the ranks to find. Subclasses are frozen dataclasses."""

    @property
    def rows(self) -> int:
        """How many values an element has."""
        return 1

    @abstractmethod
    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None) -> bool:
        """Count a piece's values as `kernels.elementwise.histogram` does; True if a task vector is not finite."""

    @abstractmethod
    def ranks(self, row: int, counted: int) -> tuple[int, ...]:
        """The ranks to find among so many values, counted from the largest, which is 1; as many for each row.

        0 stands for infinity, and ranks beyond the last one for 0.
        """


@dataclass(frozen=True)
class CoarseRanks(Statistic):
    """In which bin every value lies: for each row a bin for each rank."""

    values: Values = field(kw_only=True)

    def blank(self, agents: int) -> Counts:
        return np.zeros((self.values.rows, COARSE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        return self.values.tally(piece, counts, None)

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> tuple[tuple[Bin, ...], ...]:
        total = total.copy()
        total[:, _INFINITE_BIN] = 0
        return tuple(
            tuple(_bin(counts, rank) for rank in self.values.ranks(row, int(counts.sum())))
            for row, counts in enumerate(total)
        )


@dataclass(frozen=True)
class Ranked(Statistic):
    """The values of the ranks: for each row a float for each rank."""

    after: CoarseRanks

    def blank(self, agents: int) -> Counts:
        values = self.after.values
        return np.zeros((len(values.ranks(0, 0)), values.rows, FINE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        flags = [
            self.after.values.tally(piece, of_rank, [found.index for found in bins])
            for of_rank, bins in zip(counts, zip(*required, strict=True), strict=True)
        ]
        return any(flags)

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(_value(upper, total[rank, row]) for rank, upper in enumerate(bins))
            for row, bins in enumerate(required)
        )


def ranked(values: Values) -> Ranked:
    """The statistic of a tensor's values."""
    return Ranked("tensor", CoarseRanks("tensor", values=values))


def _bin(counts: NDArray[np.int64], rank: int) -> Bin:
    return find(counts, rank) if rank else Bin(_INFINITE_BIN, 0, 0)


def _value(upper: Bin, counts: NDArray[np.int64]) -> float:
    lower = find(counts, upper.rank).index if upper.rank else 0
    return float(np.uint32(upper.index << 16 | lower).view(np.float32))
