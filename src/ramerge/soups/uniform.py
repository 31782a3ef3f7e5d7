"""Uniform soup: the plain mean of checkpoints (Wortsman et al. 2022, arXiv 2203.05482; Sanyal et al. 2023, 2306.03241).

merged = sum_t a_t / N
"""

from __future__ import annotations

from ramerge.sdk.methods import Agents, MeanMethod, Parameters


class Uniform(MeanMethod[Parameters]):
    name = "uniform"
    title = "Uniform soup of checkpoints"
    source = "Model Soups, arXiv 2203.05482; the last k checkpoints of a run: LAWA, arXiv 2306.03241"
    formula = "sum_t a_t / N, of up to 512 agents; needs no base"
    parameters = Parameters

    def weights(self, parameters: Parameters, agents: Agents) -> tuple[float, ...]:
        return (1 / len(agents),) * len(agents)


UNIFORM = Uniform()
