"""Values with given ranks, such as thresholds and quantiles, found exactly by counting.

A value is the magnitude of a float32, whose bits sort like the numbers. A first read counts the upper 15 bits of all
values, which gives the bin of each rank; a second read counts the lower 16 bits of the values in these bins. All counts
are integers, so the result depends neither on blocks nor on threads, and no whole tensor is held in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels.elementwise import COARSE_BINS, FINE_BINS
from ramerge.core.kernels.piece import Piece
from ramerge.core.methods.base import Counts, Statistic

_INFINITE_BIN = 0x7F80


@dataclass(frozen=True)
class Values(ABC):
    """The values to count, in one or several rows, and the ranks to find. Subclasses are frozen dataclasses."""

    @property
    def rows(self) -> int:
        """The number of values per element, such as one for each agent."""
        return 1

    @property
    def infinite(self) -> bool:
        """Whether infinite values are counted; otherwise they are left out."""
        return False

    @abstractmethod
    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None, prerequisite_result: Any) -> bool:
        """Count a piece's values by `kernels.elementwise.histogram`. Return True if a task vector is not finite.

        Args:
            prerequisite_result: the result of the statistic that is required first; None if there is none.
        """

    @abstractmethod
    def ranks(self, row: int, count: int) -> tuple[int, ...]:
        """The ranks to find among `count` values, where 1 is the largest value; each row must have as many ranks.

        The value of rank 0 is infinity. The value of a rank above `count` is 0.
        """


@dataclass(frozen=True)
class _RankBin:
    """Where a value is: the `rank`-th largest in the bin `index` of the first read, below `above` values in others."""

    index: int
    rank: int
    above: int


@dataclass(frozen=True)
class Rank:
    """The value that has a rank.

    Attributes:
        value: the value.
        target: its rank: how many values are to be kept.
        survivors: how many nonzero values are at least as large; more than `target` if several equal `value`, which is
            common in formats with few bits.
        elements: how many elements the values come from.
    """

    value: float
    target: int
    survivors: int
    elements: int


@dataclass(frozen=True)
class _CoarseRanks(Statistic["tuple[tuple[tuple[_RankBin, ...], ...], Any]"]):
    values: Values = field(kw_only=True)

    def blank(self, agents: int) -> Counts:
        return np.zeros((self.values.rows, COARSE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        return self.values.tally(piece, counts, None, required)

    def finish(
        self, total: NDArray[np.int64], elements: int, required: Any
    ) -> tuple[tuple[tuple[_RankBin, ...], ...], Any]:
        if not self.values.infinite:
            total = total.copy()
            total[:, _INFINITE_BIN] = 0
        rows = []
        for row, counts in enumerate(total):
            value_count = min(int(counts.sum()), elements)  # the padding of the last word is counted, too
            rows.append(tuple(_find_bin(counts, rank) for rank in self.values.ranks(row, value_count)))
        return tuple(rows), required


@dataclass(frozen=True)
class RankStatistic(Statistic[tuple[tuple[Rank, ...], ...]]):
    """Find the values of ranks, in the bins that `after` finds first. The result has a `Rank` for each row and rank."""

    after: _CoarseRanks

    def blank(self, agents: int) -> Counts:
        values = self.after.values
        return np.zeros((len(values.ranks(0, 0)), values.rows, FINE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        rows, prerequisite_result = required
        flags = [
            self.after.values.tally(piece, of_rank, [bin.index for bin in bins], prerequisite_result)
            for of_rank, bins in zip(counts, zip(*rows, strict=True), strict=True)
        ]
        return any(flags)

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> tuple[tuple[Rank, ...], ...]:
        return tuple(
            tuple(_refined_rank(upper, total[rank, row], elements) for rank, upper in enumerate(bins))
            for row, bins in enumerate(required[0])
        )


def rank_statistic(values: Values, scope: str = "tensor", after: Statistic | None = None) -> RankStatistic:
    """The statistic that finds the ranks of `values` in each `scope`; `after` is a statistic required first, if any."""
    return RankStatistic(scope, _CoarseRanks(scope, after, values=values))


def _find_bin(row: NDArray[np.int64], rank: int) -> _RankBin:
    """The bin of the `rank`-th largest value; the bin of infinity for 0, the lowest bin if there are fewer values."""
    if not rank:
        return _RankBin(_INFINITE_BIN, 0, 0)
    from_top = np.cumsum(row[::-1])
    bins_above = min(int(np.searchsorted(from_top, rank)), row.size - 1)
    above = int(from_top[bins_above - 1]) if bins_above else 0
    return _RankBin(row.size - 1 - bins_above, rank - above, above)


def _refined_rank(upper: _RankBin, counts: NDArray[np.int64], elements: int) -> Rank:
    lower = _find_bin(counts, upper.rank).index if upper.rank else 0
    bits = upper.index << 16 | lower
    survivors = upper.above + int(counts[lower if bits else 1 :].sum()) if upper.rank else 0
    return Rank(float(np.uint32(bits).view(np.float32)), upper.above + upper.rank, survivors, elements)
