"""Extrapolation: the line from the first agent through the last one, continued (ExPO, Zheng et al., arXiv 2404.16792).

merged = a_N + alpha (a_N - a_1)        alpha = (at - s_N) / (s_N - s_1) if a step `at` is given

So the first agent has the weight -alpha, and agents between the two have weight 0.
"""

from __future__ import annotations

from pydantic import Field

from ramerge.sdk.methods import Agents, MeanMethod
from ramerge.soups.steps import SteppedParameters, steps_of


class ExtrapolateParameters(SteppedParameters):
    alpha: float = Field(
        0.3,
        ge=-1e6,
        le=1e6,
        description="how far beyond the last agent, in distances of the first from the last",
    )
    at: float | None = Field(
        None,
        ge=-1e15,
        le=1e15,
        json_schema_extra={"range": "-1e+15 to 1e+15"},
        description="the training step that is predicted, in place of alpha",
    )


class Extrapolate(MeanMethod[ExtrapolateParameters]):
    name = "extrapolate"
    title = "Linear extrapolation of a run"
    source = "ExPO, arXiv 2404.16792; negative weights in RL for code, arXiv 2605.28751"
    formula = "a_N + alpha (a_N - a_1), of the first and the last agent; needs no base"
    parameters = ExtrapolateParameters
    fewest = 2
    symmetric = False

    def weights(self, parameters: ExtrapolateParameters, agents: Agents) -> tuple[float, ...]:
        steps = steps_of(parameters, agents)
        first, last = (place(range(len(agents)), key=lambda index: steps[index]) for place in (min, max))
        alpha = parameters.alpha
        if parameters.at is not None:
            alpha = (parameters.at - steps[last]) / (steps[last] - steps[first])
        weights = [0.0] * len(agents)
        weights[first], weights[last] = -alpha, 1 + alpha
        return tuple(weights)


EXTRAPOLATE = Extrapolate()
