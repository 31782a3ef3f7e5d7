"""DARE: drop elements of task vectors at random, and rescale the others (Yu et al. 2024, arXiv 2311.03099).

Each element of tau_t is dropped with probability p, and multiplied by 1 / (1 - p) otherwise. Task Arithmetic (`dare`)
or TIES (`dare_ties`) then merges the remaining elements. `drop_mask` chooses the dropped elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import Field, SerializeAsAny

from ramerge.core.kernels.elementwise import Argument, Element
from ramerge.core.methods.base import (
    Agents,
    Parameters,
    PerAgentNumber,
    Results,
    WeightedParameters,
    for_each,
    per_agent,
    seed_field,
)
from ramerge.core.methods.drop_mask import DropMask
from ramerge.core.methods.formula import ElementMethod
from ramerge.core.methods.task_arithmetic import task_arithmetic
from ramerge.core.methods.ties import TiesParameters, TrimmedElection

_RATES = per_agent(0.0, 1.0, below=True)
RATE: TypeAlias = Annotated[SerializeAsAny[PerAgentNumber], _RATES[0], _RATES[1]]


class DroppingParameters(Parameters):
    """Parameters of the drop, for `dare` and `dare_ties`."""

    p: RATE = Field(0.5, description="drop rate")
    seed: int = seed_field()
    rescale: bool = Field(True, description="multiply what is not dropped by 1 / (1 - p)")


class DareParameters(WeightedParameters, DroppingParameters):
    """Parameters of `dare`: those of the drop, then those of Task Arithmetic."""

    normalize: bool = Field(False, description="divide by the sum of the weights, unless that is 0")


class DareTiesParameters(DroppingParameters, TiesParameters):
    """Parameters of `dare_ties`."""


DroppingP = TypeVar("DroppingP", bound=DroppingParameters)


class _DroppingMethod(ElementMethod[DroppingP]):
    """A method that drops elements of task vectors at random."""

    family = "sparse"
    source = "Language Models are Super Mario, arXiv 2311.03099; RAM paper, appendix D"

    def drop_mask(self, parameters: DroppingP, agents: Agents) -> DropMask:
        return DropMask(parameters.seed, agents, for_each(parameters.p, agents), parameters.rescale)

    def noted(self, parameters: DroppingP) -> bool:
        """Whether anything is dropped."""
        return any(parameters.p.values() if isinstance(parameters.p, Mapping) else (parameters.p,))


_DIFFERENCE = "`dare_{}` drops other elements in each run, and rescales each tensor to its l1 norm, not by 1 / (1 - p)"


class Dare(_DroppingMethod[DareParameters]):
    name = "dare"
    title = "DARE with Task Arithmetic"
    formula = "drop elements of tau_t with probability p, others times 1 / (1 - p); then scale * sum_t w_t tau_t"
    differs = _DIFFERENCE.format("linear")
    parameters = DareParameters
    element: Element = staticmethod(task_arithmetic.element)

    def numbers(self, parameters: DareParameters, agents: Agents, results: Results) -> tuple[Argument, ...]:
        return task_arithmetic.numbers(parameters, agents, results)


class DareTies(_DroppingMethod[DareTiesParameters], TrimmedElection[DareTiesParameters]):
    name = "dare_ties"
    title = "DARE with TIES"
    source: str = f"{_DroppingMethod.source}; arXiv 2306.01708"
    formula = "drop elements of tau_t with probability p, others times 1 / (1 - p); then TIES"
    differs = f"{_DIFFERENCE.format('ties')}; it does not trim, as `density: 1` here, and its own density is 1 - p"
    parameters = DareTiesParameters


DARE = Dare()
DARE_TIES = DareTies()
