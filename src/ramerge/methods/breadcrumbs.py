"""Model Breadcrumbs: task vectors without their largest and their smallest entries (Davari and Belilovsky 2024, arXiv
2312.06795).

Of the n entries of a tensor's task vector the floor(gamma n) largest and so many of the smallest are removed that
floor(density n) are left; if that is not possible, fewer of the largest. Task Arithmetic (`breadcrumbs`) or TIES's
election (`breadcrumbs_ties`) then merges what is left. Entries that equal the last one that is kept are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ramerge.kernels.elementwise import ONE, ZERO, Given, Inputs, histogram
from ramerge.kernels.fixed import CHUNK
from ramerge.kernels.formats import Loop, Words
from ramerge.kernels.piece import Piece
from ramerge.kernels.sums import sums, totals
from ramerge.methods.base import (
    WEIGHTS,
    Agents,
    Counts,
    Method,
    Parameters,
    Results,
    Statistic,
    for_each,
    per_agent,
    scale_field,
    weights_field,
)
from ramerge.methods.formula import Formula, merge
from ramerge.methods.ranks import Ranked, Values, ranked
from ramerge.methods.sums import Floats, Sums
from ramerge.methods.task_arithmetic import divisor_of
from ramerge.methods.trim import every

FRACTION: Any = per_agent(0.0, 1.0)


class BreadcrumbsParameters(Parameters):
    """Parameters of `breadcrumbs`, and of `breadcrumbs_ties`."""

    scale: float = scale_field()
    weights: WEIGHTS = weights_field()
    normalize: bool = Field(False, description="divide by the sum of the weights (with election: of those that agree)")
    density: FRACTION = Field(0.1, description="share of each tensor's entries that is kept")
    gamma: FRACTION = Field(0.01, description="share of the largest entries that is removed")
    rescale: bool = Field(False, description="multiply what is kept, so that each tensor keeps its sum of magnitudes")


@dataclass(frozen=True)
class KeptRange(Values):
    """Magnitudes of task vectors, and the ranks of the smallest and the largest that are kept."""

    densities: tuple[float, ...]
    gammas: tuple[float, ...]

    @property
    def rows(self) -> int:
        """See `Values`."""
        return len(self.densities)

    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None) -> bool:
        """See `Values`."""
        which = Inputs(self.rows)
        return piece.observe(lambda loop, inputs: histogram(every, loop, inputs, which, counts, bins))

    def ranks(self, row: int, counted: int) -> tuple[int, ...]:
        """See `Values`."""
        if self.densities[row] >= 1:
            return counted + 1, 0  # all of it: from 0 to infinity
        wanted = int(self.densities[row] * counted)
        removed = min(int(self.gammas[row] * counted), counted - wanted)
        return (removed + wanted, removed + 1) if wanted else (0, counted + 1)


@dataclass(frozen=True)
class KeptMagnitudes(Sums):
    """The sums of magnitudes of each agent, of all and of what is kept: float64, shape (2, agents)."""

    spoiled = True
    after: Ranked = field(kw_only=True)
    agents: int = field(kw_only=True)

    def terms(self, agents: int) -> Sequence[tuple[int, int]]:
        """Of all, and of what is kept."""
        return totals(agents) * 2

    def count(self, piece: Piece, known: Any, counts: Counts) -> bool:
        """See `Statistic.count`."""
        which, terms = Inputs(self.agents), totals(self.agents)
        low, high = zip(*known, strict=True)

        def kernel(loop: Loop, inputs: list[Words]) -> bool:
            whole, flagged = sums(magnitude, loop, inputs, which, terms, CHUNK, piece.elements)
            kept, _ = sums(kept_magnitude, loop, inputs, which, terms, CHUNK, piece.elements, (low, high))
            self.enter(np.concatenate([whole, kept], 1), counts)
            return flagged

        return piece.observe(kernel)

    def finish(self, total: NDArray[np.int64], elements: int, known: Any) -> Floats:
        """See `Statistic.finish`."""
        return self.read(total).reshape(2, self.agents)


def magnitude(t: Any, taus: Any) -> Any:
    """What is summed of all."""
    return abs(taus[t])


def kept_magnitude(t: Any, taus: Any, low: Any, high: Any) -> Any:
    """What is summed of what is kept."""
    size = np.float32(abs(taus[t]))
    return abs(taus[t]) if low <= size and size <= high else ZERO


def statistics(parameters: BreadcrumbsParameters, agents: Agents) -> tuple[Statistic, ...]:
    """Bounds, and norms if what is kept is rescaled; nothing if everybody keeps everything."""
    densities = for_each(parameters.density, agents)
    if min(densities) >= 1:
        return ()
    bounds = ranked(KeptRange(densities, for_each(parameters.gamma, agents)))
    return (bounds, KeptMagnitudes("tensor", agents=len(agents), after=bounds)) if parameters.rescale else (bounds,)


def _each(parameters: BreadcrumbsParameters, agents: Agents, results: Results) -> tuple[tuple[float, ...], ...]:
    """Weights, factors and bounds."""
    found = [results[statistic] for statistic in statistics(parameters, agents)]
    low, high = zip(*found[0], strict=True) if found else ((0.0,) * len(agents), (math.inf,) * len(agents))
    factors = ratios(*found[1]) if parameters.rescale and found else (1.0,) * len(agents)
    return for_each(parameters.weights, agents), factors, low, high


def ratios(whole: Floats, kept: Floats) -> tuple[float, ...]:
    """Factors that give what is kept the norm of the whole; 1 where nothing is kept."""
    with np.errstate(all="ignore"):
        return tuple(np.where(kept == 0, 1.0, whole / kept).tolist())


def prepare(parameters: BreadcrumbsParameters, agents: Agents, results: Results) -> Formula:
    """The sum of what is kept."""
    each = _each(parameters, agents, results)
    below = divisor_of(each[0]) if parameters.normalize else 1.0
    return Formula(sum_element, (*each, parameters.scale, below), len(agents))


def prepare_ties(parameters: BreadcrumbsParameters, agents: Agents, results: Results) -> Formula:
    """TIES's election of what is kept."""
    given: tuple[Given, ...] = (
        *_each(parameters, agents, results),
        parameters.scale,
        float(parameters.normalize),
    )
    return Formula(elected_element, given, len(agents))


def sum_element(b: Any, taus: Any, weights: Any, factors: Any, low: Any, high: Any, scale: Any, divisor: Any) -> Any:
    """One element of the sum."""
    total = ZERO
    for t in range(len(taus)):
        size = np.float32(abs(taus[t]))
        kept = low[t] <= size and size <= high[t]
        total = total + (weights[t] * (factors[t] * taus[t]) if kept else ZERO)
    return b if total == ZERO else b + scale * (total / divisor)


def elected_element(
    b: Any, taus: Any, weights: Any, factors: Any, low: Any, high: Any, scale: Any, normalize: Any
) -> Any:
    """One element of what agrees with the elected sign."""
    mass = ZERO
    for t in range(len(taus)):
        size = np.float32(abs(taus[t]))
        kept = low[t] <= size and size <= high[t]
        mass = mass + (weights[t] * (factors[t] * taus[t]) if kept else ZERO)
    total, voices = ZERO, ZERO
    for t in range(len(taus)):
        size = np.float32(abs(taus[t]))
        kept = low[t] <= size and size <= high[t]
        term = weights[t] * (factors[t] * taus[t])
        agrees = kept and ((term > ZERO and mass > ZERO) or (term < ZERO and mass < ZERO))
        total = total + (term if agrees else ZERO)
        voices = voices + (weights[t] if agrees else ZERO)
    divisor = voices if normalize > ZERO and voices != ZERO else ONE
    return b if total == ZERO else b + scale * (total / divisor)


_SOURCE = "Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks, arXiv 2312.06795"
_DIFFERS = "keeps one of several equal magnitudes, and nothing of a tensor with fewer than 1 / gamma elements"

BREADCRUMBS = Method(
    name="breadcrumbs",
    family="sparse",
    title="Model Breadcrumbs",
    source=_SOURCE,
    formula="drop the `gamma` largest and the smallest entries, keep `density`; then scale * sum_t w_t tau_t",
    differs=_DIFFERS,
    parameters=BreadcrumbsParameters,
    statistics=statistics,
    prepare=prepare,
    merge=merge,
)
BREADCRUMBS_TIES = Method(
    name="breadcrumbs_ties",
    family="sparse",
    title="Model Breadcrumbs with TIES's election",
    source=f"{_SOURCE}; arXiv 2306.01708",
    formula="drop the `gamma` largest and the smallest entries, keep `density`; then the sum of what agrees in sign",
    differs=f"{_DIFFERS}; elects + where the sum is 0",
    parameters=BreadcrumbsParameters,
    statistics=statistics,
    prepare=prepare_ties,
    merge=merge,
)
