"""Spherical linear interpolation between two models: along the arc, not along the chord (Shoemake 1985).

merged = [sin((1 - t) theta) a_1 + sin(t theta) a_2] / sin(theta)        theta: the angle between a_1 and a_2

`slerp` interpolates between the models themselves, and along the chord if |cos(theta)| > 0.9995. Models with the same
base are nearly parallel, so this is nearly always the case. `nuslerp` interpolates between task vectors if the recipe
has a base; these are not parallel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ramerge.core.methods import gram
from ramerge.core.methods.base import WEIGHTS, Agents, Parameters, for_each, total_weight, weights_field
from ramerge.core.methods.gram import CombinationByPart, CombinationMethod, Per
from ramerge.core.methods.sums import Floats

_PARALLEL = 0.9995
# Below this, an angle cannot be distinguished from 0 or 180 degrees by dot products in float64.
_SINE_OF_PARALLEL = 1e-7
_NO_WEIGHT = 1e-6


class SlerpParameters(Parameters):
    t: float = Field(0.5, ge=0, le=1, description="how far to go from the first agent (0) to the second one (1)")


class NuslerpParameters(Parameters):
    weights: WEIGHTS = weights_field()
    per: Per = Field("tensor", description="what has an angle of its own: each tensor, row (last axis) or column")

    @model_validator(mode="after")
    def _has_a_sum(self) -> NuslerpParameters:
        if not math.isfinite(total_weight(self.weights)):
            raise ValueError("weights sum to more than float64 holds; give smaller ones")
        return self


def _arc_coefficients(products: Floats, t: float, parallel: Callable[[Floats], NDArray[np.bool_]]) -> Floats:
    """The coefficients of two vectors at the fraction `t` of the arc; of the chord if `parallel(cosine)` is true."""
    cosine = gram.cosines(products)[..., 0, 1]
    theta = np.arccos(cosine)
    with np.errstate(all="ignore"):
        round_ = np.stack([np.sin((1 - t) * theta), np.sin(t * theta)], -1) / np.sin(theta)[..., None]
    # NaN stays NaN: a dot product that is out of range must not count as parallel
    return np.where(parallel(cosine)[..., None], np.array([1 - t, t]), round_)


class Slerp(CombinationMethod[SlerpParameters]):
    name = "slerp"
    family = "spherical"
    title = "Spherical interpolation of two models"
    source = "Animating Rotation with Quaternion Curves, Shoemake 1985, for each tensor"
    formula = "[sin((1 - t) theta) a_1 + sin(t theta) a_2] / sin(theta), linear if |cos(theta)| > 0.9995; needs no base"
    differs = "there is no difference but rounding"
    parameters = SlerpParameters
    fewest = 2
    most: int | None = 2
    symmetric = False
    needs_base = False

    def coefficients(self, parameters: SlerpParameters, agents: Agents, gram: Floats) -> Floats:
        return _arc_coefficients(gram, parameters.t, lambda cosine: np.abs(cosine) > _PARALLEL)


class Nuslerp(CombinationByPart[NuslerpParameters]):
    name = "nuslerp"
    family = "spherical"
    title = "Spherical interpolation of two task vectors"
    source = "mergekit's method of this name; Shoemake 1985"
    formula = "slerp of tau_1 and tau_2, or without a base of a_1 and a_2, at t = w_2 / (w_1 + w_2)"
    differs = (
        "there is no difference but rounding; `nuslerp_flatten: false` is `per: row`, or `column` with "
        "`nuslerp_row_wise`"
    )
    parameters = NuslerpParameters
    fewest = 2
    most: int | None = 2
    needs_base = False
    takes_base = True

    def per(self, parameters: NuslerpParameters) -> Per:
        return parameters.per

    def coefficients(self, parameters: NuslerpParameters, agents: Agents, gram: Floats) -> Floats:
        weights = for_each(parameters.weights, agents)
        t = 0.5 if abs(sum(weights)) < _NO_WEIGHT else weights[1] / sum(weights)
        return _arc_coefficients(gram, t, lambda cosine: np.sin(np.arccos(cosine)) < _SINE_OF_PARALLEL)


SLERP = Slerp()
NUSLERP = Nuslerp()
