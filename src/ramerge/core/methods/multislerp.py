"""Multi-SLERP: the mean direction of several vectors, at their mean length (Goddard, mergekit's method of this name).

u = sum_t w_t v_t / |v_t|        merged = (sum_t w_t |v_t|) u / |u|

v_t are task vectors if the recipe has a base, and the agents themselves if not. mergekit computes the same through the
tangent space at u, where the weighted vectors sum to 0.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field, model_validator

from ramerge.core.foundation.errors import WeightsError
from ramerge.core.kernels.elementwise import Each
from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.methods import gram
from ramerge.core.methods.base import MANY, WEIGHTS, Agents, Counts, Parameters, for_each, total_weight, weights_field
from ramerge.core.methods.gram import Combination, CombinationMethod
from ramerge.core.methods.sums import Floats

# Shorter sums of unit vectors cannot be distinguished from 0 by dot products in float64.
_RESOLUTION = 1e-7


class MultislerpParameters(Parameters):
    weights: WEIGHTS = weights_field()
    normalize: bool = Field(True, description="divide weights by their sum")
    eps: float = Field(1e-8, ge=0, le=1, description="directions cancel out if their weighted sum is shorter than this")

    @model_validator(mode="after")
    def _has_a_sum(self) -> MultislerpParameters:
        total = total_weight(self.weights)
        if self.normalize and (abs(total) < 1e-8 or not math.isfinite(total)):
            amount = "0" if math.isfinite(total) else "more than float64 holds"
            raise ValueError(f"weights sum to {amount}, so they cannot be normalized; give other weights")
        return self


def _mean_direction(products: Floats, weights: Each, eps: float) -> Floats:
    lengths = gram.norms(products)
    if len(weights) == 1 or not lengths.any():
        return np.ones(len(weights)) / len(weights)
    w: Floats = np.array(weights)
    # sums instead of matrix products, because linear algebra libraries differ in the order of additions
    square = float((w[:, None] * w * gram.cosines(products)).sum())
    if not math.isfinite(square):
        return np.full(len(weights), np.nan)
    if math.sqrt(max(square, 0)) >= max(eps, _RESOLUTION * float(np.abs(w).sum())):
        along: Floats = np.divide(w, lengths, out=np.zeros_like(w), where=lengths > 0)
        return along * float((w * lengths).sum()) / math.sqrt(square)
    return w if np.count_nonzero(lengths) <= 2 else np.full(len(weights), np.nan)


class Multislerp(CombinationMethod[MultislerpParameters]):
    name = "multislerp"
    family = "spherical"
    title = "Mean direction at mean length"
    source = "mergekit's method of this name, goddard.blog/posts/multislerp-wow-what-a-cool-idea"
    formula = "(sum_t w_t |tau_t|) u / |u|, u = sum_t w_t tau_t / |tau_t|; without a base of the agents themselves"
    alone = "the result is the agent itself"
    differs = "adds `eps` to lengths, which shortens task vectors that are nearly 0"
    parameters = MultislerpParameters
    needs_base = False
    takes_base = True
    limit = MANY

    def coefficients(self, parameters: MultislerpParameters, agents: Agents, gram: Floats) -> Floats:
        weights = for_each(parameters.weights, agents)
        if parameters.normalize:
            weights = tuple(weight / sum(weights) for weight in weights)
        return _mean_direction(gram, weights, parameters.eps)

    def merge(self, piece: Piece, prepared: Combination, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        """Merge a piece; raises WeightsError if there is no mean direction."""
        if np.isnan(prepared.coefficients).any() and not allow_nonfinite:
            raise WeightsError(
                f"tensor {piece.tensor!r}: there is no mean direction, because the agents' weighted directions cancel "
                "out, or because elements are so large that their squares overflow; give other weights, or another "
                "method"
            )
        return super().merge(piece, prepared, counts, allow_nonfinite)


MULTISLERP = Multislerp()
