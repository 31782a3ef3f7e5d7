"""SCE: select, calculate, erase (Wan et al. 2024, FuseChat, arXiv 2408.07990).

Select the elements of a tensor in which the agents differ most, by their variance over agents. Calculate the agents'
weights for the tensor, proportional to their mean squares over the selected elements. Erase values whose sign differs
from the sign of the sum. tau is the weighted mean of the remaining values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ramerge.core.kernels.elementwise import INFINITY, ZERO, Argument, Each, Inputs, histogram
from ramerge.core.kernels.piece import Piece
from ramerge.core.kernels.sums import squares
from ramerge.core.methods.base import Agents, Counts, Parameters, Results
from ramerge.core.methods.formula import CountedMethod
from ramerge.core.methods.quantiles import Values, rank_statistic
from ramerge.core.methods.sums import Floats, Summand, Sums

LEAST_WEIGHT = cast(float, np.float32(1e-6))


class SceParameters(Parameters):
    select_topk: float = Field(
        1.0, ge=0, le=1, description="share of a tensor's elements with any variance that is selected; 1: all elements"
    )


@dataclass(frozen=True)
class Variances(Values):
    """Count the variances of elements over agents that are not 0, and find the least selected one."""

    agents: int
    topk: float

    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None, _required: object) -> bool:
        which = Inputs(self.agents)
        return piece.observe(
            lambda loop, inputs: histogram(_counted_variance, loop, inputs, which, counts, bins, rows=1)
        )

    def ranks(self, row: int, count: int) -> tuple[int, ...]:
        return (int(self.topk * count),)


@dataclass(frozen=True)
class SquareMeans(Sums[tuple[Floats, float]]):
    """Each agent's sum of squares over the selected elements: float64, shape (agents,).

    The statistic `after` finds the least selected variance; without it, all elements are selected.
    """

    terms = staticmethod(squares)

    def summands(self, required: Any) -> list[Summand]:
        return [Summand(_selected_square, common=(_least_selected_square(required),))]

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> tuple[Floats, float]:
        """The sums, and the least selected variance."""
        return self.read(total), _least_selected_square(required)


def _least_selected_square(required: Any) -> float:
    return required[0][0].value if required is not None else 0.0


def _variance(taus: Each) -> np.float32:
    """The variance of an element over agents, as float32.

    Many elements of 16-bit agents have equal variances. If they were computed in float32, rounding would depend on the
    order of the agents, and so would the selection. These sums are exact in float64, because nothing is divided first.
    """
    count, total, squares = np.float64(len(taus)), np.float64(0), np.float64(0)
    for t in range(len(taus)):
        total = total + np.float64(taus[t])
    for t in range(len(taus)):
        squares = squares + (count * taus[t] - total) * (count * taus[t] - total)
    return np.float32(squares / (count * count * count))


def _counted_variance(_t: int, taus: Each) -> float | np.float32:
    variance = _variance(taus)
    return variance if variance > ZERO else INFINITY


def _selected_square(own: int, taus: Each, least: float) -> float:
    return taus[own] if _variance(taus) >= least else ZERO


def _square_means(parameters: SceParameters, agents: Agents) -> SquareMeans:
    before = None
    if parameters.select_topk < 1:
        before = rank_statistic(Variances(len(agents), parameters.select_topk))
    return SquareMeans("tensor", before)


class Sce(CountedMethod[SceParameters]):
    name = "sce"
    family = "sparse"
    title = "Select, calculate, erase"
    source = "FuseChat: Knowledge Fusion of Chat Models, arXiv 2408.07990"
    formula = (
        "of the `select_topk` largest variances over agents: sum_t s_t tau_t / sum_t s_t of those that agree with "
        "the sign of the sum, s_t the mean of tau_t^2"
    )
    differs = "weighs all agents alike where mean squares sum to less than 1e-6, as those of RL agents do"
    parameters = SceParameters

    def statistics(self, parameters: SceParameters, agents: Agents) -> tuple[SquareMeans]:
        return (_square_means(parameters, agents),)

    def numbers(self, parameters: SceParameters, agents: Agents, results: Results) -> tuple[Argument, ...]:
        squares, least = results[_square_means(parameters, agents)]
        total = squares.sum()
        weights = squares / total if total != 0 else np.full(len(agents), 1 / len(agents))
        return tuple(weights.tolist()), least

    @staticmethod
    def element(b: float, taus: Each, weights: Each, least: float) -> float:
        mass = ZERO
        for t in range(len(taus)):
            mass = mass + taus[t]
        total, voices = ZERO, ZERO
        for t in range(len(taus)):
            in_agreement = taus[t] > ZERO if mass >= ZERO else taus[t] < ZERO
            total = total + (weights[t] * taus[t] if in_agreement else ZERO)
            voices = voices + (weights[t] if in_agreement else ZERO)
        stays = total == ZERO or _variance(taus) < least
        return b if stays else b + total / (voices if voices > LEAST_WEIGHT else LEAST_WEIGHT)


SCE = Sce()
