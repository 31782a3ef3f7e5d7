"""Linear merging: the weighted mean of the agents themselves (model soups, Wortsman et al. 2022, arXiv 2203.05482).

merged = sum_t w_t a_t / sum_t w_t
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from ramerge.kernels.elementwise import ZERO
from ramerge.methods.base import WEIGHTS, Agents, Method, Parameters, Results, for_each, weights_field
from ramerge.methods.formula import Formula, merge


class LinearParameters(Parameters):
    """Parameters of `linear`."""

    weights: WEIGHTS = weights_field()
    normalize: bool = Field(True, description="divide by the sum of the weights")

    @model_validator(mode="after")
    def _is_a_mean(self) -> LinearParameters:
        weights = self.weights.values() if isinstance(self.weights, Mapping) else [self.weights]
        if self.normalize and abs(sum(weights)) < 1e-8:
            raise ValueError("weights sum to 0, so there is no mean; to combine differences use task_arithmetic")
        return self


def prepare(parameters: LinearParameters, agents: Agents, _results: Results) -> Formula:
    """Weights and divisor."""
    weights = for_each(parameters.weights, agents)
    return Formula(element, (weights,), (sum(weights) if parameters.normalize else 1.0,), base=False)


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
    differs="there is no difference",
    parameters=LinearParameters,
    needs_base=False,
    prepare=prepare,
    merge=merge,
)
