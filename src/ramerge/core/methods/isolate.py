"""One agent's region alone: the RAM paper's experiment on what unique regions do (section 3.2, figure 3).

merged = base + scale * tau_a    where the element lies in agent a's region
       = base                    otherwise

Regions are defined as in RAM: only this agent moved its unique elements; other agents moved its shared elements, too. A
scale of 1/N shows what averaging N agents does to the region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ramerge.core.kernels.elementwise import ONE, ZERO, Argument, Each
from ramerge.core.methods.base import Agents, Column, Figure, Results, ScaledParameters, Statistic, agent_field, present
from ramerge.core.methods.formula import CountedMethod
from ramerge.core.methods.moved import (
    COLUMN,
    EPSILON,
    RootMeanSquare,
    epsilon_field,
    factor,
    measured,
    thresholds,
    thresholds_of,
)
from ramerge.core.methods.ram import SOURCE

_REGIONS = {"active": 0.0, "unique": 1.0, "shared": 2.0}


class IsolateParameters(ScaledParameters):
    agent: str | None = agent_field("whose region; by default the first agent's")
    region: Literal["unique", "shared", "active"] = Field(
        "unique", description="elements that only it moved, that others moved too, or both"
    )
    epsilon: EPSILON = epsilon_field()


class Isolate(CountedMethod[IsolateParameters]):
    name = "isolate"
    family = "one model"
    title = "One agent's region by itself"
    source = f"{SOURCE}, section 3.2, figure 3"
    formula = "base + scale * tau_a in the unique, shared or active region of agent a, else the base"
    differs = "has no such method"
    parameters = IsolateParameters
    symmetric = False
    columns: tuple[Column, ...] = (COLUMN,)

    def statistics(self, parameters: IsolateParameters, agents: Agents) -> tuple[Statistic, ...]:
        return present(self.reported(parameters, agents))

    def reported(self, parameters: IsolateParameters, agents: Agents) -> RootMeanSquare | None:
        return measured(parameters.epsilon)

    def report(self, parameters: IsolateParameters, parts: Sequence[Each], agents: Agents) -> list[dict[str, Figure]]:
        """Each agent's threshold, if epsilon is relative; None if it differs between parts of the model."""
        if len(parts) != 1:
            return [{"epsilon": None} if parts else {} for _ in agents]
        return [{"epsilon": threshold} for threshold in thresholds(factor(parameters.epsilon), parts[0])]

    def beyond(self, parameters: IsolateParameters, results: Results) -> Each:
        return thresholds_of(parameters.epsilon, results)

    def numbers(self, parameters: IsolateParameters, agents: Agents, results: Results) -> tuple[Argument, ...]:
        agent, beyond = parameters.agent or agents[0], self.beyond(parameters, results)
        mine = tuple(float(name == agent) for name in agents)
        return mine, beyond * (len(agents) // len(beyond)), _REGIONS[parameters.region], parameters.scale

    @staticmethod
    def element(b: float, taus: Each, mine: Each, epsilons: Each, region: float, scale: float) -> float:
        tau, own, movers = ZERO, ZERO, ZERO
        for t in range(len(taus)):
            is_update = abs(taus[t]) > epsilons[t]
            movers = movers + (ONE if is_update else ZERO)
            own = own + (mine[t] if is_update else ZERO)
            tau = taus[t] if mine[t] > ZERO else tau
        alone = movers == ONE
        inside = own > ZERO and (region == ZERO or (region == ONE and alone) or (region > ONE and not alone))
        return b + scale * tau if inside else b


ISOLATE = Isolate()
