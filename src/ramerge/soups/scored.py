"""Scored soup: checkpoints weighted by their validation scores.

w_t = exp(score_t / temperature) / sum_u exp(score_u / temperature)
"""

from __future__ import annotations

import math

from pydantic import Field

from ramerge.sdk.methods import Agents, MeanMethod, Parameters
from ramerge.soups.steps import NUMBERS


class ScoredParameters(Parameters):
    scores: NUMBERS = Field(None, description="score of each agent, the higher the better; by default all are equal")
    temperature: float = Field(
        0.01,
        gt=0,
        allow_inf_nan=False,
        json_schema_extra={"range": "above 0"},
        description="difference of scores that makes a weight e times as large",
    )


class ScoredSoup(MeanMethod[ScoredParameters]):
    name = "scored"
    title = "Soup of checkpoints weighted by scores"
    source = "a softmax of validation scores; Model Soups, arXiv 2203.05482, chooses by them"
    formula = "sum_t w_t a_t, w_t = softmax of score_t / temperature, of up to 512 agents; needs no base"
    parameters = ScoredParameters

    def weights(self, parameters: ScoredParameters, agents: Agents) -> tuple[float, ...]:
        scores = parameters.scores or dict.fromkeys(agents, 0.0)
        best = max(scores[name] for name in agents)
        powers = [math.exp((scores[name] - best) / parameters.temperature) for name in agents]
        return tuple(power / math.fsum(powers) for power in powers)


SCORED = ScoredSoup()
