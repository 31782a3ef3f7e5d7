"""Values of given ranks, such as thresholds and quantiles, found exactly by counting.

A value is the magnitude of a float32, whose bits order as the numbers do. A first read counts the upper 15 bits of all
values, which gives the bins of the ranks; a second one counts the lower 16 bits of the values in these bins. All counts
are integers, so the values depend neither on blocks nor on threads, and a tensor is never held.
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
    """Values of elements in one or several rows, and the ranks to find. Subclasses are frozen dataclasses."""

    @property
    def rows(self) -> int:
        """Number of values of an element."""
        return 1

    @property
    def infinite(self) -> bool:
        """Whether infinite values count; otherwise they are left out."""
        return False

    @abstractmethod
    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None, required: Any) -> bool:
        """Count a piece's values as `kernels.elementwise.histogram` does; True if a task vector is not finite.

        `required` is the result of the statistic that is required first, if there is one.
        """

    @abstractmethod
    def ranks(self, row: int, count: int) -> tuple[int, ...]:
        """The ranks to find among so many values, counted from the largest, which is 1; as many for each row.

        0 stands for infinity, and ranks beyond the last one for 0.
        """


@dataclass(frozen=True)
class _Bin:
    """Place of a value: in a bin of the first count, the `rank`-th largest there, below `above` others."""

    index: int
    rank: int
    above: int


@dataclass(frozen=True)
class Rank:
    """Thresholds of a rank.

    Attributes:
        survivors: how many values are not 0 and at least as large: more than `target` where several equal
            `value`, which formats of few bits make many.
    """

    value: float
    target: int
    survivors: int
    elements: int


@dataclass(frozen=True)
class _CoarseRanks(Statistic["tuple[tuple[tuple[_Bin, ...], ...], Any]"]):
    values: Values = field(kw_only=True)

    def blank(self, agents: int) -> Counts:
        return np.zeros((self.values.rows, COARSE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        return self.values.tally(piece, counts, None, required)

    def finish(
        self, total: NDArray[np.int64], elements: int, required: Any
    ) -> tuple[tuple[tuple[_Bin, ...], ...], Any]:
        if not self.values.infinite:
            total = total.copy()
            total[:, _INFINITE_BIN] = 0
        rows = []
        for row, counts in enumerate(total):
            value_count = min(int(counts.sum()), elements)  # what fills the last word up is counted, too
            rows.append(tuple(_find(counts, rank) for rank in self.values.ranks(row, value_count)))
        return tuple(rows), required


@dataclass(frozen=True)
class RankStatistic(Statistic[tuple[tuple[Rank, ...], ...]]):
    """The values of ranks, `after` the bins that they lie in. The result has a `Rank` for each rank of each row."""

    after: _CoarseRanks

    def blank(self, agents: int) -> Counts:
        values = self.after.values
        return np.zeros((len(values.ranks(0, 0)), values.rows, FINE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        rows, before = required
        flags = [
            self.after.values.tally(piece, of_rank, [bin.index for bin in bins], before)
            for of_rank, bins in zip(counts, zip(*rows, strict=True), strict=True)
        ]
        return any(flags)

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> tuple[tuple[Rank, ...], ...]:
        return tuple(
            tuple(_refined_rank(upper, total[rank, row], elements) for rank, upper in enumerate(bins))
            for row, bins in enumerate(required[0])
        )


def rank_statistic(values: Values, scope: str = "tensor", after: Statistic | None = None) -> RankStatistic:
    """The statistic of values over a whole scope, where `after` may be required first."""
    return RankStatistic(scope, _CoarseRanks(scope, after, values=values))


def _find(row: NDArray[np.int64], rank: int) -> _Bin:
    """The bin that holds the `rank`-th largest; that of infinity for 0, and the lowest one if there are fewer."""
    if not rank:
        return _Bin(_INFINITE_BIN, 0, 0)
    from_top = np.cumsum(row[::-1])
    bins_above = min(int(np.searchsorted(from_top, rank)), row.size - 1)
    above = int(from_top[bins_above - 1]) if bins_above else 0
    return _Bin(row.size - 1 - bins_above, rank - above, above)


def _refined_rank(upper: _Bin, counts: NDArray[np.int64], elements: int) -> Rank:
    lower = _find(counts, upper.rank).index if upper.rank else 0
    bits = upper.index << 16 | lower
    survivors = upper.above + int(counts[lower if bits else 1 :].sum()) if upper.rank else 0
    return Rank(float(np.uint32(bits).view(np.float32)), upper.above + upper.rank, survivors, elements)
