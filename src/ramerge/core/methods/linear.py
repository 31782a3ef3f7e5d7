"""Linear merging: the weighted mean of the agents themselves (model soups, Wortsman et al. 2022, arXiv 2203.05482).

merged = sum_t w_t a_t / sum_t w_t
"""

from __future__ import annotations

from typing import Annotated, Any

from ramerge.core.kernels.elementwise import ZERO, Each
from ramerge.core.kernels.piece import Numbers, Piece, PieceResult
from ramerge.core.methods.base import FEW, MANY, Agents, Counts, for_each, total_weight
from ramerge.core.methods.define import FormulaMethod, PerAgent, merge_method
from ramerge.core.methods.formula import Formula, merge_many


def _check_weight_sum(parameters: Any) -> None:
    if parameters.normalize and abs(total_weight(parameters.weights)) < 1e-8:
        raise ValueError("weights sum to 0, so there is no mean; to combine differences use task_arithmetic")


def _weight_divisor(parameters: Any, agents: Agents) -> dict[str, float]:
    return {"divisor": sum(for_each(parameters.weights, agents)) if parameters.normalize else 1.0}


class _Linear(FormulaMethod):
    """Linear merging of any number of agents."""

    def factors(self, parameters: Any, agents: Agents) -> Each | None:
        weights = for_each(parameters.weights, agents)
        return tuple(weight / sum(weights) for weight in weights) if parameters.normalize else None

    def merge(self, piece: Piece, prepared: Formula, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        if prepared.inputs.agents <= FEW:
            return super().merge(piece, prepared, counts, allow_nonfinite)
        weights, normalize, divisor = prepared.given

        def finish(_first: Numbers, total: Numbers) -> Numbers:
            return total / total.dtype.type(divisor) if normalize else total

        assert isinstance(weights, tuple)
        return merge_many(piece, weights, finish, origin=None)


@merge_method(
    "linear",
    family="sums",
    title="Linear (model soup)",
    source="Model Soups, arXiv 2203.05482",
    formula="sum_t w_t a_t / sum_t w_t, of the agents themselves; needs no base",
    differs="there is no difference",
    derived=_weight_divisor,
    check=_check_weight_sum,
    needs_base=False,
    kind=_Linear,
    limit=MANY,
)
def linear(
    _b: float,
    values: Each,
    *,
    weights: Annotated[PerAgent, "factor of each agent, before anything is summed"] = 1.0,
    normalize: Annotated[bool, "divide by the sum of the weights"] = True,
    divisor: float,
) -> float:
    """The weighted mean of the agents, or their weighted sum."""
    total = ZERO
    for t in range(len(values)):
        total = total + weights[t] * values[t]
    return total / divisor if normalize else total
