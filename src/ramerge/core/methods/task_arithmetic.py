"""Task Arithmetic: the weighted sum of task vectors (Ilharco et al. 2023, arXiv 2212.04089).

tau = scale * sum_t w_t * tau_t
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from ramerge.core.kernels.elementwise import ZERO, Each
from ramerge.core.kernels.piece import Numbers, Piece, PieceResult
from ramerge.core.methods.base import FEW, MANY, NO_RESULTS, Agents, Counts, for_each
from ramerge.core.methods.define import FormulaMethod, PerAgent, merge_method
from ramerge.core.methods.formula import Formula, merge_many


def divisor_of(weights: Each) -> float:
    """The divisor of a normalized sum of task vectors: the sum of the weights, or 1 if that is 0."""
    total = sum(weights)
    return total if abs(total) >= 1e-8 else 1.0


def _weight_divisor(parameters: Any, agents: Agents) -> dict[str, float]:
    return {"divisor": divisor_of(for_each(parameters.weights, agents))}


class _TaskArithmetic(FormulaMethod):
    """Task Arithmetic for any number of agents."""

    def factors(self, parameters: Any, agents: Agents) -> Each:
        weights = for_each(parameters.weights, agents)
        divisor = divisor_of(weights) if parameters.normalize else 1.0
        return tuple(parameters.scale * weight / divisor for weight in weights)

    def merge(self, piece: Piece, prepared: Formula, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        if prepared.inputs.agents <= FEW:
            return super().merge(piece, prepared, counts, allow_nonfinite)
        scale, weights, normalize, divisor = prepared.given

        def finish(b: Numbers, total: Numbers) -> Numbers:
            kind = total.dtype.type
            result: Numbers = b + kind(scale) * (total / kind(divisor) if normalize else total)
            return result

        assert isinstance(weights, tuple)
        return merge_many(piece, weights, finish, origin=0)


@merge_method(
    "task_arithmetic",
    family="sums",
    title="Task Arithmetic",
    source="Editing Models with Task Arithmetic, arXiv 2212.04089; RAM paper, appendix D",
    formula="scale * sum_t w_t tau_t",
    differs="computes in the files' dtype, and ramerge in float32; otherwise there is no difference",
    derived=_weight_divisor,
    kind=_TaskArithmetic,
    limit=MANY,
)
def task_arithmetic(
    b: float,
    taus: Each,
    *,
    scale: Annotated[float, "factor of the merged task vector"] = 1.0,
    weights: Annotated[PerAgent, "factor of each agent, before anything is summed"] = 1.0,
    normalize: Annotated[bool, "divide by the sum of the weights, unless that is 0"] = False,
    divisor: float,
) -> float:
    """The weighted sum of the task vectors, or their weighted mean."""
    total = ZERO
    for t in range(len(taus)):
        total = total + weights[t] * taus[t]
    return b + scale * (total / divisor if normalize else total)


def weighted_sum(weights: Each, scale: float, divisor: float | None = None) -> Formula:
    """The formula scale * sum_t w_t tau_t, or scale * (sum_t w_t tau_t / divisor); other methods use it for tensors
    that they do not solve for.
    """
    agents = tuple(map(str, range(len(weights))))
    formula = task_arithmetic.prepare(task_arithmetic.parameters(), agents, NO_RESULTS)
    return replace(formula, given=(scale, weights, divisor is not None, divisor or 1.0))
