"""Linear merging: the weighted mean of the agents themselves (model soups, Wortsman et al. 2022, arXiv 2203.05482).

merged = sum_t w_t a_t / sum_t w_t
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ramerge.kernels.elementwise import ZERO
from ramerge.methods.base import WEIGHTS, Agents, Method, Parameters, Results, for_each, weights_field
from ramerge.methods.formula import Formula, merge
from ramerge.methods.task_arithmetic import divisor


class LinearParameters(Parameters):
    """Parameters of `linear`."""

    weights: WEIGHTS = weights_field()
    normalize: bool = Field(True, description="divide by the sum of the weights, unless that is 0")


def prepare(parameters: LinearParameters, agents: Agents, _results: Results) -> Formula:
    """Weights and divisor."""
    weights = for_each(parameters.weights, agents)
    return Formula(element, (weights,), (divisor(weights) if parameters.normalize else 1.0,), base=False)


def element(_b: Any, values: Any, weights: Any, divisor: Any) -> Any:
    """One element."""
    total = ZERO
    for t in range(len(values)):
        total = total + weights[t] * values[t]
    return total / divisor


LINEAR = Method(
    name="linear",
    title="Linear (model soup)",
    source="Model Soups, arXiv 2203.05482",
    formula="sum_t w_t a_t / sum_t w_t, of the agents themselves; needs no base",
    differs="none",
    parameters=LinearParameters,
    needs_base=False,
    prepare=prepare,
    merge=merge,
)
