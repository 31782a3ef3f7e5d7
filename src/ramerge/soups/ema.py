"""EMA soup: the exponential moving average that a trainer would have kept, from checkpoints along the run.

e_1 = a_1        e_t = d_t e_(t-1) + (1 - d_t) a_t        d_t = decay, or 2^(-(s_t - s_(t-1)) / half_life)

Agents are taken in the order of their steps s_t.
"""

from __future__ import annotations

from itertools import pairwise

from pydantic import Field

from ramerge.sdk.methods import Agents, MeanMethod
from ramerge.soups.steps import SteppedParameters, steps_of


class EmaParameters(SteppedParameters):
    decay: float = Field(0.9, ge=0, lt=1, description="what is left of the average at each checkpoint")
    half_life: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        json_schema_extra={"range": "above 0"},
        description="steps of training after which half of the average is left, in place of decay",
    )


class Ema(MeanMethod[EmaParameters]):
    name = "ema"
    title = "EMA of checkpoints"
    source = "the exponential moving average of a run's weights: Polyak and Juditsky 1992; arXiv 2411.18704"
    formula = "e_t = d_t e_(t-1) + (1 - d_t) a_t in the order of steps, of up to 512 agents; needs no base"
    parameters = EmaParameters
    symmetric = False

    def weights(self, parameters: EmaParameters, agents: Agents) -> tuple[float, ...]:
        steps = steps_of(parameters, agents)
        order = sorted(range(len(agents)), key=lambda place: steps[place])
        weights = [1.0]
        for before, after in pairwise(order):
            decay = parameters.decay
            if parameters.half_life is not None:
                decay = 2 ** (-(steps[after] - steps[before]) / parameters.half_life)
            weights = [*(weight * decay for weight in weights), 1 - decay]
        by_agent = dict(zip(order, weights, strict=True))
        return tuple(by_agent[place] for place in range(len(agents)))


EMA = Ema()
