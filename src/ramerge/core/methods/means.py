"""Shared parts of methods that are weighted means of the agents themselves, such as checkpoints of a run.

    merged = sum_t w_t a_t        sum_t w_t = 1

Such a method says only the weights. The mean is computed while the agents are read (`tensors.weighted`), so there may
be many of them, and what reaches a kernel is the mean itself: of a sweep, the means of all points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ramerge.core.kernels.elementwise import ZERO, Inputs
from ramerge.core.methods.base import MANY, Agents, Column, Method
from ramerge.core.methods.formula import Formula, merge

Weights = Callable[[Any, Agents], tuple[float, ...]]


def one_of(index: int, means: int) -> Formula:
    """Arguments of `merge` that write one of several means."""
    return Formula(_chosen, (tuple(float(t == index) for t in range(means)),), Inputs(means, base=False))


def _chosen(_b: Any, values: Any, marks: Any) -> Any:
    result = values[0]
    for t in range(len(values)):
        result = values[t] if marks[t] > ZERO else result
    return result


def mean_method(
    name: str, *, title: str, source: str, formula: str, parameters: type[Any], weights: Weights, **more: Any
) -> Method:
    """A method that is a weighted mean of the agents.

    Args:
        name, title, source, formula, parameters: as for `Method`.
        weights: from parameters and agents, in order, to a weight for each; these add up to 1, and may be negative.
        **more: further fields of `Method`.
    """

    def report(given: Any, _results: Sequence[Any], agents: Agents) -> list[dict[str, Any]]:
        return [{"weight": weight} for weight in weights(given, agents)]

    return Method(
        name=name,
        family="soups",
        title=title,
        source=source,
        formula=formula,
        parameters=parameters,
        prepare=lambda _parameters, _agents, _results: one_of(0, 1),
        merge=merge,
        mean=weights,
        needs_base=False,
        limit=MANY,
        along_run=True,
        alone="the result is the agent itself",
        report=report,
        columns=(Column("weight", "weight", ".4f", "the agent's weight in the mean"),),
        **more,
    )
