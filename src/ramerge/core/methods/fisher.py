"""Fisher merging: task vectors weighted by diagonal Fisher information (Matena & Raffel 2022, arXiv 2111.09832).

tau = scale * sum_t F_t tau_t / sum_t F_t, and 0 where the importances of all agents are 0. The importances F_t have the
names and shapes of the model's tensors; `ramerge calibrate --gather importance` estimates them.
"""

from __future__ import annotations

from typing import Annotated

from ramerge.core.kernels.elementwise import ZERO, Each
from ramerge.core.methods.define import PerAgent, Range, merge_method


@merge_method(
    "fisher",
    family="sums",
    title="Fisher merging",
    source="Merging Models with Fisher-Weighted Averaging, arXiv 2111.09832; RAM paper, appendix D",
    formula="scale * sum_t F_t tau_t / sum_t F_t, 0 where sum_t F_t = 0",
    differs="has no such method",
    needs_importance=True,
)
def fisher(
    b: float,
    taus: Each,
    importances: Each,
    *,
    scale: Annotated[float, "factor of the merged task vector"] = 1.0,
    weights: Annotated[PerAgent, Range(0), "factor of each agent's importances"] = 1.0,
) -> float:
    """The mean of the task vectors, weighted by importances."""
    total, mass = ZERO, ZERO
    for t in range(len(taus)):
        importance = weights[t] * importances[t]
        total = total + importance * taus[t]
        mass = mass + importance
    overflow = mass - mass  # NaN if the sum of the importances overflows, and 0 otherwise
    result = b + scale * (total / mass) if overflow == ZERO else overflow
    return result if mass > ZERO else b
