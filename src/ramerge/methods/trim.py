"""Trimming: the exact k-th largest magnitude of each agent's task vector, found by counting (TIES, arXiv 2306.01708).

A magnitude is |tau| as float32, whose bits order as the numbers do. A first read counts the upper 15 bits, which tells
in which bin the k-th largest lies; a second one counts the lower 16 bits of that bin. All counts are integers, so the
threshold does not depend on blocks or threads, and the task vector is never held. k = max(1, floor(density * d)) of d
elements, or none for a density of 0; what equals the threshold is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels.elementwise import COARSE_BINS, FINE_BINS, INFINITY, ONE, ZERO, Inputs, histogram
from ramerge.kernels.piece import Piece
from ramerge.methods.base import Counts, Statistic
from ramerge.methods.drop_mask import DropMask
from ramerge.methods.moved import Epsilon, factor, measured, thresholds

# The bin of infinity, where `shared` puts what lies outside of the shared region.
_OUTSIDE = 0x7F80
_INFINITE = 0x7F800000


@dataclass(frozen=True)
class Trimmed:
    """What trimming keeps of each agent.

    Attributes:
        elements: elements that were counted.
        thresholds: the least magnitude that is kept.
        asked: elements that were asked for.
        kept: elements that are kept: more than were asked for where several equal the threshold, which formats of few
            bits make many; with a threshold of 0, those that are not 0.
    """

    elements: int
    thresholds: tuple[float, ...]
    asked: tuple[int, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Bin:
    """Where a k-th largest magnitude lies: in a bin of the first count, the `rank`-th largest, below `above` others."""

    index: int
    rank: int
    above: int


@dataclass(frozen=True)
class _Upper:
    """The result of `CoarseMagnitudes`: each agent's bin, and the thresholds beyond which it has moved an element."""

    bins: tuple[Bin, ...]
    beyond: tuple[float, ...]


@dataclass(frozen=True)
class CoarseMagnitudes(Statistic):
    """The upper half of each agent's threshold.

    Attributes:
        densities: the part that each agent keeps.
        drop_mask: drops elements first (DARE); what is dropped has magnitude 0.
        shared_beyond: count only elements that several agents moved by more than this, and d is the number of these;
            in units of what `after` measures of each agent, if that is required first.
    """

    densities: tuple[float, ...] = ()
    drop_mask: DropMask | None = None
    shared_beyond: float | None = None

    def blank(self, agents: int) -> Counts:
        return np.zeros((agents, COARSE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        return self.tally(piece, counts, None, self._beyond(required))

    def _beyond(self, required: Any) -> tuple[float, ...]:
        if self.shared_beyond is None:
            return ()
        found = thresholds(self.shared_beyond, required)
        return found * (len(self.densities) // len(found))

    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None, beyond: tuple[float, ...]) -> bool:
        drop = self.drop_mask.drop(piece) if self.drop_mask else None
        value = every if self.shared_beyond is None else shared
        which = Inputs(len(self.densities))
        return piece.observe(lambda loop, inputs: histogram(value, loop, inputs, which, counts, bins, beyond, drop))

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> _Upper:
        if self.shared_beyond is not None:
            total = total.copy()
            total[:, _OUTSIDE] = 0
            elements = int(total[0].sum())
        bins = tuple(find(row, rank) for row, rank in zip(total, self.asked(elements), strict=True))
        return _Upper(bins, self._beyond(required))

    def asked(self, elements: int) -> tuple[int, ...]:
        """The rank of each agent's threshold among so many elements; 0 to keep nothing."""
        return tuple(max(1, int(density * elements)) if density else 0 for density in self.densities)


@dataclass(frozen=True)
class Fine(Statistic):
    """Each agent's threshold, `after` its upper half. Its result is `Trimmed`."""

    after: CoarseMagnitudes

    def blank(self, agents: int) -> Counts:
        return np.zeros((agents, FINE_BINS), np.uint32)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        return self.after.tally(piece, counts, [found.index for found in required.bins], required.beyond)

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> Trimmed:
        thresholds, kept = [], []
        for row, upper in zip(total, required.bins, strict=True):
            lower = find(row, upper.rank)
            bits = upper.index << 16 | lower.index if upper.rank else _INFINITE
            thresholds.append(float(np.uint32(bits).view(np.float32)))
            kept.append(upper.above + int(row[lower.index if bits else 1 :].sum()) if upper.rank else 0)
        asked = tuple(upper.above + upper.rank for upper in required.bins)
        return Trimmed(elements, tuple(thresholds), asked, tuple(kept))


def find(row: NDArray[np.int64], rank: int) -> Bin:
    """The bin that holds the `rank`-th largest; the lowest bin if there are fewer."""
    from_top = np.cumsum(row[::-1])
    passed = min(int(np.searchsorted(from_top, rank)), row.size - 1)
    above = int(from_top[passed - 1]) if passed else 0
    return Bin(row.size - 1 - passed, rank - above, above)


def trimming(
    scope: str, densities: tuple[float, ...], drop_mask: DropMask | None = None, shared_beyond: Epsilon | None = None
) -> Fine | None:
    """The statistic that finds thresholds; None if all agents keep everything."""
    if min(densities) >= 1:
        return None
    if shared_beyond is None:
        return Fine(scope, CoarseMagnitudes(scope, densities=densities, drop_mask=drop_mask))
    sizes, beyond = measured(shared_beyond), factor(shared_beyond)
    return Fine(scope, CoarseMagnitudes(scope, sizes, densities=densities, shared_beyond=beyond))


def every(t: Any, taus: Any) -> Any:
    return taus[t]


def shared(t: Any, taus: Any, *epsilons: Any) -> Any:
    """Count the shared region: infinite outside of it, 0 inside for an agent that has not moved the element."""
    movers = ZERO
    for s in range(len(taus)):
        movers = movers + (ONE if abs(taus[s]) > epsilons[s] else ZERO)
    return (taus[t] if abs(taus[t]) > epsilons[t] else ZERO) if movers > ONE else INFINITY
