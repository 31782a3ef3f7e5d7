"""Fisher merging: task vectors weighted by diagonal Fisher information (Matena & Raffel 2022, arXiv 2111.09832).

tau = scale * sum_t F_t tau_t / sum_t F_t, and 0 where no agent has any importance. The importances F_t are tensors of
the names and shapes of the model's; `ramerge fisher` estimates them.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ramerge.kernels.elementwise import ZERO
from ramerge.methods.base import Agents, Method, Parameters, Results, for_each, per_agent, scale_field
from ramerge.methods.formula import Formula, merge

WEIGHTS: Any = per_agent(0.0)


class FisherParameters(Parameters):
    """Parameters of `fisher`."""

    scale: float = scale_field()
    weights: WEIGHTS = Field(1.0, description="factor of each agent's importances")


def prepare(parameters: FisherParameters, agents: Agents, _results: Results) -> Formula:
    """Weights and scale."""
    weights = for_each(parameters.weights, agents)
    return Formula(element, (weights,), (parameters.scale,), importances=True)


def element(b: Any, taus: Any, importances: Any, weights: Any, scale: Any) -> Any:
    """One element."""
    total, mass = ZERO, ZERO
    for t in range(len(taus)):
        importance = weights[t] * importances[t]
        total = total + importance * taus[t]
        mass = mass + importance
    overflow = mass - mass  # NaN where the importances are too large to be added up, and 0 elsewhere
    merged = b + scale * (total / mass) if overflow == ZERO else overflow
    return merged if mass > ZERO else b


FISHER = Method(
    name="fisher",
    title="Fisher merging",
    source="Merging Models with Fisher-Weighted Averaging, arXiv 2111.09832; RAM paper, appendix D",
    formula="scale * sum_t F_t tau_t / sum_t F_t, 0 where sum_t F_t = 0",
    differs="has no such method",
    parameters=FisherParameters,
    needs_importance=True,
    prepare=prepare,
    merge=merge,
)
