"""TIES-Merging: trim, elect signs, merge entries that agree (Yadav et al. 2023, arXiv 2306.01708).

Each task vector is trimmed to the fraction `density` of its entries with the largest magnitudes. For each element, the
sign of the weighted sum of the remaining values is elected; the merged task vector is the weighted mean of the values
with that sign, times `scale`. If the sum is exactly 0, no sign is elected, and the element of the base is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from pydantic import Field

from ramerge.core.kernels.elementwise import ONE, ZERO, Argument, Each
from ramerge.core.methods.base import (
    FRACTIONS,
    Agents,
    Column,
    Figure,
    Figures,
    P,
    Results,
    Statistic,
    WeightedParameters,
    for_each,
    present,
)
from ramerge.core.methods.formula import CountedMethod
from ramerge.core.methods.quantiles import Rank, RankStatistic
from ramerge.core.methods.trim import least_magnitudes, trimming

# The record has a remark if the kept share exceeds the requested share by more than this factor.
_MUCH_MORE = 1.05


class TiesParameters(WeightedParameters):
    normalize: bool = Field(True, description="divide by the sum of the weights of the agents that agree")
    trim: Literal["model", "tensor"] = Field(
        "model", description="what the largest entries are chosen from: the whole model (the paper), or each tensor"
    )
    density: FRACTIONS = Field(0.2, description="share of each task vector that is kept")


def magnitude_lies_between(tau: float, low: float, high: float) -> np.bool_:
    size = np.float32(abs(tau))
    return low <= size and size <= high


class Election(CountedMethod[P]):
    """A method that elects a sign for each element, among the values whose magnitudes it keeps."""

    @staticmethod
    def element(
        b: float, taus: Each, weights: Each, factors: Each, low: Each, high: Each, scale: float, normalize: bool
    ) -> float:
        """Sum or average the values with the elected sign, among those with magnitudes from `low` to `high`."""
        mass = ZERO
        for t in range(len(taus)):
            mass = mass + (
                weights[t] * (factors[t] * taus[t]) if magnitude_lies_between(taus[t], low[t], high[t]) else ZERO
            )
        total, voices = ZERO, ZERO
        for t in range(len(taus)):
            term = weights[t] * (factors[t] * taus[t])
            in_agreement = magnitude_lies_between(taus[t], low[t], high[t]) and (
                (term > ZERO and mass > ZERO) or (term < ZERO and mass < ZERO)
            )
            total = total + (term if in_agreement else ZERO)
            voices = voices + (weights[t] if in_agreement else ZERO)
        divisor = voices if normalize and voices != ZERO else ONE
        return b if total == ZERO else b + scale * (total / divisor)


TiesP = TypeVar("TiesP", bound=TiesParameters)


class TrimmedElection(Election[TiesP]):
    """TIES, after `drop_mask` has dropped elements of the task vectors if there is one."""

    family = "sparse"
    columns: tuple[Column, ...] = (
        Column("threshold", "threshold", ".3g", "the least |tau| that is kept, 0 for all that moved", optional=True),
        Column("asked_share", "asked", ".1%", "share of parameters that the density asks for", optional=True),
        Column("kept_share", "kept", ".1%", "share of parameters that are kept and not 0", optional=True),
    )

    def statistics(self, parameters: TiesP, agents: Agents) -> tuple[Statistic, ...]:
        return present(self.reported(parameters, agents))

    def reported(self, parameters: TiesP, agents: Agents) -> RankStatistic | None:
        """The statistic that finds the thresholds; None if nothing is trimmed."""
        densities = for_each(parameters.density, agents)
        return trimming(parameters.trim, densities, self.drop_mask(parameters, agents))

    def numbers(self, parameters: TiesP, agents: Agents, results: Results) -> tuple[Argument, ...]:
        n, least = len(agents), least_magnitudes(self.reported(parameters, agents), agents, results)
        each = (for_each(parameters.weights, agents), (1.0,) * n, least, (math.inf,) * n)
        return (*each, parameters.scale, parameters.normalize)

    def report(
        self, parameters: TiesP, parts: Sequence[tuple[tuple[Rank], ...]], agents: Agents
    ) -> list[dict[str, Figure]]:
        """Each agent's kept and requested shares, and its threshold; None if that differs between parts."""
        if not parts:
            return [{} for _ in agents]  # nothing is trimmed
        rows: list[dict[str, Figure]] = []
        for ranks in zip(*parts, strict=True):
            survivors, target, elements = (
                sum(getattr(rank, part) for (rank,) in ranks) for part in ("survivors", "target", "elements")
            )
            rows.append(
                {
                    "threshold": ranks[0][0].value if len(parts) == 1 else None,
                    "kept": survivors,
                    "kept_share": survivors / max(elements, 1),
                    "asked_share": target / max(elements, 1),
                }
            )
        return rows

    def remarks(self, figures: Figures) -> str:
        """A note if equal magnitudes keep much more of an agent than requested, or if it has no threshold."""
        share, target_share = figures.get("kept_share", 0), figures.get("asked_share", 0)
        if not math.isfinite(figures.get("threshold") or 0.0):
            return "has no threshold, because too many of its numbers are NaN or Inf"
        if share <= _MUCH_MORE * target_share:
            return ""
        return (
            f"{share:.1%} are kept where {target_share:.1%} were asked for, because many magnitudes equal the threshold"
        )


class Ties(TrimmedElection[TiesParameters]):
    name = "ties"
    title = "TIES-Merging"
    source = "TIES-Merging: Resolving Interference When Merging Models, arXiv 2306.01708; RAM paper, appendix D"
    formula = "trim to the largest `density`, elect the sign of the sum, scale * mean of those that agree"
    differs = (
        "trims each tensor by itself (as `trim: tensor` does), keeps one of several equal magnitudes, "
        "elects + where the sum is 0"
    )
    parameters = TiesParameters


TIES = Ties()
