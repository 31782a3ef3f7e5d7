"""One agent's region by itself: the paper's experiment on what unique regions carry (section 3.2, figure 3).

merged = base + scale * tau_a    where the element lies in agent a's region
       = base                    elsewhere

The regions are those of RAM: unique elements are those that only the agent moved, shared ones those that others
moved too. A scale of 1/N shows what averaging N agents does to them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ramerge.kernels.elementwise import ONE, ZERO
from ramerge.methods.base import Agents, Method, Parameters, Results, agent_field, scale_field
from ramerge.methods.formula import Formula, merge
from ramerge.methods.ram import SOURCE

_REGIONS = {"active": 0.0, "unique": 1.0, "shared": 2.0}


class IsolateParameters(Parameters):
    """Parameters of `isolate`."""

    agent: str | None = agent_field("whose region; by default the first agent's")
    region: Literal["unique", "shared", "active"] = Field(
        "unique", description="elements that only it moved, that others moved too, or both"
    )
    scale: float = scale_field()
    epsilon: float = Field(1e-5, ge=0, allow_inf_nan=False, description="an element moved if |agent - base| > epsilon")


def prepare(parameters: IsolateParameters, agents: Agents, _results: Results) -> Formula:
    """Whose region, which one, scale and threshold."""
    chosen = parameters.agent or agents[0]
    mine = tuple(float(name == chosen) for name in agents)
    common = (_REGIONS[parameters.region], parameters.scale, parameters.epsilon)
    return Formula(element, (mine,), common, beyond=parameters.epsilon)


def element(b: Any, taus: Any, mine: Any, region: Any, scale: Any, epsilon: Any) -> Any:
    """One element."""
    tau, own, movers = ZERO, ZERO, ZERO
    for t in range(len(taus)):
        moved = abs(taus[t]) > epsilon
        movers = movers + (ONE if moved else ZERO)
        own = own + (mine[t] if moved else ZERO)
        tau = taus[t] if mine[t] > ZERO else tau
    alone = movers == ONE
    inside = own > ZERO and (region == ZERO or (region == ONE and alone) or (region > ONE and not alone))
    return b + scale * tau if inside else b


ISOLATE = Method(
    name="isolate",
    title="One agent's region by itself",
    source=f"{SOURCE}, section 3.2, figure 3",
    formula="base + scale * tau_a in the unique, shared or active region of agent a, else the base",
    differs="has no such method",
    parameters=IsolateParameters,
    symmetric=False,
    prepare=prepare,
    merge=merge,
)
