"""Trimming: the exact k-th largest magnitude of each agent's task vector, found by counting (TIES, arXiv 2306.01708).

For d elements, k = max(1, floor(density * d)), or 0 for a density of 0. Magnitudes equal to the threshold are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramerge.core.kernels.elementwise import INFINITY, ONE, ZERO, Each, Inputs, histogram
from ramerge.core.kernels.piece import Piece
from ramerge.core.methods.base import Agents, Counts, Results
from ramerge.core.methods.drop_mask import DropMask
from ramerge.core.methods.moved import Epsilon, factor, measured, thresholds
from ramerge.core.methods.quantiles import RankStatistic, Values, rank_statistic


@dataclass(frozen=True)
class Magnitudes(Values):
    """Count magnitudes of task vectors, and find each agent's threshold.

    Attributes:
        drop_mask: drops elements first (DARE); dropped elements have magnitude 0.
        shared_beyond: if set, only elements that several agents moved by more than this are counted, and d is their
            number; in units of each agent's root mean square if that statistic is required first.
    """

    densities: Each
    drop_mask: DropMask | None = None
    shared_beyond: float | None = None

    @property
    def rows(self) -> int:
        return len(self.densities)

    @property
    def infinite(self) -> bool:
        return self.shared_beyond is None

    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None, prerequisite_result: Any) -> bool:
        drop = self.drop_mask.drop(piece) if self.drop_mask else None
        value, which = every if self.shared_beyond is None else _shared_magnitude, Inputs(self.rows)
        epsilons = thresholds(self.shared_beyond, prerequisite_result) if self.shared_beyond is not None else ()
        beyond = epsilons * (self.rows // max(len(epsilons), 1))
        return piece.observe(lambda loop, inputs: histogram(value, loop, inputs, which, counts, bins, beyond, drop))

    def ranks(self, row: int, count: int) -> tuple[int, ...]:
        return (max(1, int(self.densities[row] * count)) if self.densities[row] else 0,)


def trimming(
    scope: str, densities: Each, drop_mask: DropMask | None = None, shared_beyond: Epsilon | None = None
) -> RankStatistic | None:
    """The statistic that finds the thresholds; None if all agents keep everything."""
    if min(densities) >= 1:
        return None
    if shared_beyond is None:
        return rank_statistic(Magnitudes(densities, drop_mask), scope)
    return rank_statistic(Magnitudes(densities, None, factor(shared_beyond)), scope, measured(shared_beyond))


def least_magnitudes(statistic: RankStatistic | None, agents: Agents, results: Results) -> Each:
    """Each agent's threshold; 0 if everything is kept."""
    if statistic is None:
        return (0.0,) * len(agents)
    return tuple(rank.value for (rank,) in results[statistic])


def every(t: int, taus: Each) -> float:
    return taus[t]


def _shared_magnitude(t: int, taus: Each, *epsilons: float) -> float:
    """The value to count: infinite outside the shared region; 0 inside it if the agent has not moved the element."""
    movers = ZERO
    for s in range(len(taus)):
        movers = movers + (ONE if abs(taus[s]) > epsilons[s] else ZERO)
    return (taus[t] if abs(taus[t]) > epsilons[t] else ZERO) if movers > ONE else INFINITY
