"""Model Breadcrumbs: task vectors without their largest and their smallest entries (Davari and Belilovsky 2024, arXiv
2312.06795).

For a tensor of n entries, the floor(gamma n) largest entries of the task vector are removed, and then the smallest
until floor(density n) are left; if that is not possible, fewer of the largest are removed. Task Arithmetic
(`breadcrumbs`) or TIES's election (`breadcrumbs_ties`) then merges the remaining entries. Entries equal to the last
kept one are kept, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ramerge.core.kernels.elementwise import ZERO, Argument, Each, Inputs, histogram
from ramerge.core.kernels.piece import Piece
from ramerge.core.kernels.sums import totals
from ramerge.core.methods.base import FRACTIONS, Agents, Counts, Results, Statistic, WeightedParameters, for_each
from ramerge.core.methods.formula import CountedMethod
from ramerge.core.methods.quantiles import Rank, RankStatistic, Values, rank_statistic
from ramerge.core.methods.sums import Floats, Summand, Sums
from ramerge.core.methods.task_arithmetic import divisor_of
from ramerge.core.methods.ties import Election, magnitude_lies_between
from ramerge.core.methods.trim import every


class BreadcrumbsParameters(WeightedParameters):
    """Parameters of `breadcrumbs` and `breadcrumbs_ties`."""

    normalize: bool = Field(False, description="divide by the sum of the weights (with election: of those that agree)")
    density: FRACTIONS = Field(0.1, description="share of each tensor's entries that is kept")
    gamma: FRACTIONS = Field(0.01, description="share of the largest entries that is removed")
    rescale: bool = Field(False, description="multiply what is kept, so that each tensor keeps its sum of magnitudes")


@dataclass(frozen=True)
class KeptRange(Values):
    """Count magnitudes of task vectors, and find the smallest and the largest that are kept."""

    densities: Each
    gammas: Each

    @property
    def rows(self) -> int:
        return len(self.densities)

    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None, _required: object) -> bool:
        which = Inputs(self.rows)
        return piece.observe(lambda loop, inputs: histogram(every, loop, inputs, which, counts, bins))

    def ranks(self, row: int, count: int) -> tuple[int, ...]:
        if self.densities[row] >= 1:
            return count + 1, 0  # keep everything: from 0 to infinity
        keep = int(self.densities[row] * count)
        outliers = min(int(self.gammas[row] * count), count - keep)
        return (outliers + keep, outliers + 1) if keep else (0, count + 1)


@dataclass(frozen=True)
class KeptMagnitudes(Sums[Floats]):
    """Each agent's sum of magnitudes over all elements, and over the kept elements: float64, shape (2, agents)."""

    after: RankStatistic = field(kw_only=True)
    spoiled = True
    terms = staticmethod(totals)
    kinds = 2

    def summands(self, required: Any) -> list[Summand]:
        return [Summand(_magnitude), Summand(_kept_magnitude, _magnitude_bounds(required))]

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> Floats:
        return self.read(total).reshape(2, -1)


def _magnitude_bounds(rows: Sequence[Sequence[Rank]]) -> tuple[Each, ...]:
    """Each agent's smallest kept magnitude, and each agent's largest."""
    return tuple(zip(*[[rank.value for rank in row] for row in rows], strict=True))


def _magnitude(t: int, taus: Each) -> float:
    return abs(taus[t])


def _kept_magnitude(t: int, taus: Each, low: float, high: float) -> float:
    return abs(taus[t]) if magnitude_lies_between(taus[t], low, high) else ZERO


def ratios(whole: Floats, part: Floats) -> Each:
    """Factors that restore the sum of magnitudes after dropping; 1 if nothing is kept."""
    with np.errstate(all="ignore"):
        return tuple(np.where(part == 0, 1.0, whole / part).tolist())


class _BreadcrumbsMethod(CountedMethod[BreadcrumbsParameters]):
    """Task vectors without their largest and their smallest entries."""

    family = "sparse"
    source = "Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks, arXiv 2312.06795"
    differs = "keeps one of several equal magnitudes, and nothing of a tensor with fewer than 1 / gamma elements"
    parameters = BreadcrumbsParameters

    def statistics(self, parameters: BreadcrumbsParameters, agents: Agents) -> tuple[Statistic, ...]:
        densities = for_each(parameters.density, agents)
        if min(densities) >= 1:
            return ()
        bounds = rank_statistic(KeptRange(densities, for_each(parameters.gamma, agents)))
        return (bounds, KeptMagnitudes("tensor", after=bounds)) if parameters.rescale else (bounds,)

    def by_agent(self, parameters: BreadcrumbsParameters, agents: Agents, results: Results) -> tuple[Each, ...]:
        """Each agent's weight, factor, smallest kept magnitude and largest kept magnitude."""
        values = [results[statistic] for statistic in self.statistics(parameters, agents)]
        low, high = _magnitude_bounds(values[0]) if values else ((0.0,) * len(agents), (math.inf,) * len(agents))
        factors = ratios(*values[1]) if parameters.rescale and values else (1.0,) * len(agents)
        return for_each(parameters.weights, agents), factors, low, high


class Breadcrumbs(_BreadcrumbsMethod):
    name = "breadcrumbs"
    title = "Model Breadcrumbs"
    formula = "drop the `gamma` largest and the smallest entries, keep `density`; then scale * sum_t w_t tau_t"

    def numbers(self, parameters: BreadcrumbsParameters, agents: Agents, results: Results) -> tuple[Argument, ...]:
        each = self.by_agent(parameters, agents, results)
        return (*each, parameters.scale, divisor_of(each[0]) if parameters.normalize else 1.0)

    @staticmethod
    def element(
        b: float, taus: Each, weights: Each, factors: Each, low: Each, high: Each, scale: float, divisor: float
    ) -> float:
        total = ZERO
        for t in range(len(taus)):
            total = total + (
                weights[t] * (factors[t] * taus[t]) if magnitude_lies_between(taus[t], low[t], high[t]) else ZERO
            )
        return b if total == ZERO else b + scale * (total / divisor)


class BreadcrumbsTies(_BreadcrumbsMethod, Election[BreadcrumbsParameters]):
    name = "breadcrumbs_ties"
    title = "Model Breadcrumbs with TIES's election"
    source: str = f"{_BreadcrumbsMethod.source}; arXiv 2306.01708"
    formula = "drop the `gamma` largest and the smallest entries, keep `density`; then the sum of what agrees in sign"
    differs: str = f"{_BreadcrumbsMethod.differs}; elects + where the sum is 0"

    def numbers(self, parameters: BreadcrumbsParameters, agents: Agents, results: Results) -> tuple[Argument, ...]:
        return (*self.by_agent(parameters, agents, results), parameters.scale, parameters.normalize)


BREADCRUMBS = Breadcrumbs()
BREADCRUMBS_TIES = BreadcrumbsTies()
