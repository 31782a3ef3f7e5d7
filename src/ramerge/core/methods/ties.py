"""TIES-Merging: trim, elect signs, merge what agrees (Yadav et al. 2023, arXiv 2306.01708).

Each task vector is trimmed to its largest `density` fraction by magnitude. The sign of the weighted sum of what is left
is elected, element by element; the merged task vector is the weighted mean of those that agree with it, times `scale`.
Where the sum is exactly 0, no sign is elected and the base stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ramerge.core.kernels.elementwise import ONE, ZERO, Inputs
from ramerge.core.methods.base import FRACTIONS, Agents, Column, Method, Results, WeightedParameters, for_each, present
from ramerge.core.methods.drop_mask import DropMask
from ramerge.core.methods.formula import Formula, merge
from ramerge.core.methods.ranks import Rank, Ranked
from ramerge.core.methods.trim import least_kept, trimming

# What is kept beyond what was asked for is worth a word from here on.
_MUCH_MORE = 1.05


class TiesParameters(WeightedParameters):
    """Parameters of `ties`."""

    normalize: bool = Field(True, description="divide by the sum of the weights of the agents that agree")
    trim: Literal["model", "tensor"] = Field(
        "model", description="what the largest entries are chosen from: the whole model (the paper), or each tensor"
    )
    density: FRACTIONS = Field(0.2, description="share of each task vector that is kept")


def thresholds(parameters: Any, agents: Agents, drop_mask: DropMask | None = None) -> Ranked | None:
    """The statistic that finds thresholds, if anything is trimmed."""
    return trimming(parameters.trim, for_each(parameters.density, agents), drop_mask)


def formula(parameters: Any, agents: Agents, results: Results, drop_mask: DropMask | None = None) -> Formula:
    n, least = len(agents), least_kept(thresholds(parameters, agents, drop_mask), agents, results)
    given = (for_each(parameters.weights, agents), (1.0,) * n, least, (math.inf,) * n, parameters.scale)
    return Formula(element, (*given, parameters.normalize), Inputs(n), drop_mask=drop_mask)


def element(b: Any, taus: Any, weights: Any, factors: Any, low: Any, high: Any, scale: Any, normalize: Any) -> Any:
    """Mass that agrees with the elected sign, of the magnitudes between `low` and `high`, each times its factor."""
    mass = ZERO
    for t in range(len(taus)):
        mass = mass + (weights[t] * (factors[t] * taus[t]) if lies(taus[t], low[t], high[t]) else ZERO)
    total, voices = ZERO, ZERO
    for t in range(len(taus)):
        term = weights[t] * (factors[t] * taus[t])
        agrees = lies(taus[t], low[t], high[t]) and ((term > ZERO and mass > ZERO) or (term < ZERO and mass < ZERO))
        total = total + (term if agrees else ZERO)
        voices = voices + (weights[t] if agrees else ZERO)
    divisor = voices if normalize and voices != ZERO else ONE
    return b if total == ZERO else b + scale * (total / divisor)


def lies(tau: Any, low: Any, high: Any) -> Any:
    size = np.float32(abs(tau))
    return low <= size and size <= high


def report(_parameters: Any, parts: Sequence[tuple[tuple[Rank], ...]], agents: Agents) -> list[dict[str, Any]]:
    """Each agent's threshold, where there is one for all of it, and what is kept of what was asked for."""
    if not parts:
        return [{} for _ in agents]  # nothing is trimmed
    rows = []
    for ranks in zip(*parts, strict=True):
        kept, asked, elements = (
            sum(getattr(rank, part) for (rank,) in ranks) for part in ("kept", "asked", "elements")
        )
        rows.append(
            {
                "threshold": ranks[0][0].value if len(parts) == 1 else None,
                "kept": kept,
                "kept_share": kept / max(elements, 1),
                "asked_share": asked / max(elements, 1),
            }
        )
    return rows


def remarks(figures: Mapping[str, Any]) -> str:
    """Says so where equal magnitudes make much more of an agent stay than was asked for."""
    kept, asked = figures.get("kept_share", 0), figures.get("asked_share", 0)
    if not math.isfinite(figures.get("threshold") or 0.0):
        return "has no threshold, because too many of its numbers are NaN or Inf"
    if kept <= _MUCH_MORE * asked:
        return ""
    return f"{kept:.1%} are kept where {asked:.1%} were asked for, because many magnitudes equal the threshold"


COLUMNS = (
    Column("threshold", "threshold", ".3g", "the least |tau| that is kept, 0 for all that moved", optional=True),
    Column("asked_share", "asked", ".1%", "share of parameters that the density asks for", optional=True),
    Column("kept_share", "kept", ".1%", "share of parameters that are kept and not 0", optional=True),
)

TIES = Method(
    name="ties",
    family="sparse",
    compared=True,
    title="TIES-Merging",
    source="TIES-Merging: Resolving Interference When Merging Models, arXiv 2306.01708; RAM paper, appendix D",
    formula="trim to the largest `density`, elect the sign of the sum, scale * mean of those that agree",
    differs="trims each tensor by itself (as `trim: tensor` does), keeps one of several equal magnitudes, "
    "elects + where the sum is 0",
    parameters=TiesParameters,
    statistics=lambda parameters, agents: present(thresholds(parameters, agents)),
    reported=thresholds,
    report=report,
    remarks=remarks,
    columns=COLUMNS,
    prepare=formula,
    merge=merge,
)
