"""Task Arithmetic: the weighted sum of task vectors (Ilharco et al. 2023, arXiv 2212.04089).

tau = scale * sum_t w_t * tau_t
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ramerge.kernels.elementwise import ZERO
from ramerge.methods.base import WEIGHTS, Agents, Method, Parameters, Results, for_each, scale_field, weights_field
from ramerge.methods.coins import Coins
from ramerge.methods.formula import Formula, merge


class TaskArithmeticParameters(Parameters):
    """Parameters of `task_arithmetic`."""

    scale: float = scale_field()
    weights: WEIGHTS = weights_field()
    normalize: bool = Field(False, description="divide by the sum of the weights, unless that is 0")


def divisor(weights: tuple[float, ...]) -> float:
    """What a normalised sum is divided by: the sum of the weights, unless that is 0."""
    total = sum(weights)
    return total if abs(total) >= 1e-8 else 1.0


def prepare(parameters: TaskArithmeticParameters, agents: Agents, _results: Results) -> Formula:
    """Weights, scale and divisor."""
    return formula(parameters, agents)


def formula(parameters: TaskArithmeticParameters, agents: Agents, coins: Coins | None = None) -> Formula:
    """The sum, or the mean, with its numbers."""
    weights = for_each(parameters.weights, agents)
    if not parameters.normalize:
        return Formula(element, (weights,), (parameters.scale,), coins=coins)
    return Formula(mean_element, (weights,), (parameters.scale, divisor(weights)), coins=coins)


def element(b: Any, taus: Any, weights: Any, scale: Any) -> Any:
    """One element of the sum."""
    total = ZERO
    for t in range(len(taus)):
        total = total + weights[t] * taus[t]
    return b + scale * total


def mean_element(b: Any, taus: Any, weights: Any, scale: Any, divisor: Any) -> Any:
    """One element of the mean."""
    total = ZERO
    for t in range(len(taus)):
        total = total + weights[t] * taus[t]
    return b + scale * (total / divisor)


TASK_ARITHMETIC = Method(
    name="task_arithmetic",
    title="Task Arithmetic",
    source="Editing Models with Task Arithmetic, arXiv 2212.04089; RAM paper, appendix D",
    formula="scale * sum_t w_t tau_t",
    differs="computes in the files' dtype, and ramerge in float32; otherwise there is no difference",
    parameters=TaskArithmeticParameters,
    prepare=prepare,
    merge=merge,
)
