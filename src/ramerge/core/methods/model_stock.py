"""Model Stock: the agents' mean, pulled towards the base the more they disagree (Jang et al. 2024, arXiv 2403.19522).

tau = t * mean_t tau_t        t = N c / (1 + (N - 1) c)        c: the mean cosine of two task vectors
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from ramerge.core.methods import gram
from ramerge.core.methods.base import MANY, Agents, Column, Figure, Figures, Parameters
from ramerge.core.methods.gram import CombinationByPart, Gram, Per
from ramerge.core.methods.moved import WHERE_TO_BEGIN
from ramerge.core.methods.sums import Floats


class ModelStockParameters(Parameters):
    per: Literal["tensor", "row"] = Field("tensor", description="what has a t of its own: each tensor, or each row")


def _factors_of(products: Floats) -> Floats:
    """The factor t / N for each agent, from the dot products of the task vectors."""
    n = products.shape[-1]
    cosine = gram.cosines(products)[(..., *np.tril_indices(n, -1))].mean(-1)
    below = 1 + (n - 1) * cosine
    with np.errstate(all="ignore"):
        t = np.where(np.abs(below) < _NOTHING, 0, n * cosine / below)
    return np.repeat(t[..., None] / n, n, -1)


_NOTHING = 1e-12


_LITTLE = 0.2
"""Users are warned if less than this share of the agents' mean is left."""


class ModelStock(CombinationByPart[ModelStockParameters]):
    name = "model_stock"
    family = "sums"
    title = "Model Stock"
    source = "Model Stock: All we need is just a few fine-tuned models, arXiv 2403.19522"
    formula = "t * mean_t tau_t, t = N c / (1 + (N - 1) c), c the mean cosine of two task vectors"
    differs = "takes products of lengths for 1e-6 at least, so small task vectors shrink; `filter_wise` is `per: row`"
    parameters = ModelStockParameters
    fewest = 2
    limit = MANY
    columns: tuple[Column, ...] = (
        Column(
            "ratio",
            "ratio",
            ".3f",
            "length of the merged task vector over that of the agents' mean",
            optional=True,  # rows have none
            none="-",
        ),
    )

    def per(self, parameters: ModelStockParameters) -> Per:
        return parameters.per

    def coefficients(self, parameters: ModelStockParameters, agents: Agents, gram: Floats) -> Floats:
        return _factors_of(gram)

    def reported(self, parameters: ModelStockParameters, agents: Agents) -> Gram | None:
        """The Gram matrices of tensors; None if each row has its own t."""
        return Gram("tensor") if parameters.per == "tensor" else None

    def report(
        self, parameters: ModelStockParameters, parts: Sequence[Floats], agents: Agents
    ) -> list[dict[str, Figure]]:
        """The length of the merged task vector divided by the length of the agents' mean: |t| for a single tensor."""
        if not parts:
            return [{} for _ in agents]
        lengths = [float(products.sum()) for products in parts]
        squares = [
            length * float(_factors_of(products).sum()) ** 2 for length, products in zip(lengths, parts, strict=True)
        ]
        total = math.fsum(lengths)
        ratio = math.sqrt(math.fsum(squares) / total) if total > 0 else None
        return [{"ratio": ratio} for _ in agents]

    def warning(self, figures: Sequence[Figures]) -> str:
        ratio = figures[0].get("ratio")
        if ratio is None or ratio >= _LITTLE:
            return ""
        return (
            f"model_stock leaves {ratio:.1%} of the agents' mean, so the merge is nearly the base: the agents' task "
            f"vectors are nearly orthogonal, as those of different tasks are. {WHERE_TO_BEGIN}"
        )


MODEL_STOCK = ModelStock()
