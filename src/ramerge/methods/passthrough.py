"""One model as it is, for other formats and dtypes: what `ramerge convert` runs.

merged = scale * a
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ramerge.kernels.elementwise import ONE, ZERO
from ramerge.methods.base import Agents, Method, Parameters, Results, agent_field
from ramerge.methods.formula import Formula, merge


class PassthroughParameters(Parameters):
    """Parameters of `passthrough`."""

    agent: str | None = agent_field("the model that is copied; by default the first agent")
    scale: float = Field(1.0, allow_inf_nan=False, description="factor of the weights")


def prepare(parameters: PassthroughParameters, agents: Agents, _results: Results) -> Formula:
    """Which agent, and its factor."""
    chosen = parameters.agent or agents[0]
    return Formula(element, (tuple(float(name == chosen) for name in agents),), (parameters.scale,), base=False)


def element(_b: Any, values: Any, mine: Any, scale: Any) -> Any:
    """One element."""
    result = values[0]
    for t in range(len(values)):
        result = values[t] if mine[t] > ZERO else result
    return result if scale == ONE else scale * result


PASSTHROUGH = Method(
    name="passthrough",
    title="One model as it is",
    source="mergekit's method of this name, for whole models",
    formula="scale * a, the chosen agent; needs no base",
    differs="there is no difference for whole models; stacks of layers are not supported",
    parameters=PassthroughParameters,
    combines=False,
    symmetric=False,
    needs_base=False,
    prepare=prepare,
    merge=merge,
)
