"""Spherical linear interpolation between two models: along the arc, not along the chord (Shoemake 1985).

merged = [sin((1 - t) theta) a_1 + sin(t theta) a_2] / sin(theta)        theta: the angle between a_1 and a_2

`slerp` is between the models themselves, and takes the chord where |cos(theta)| > 0.9995. Models of one base are nearly
parallel, so it nearly always does. `nuslerp` is between task vectors if the recipe has a base, which are not parallel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from ramerge.core.methods import gram
from ramerge.core.methods.base import (
    WEIGHTS,
    Agents,
    Method,
    Parameters,
    Results,
    for_each,
    total_weight,
    weights_field,
)
from ramerge.core.methods.gram import Combination, Per
from ramerge.core.methods.sums import Floats

_PARALLEL = 0.9995
# Below this, an angle cannot be distinguished from 0 or 180 degrees by dot products in float64.
_SINE_OF_PARALLEL = 1e-7
_NO_WEIGHT = 1e-6


class SlerpParameters(Parameters):
    """Parameters of `slerp`."""

    t: float = Field(0.5, ge=0, le=1, description="how far to go from the first agent (0) to the second one (1)")


class NuslerpParameters(Parameters):
    """Parameters of `nuslerp`."""

    weights: WEIGHTS = weights_field()
    per: Per = Field("tensor", description="what has an angle of its own: each tensor, row (last axis) or column")

    @model_validator(mode="after")
    def _has_a_sum(self) -> NuslerpParameters:
        if not math.isfinite(total_weight(self.weights)):
            raise ValueError("weights sum to more than float64 holds; give smaller ones")
        return self


def arc(products: Floats, t: float, parallel: Any) -> Floats:
    cosine = gram.cosines(products)[..., 0, 1]
    theta = np.arccos(cosine)
    with np.errstate(all="ignore"):
        round_ = np.stack([np.sin((1 - t) * theta), np.sin(t * theta)], -1) / np.sin(theta)[..., None]
    # NaN stays NaN: a dot product that is out of range must not pass for parallel
    return np.where(parallel(cosine)[..., None], np.array([1 - t, t]), round_)


def prepare_slerp(parameters: SlerpParameters, agents: Agents, results: Results) -> Combination:
    def nearly_parallel(cosine: Floats) -> Any:
        return np.abs(cosine) > _PARALLEL

    return gram.prepare(len(agents), lambda products: arc(products, parameters.t, nearly_parallel), results)


def prepare_nuslerp(parameters: NuslerpParameters, agents: Agents, results: Results) -> Combination:
    def parallel(cosine: Floats) -> Any:
        return np.sin(np.arccos(cosine)) < _SINE_OF_PARALLEL

    weights = for_each(parameters.weights, agents)
    t = 0.5 if abs(sum(weights)) < _NO_WEIGHT else weights[1] / sum(weights)
    return gram.prepare(len(agents), lambda products: arc(products, t, parallel), results, parameters.per)


SLERP = Method(
    name="slerp",
    family="spherical",
    title="Spherical interpolation of two models",
    source="Animating Rotation with Quaternion Curves, Shoemake 1985, for each tensor",
    formula="[sin((1 - t) theta) a_1 + sin(t theta) a_2] / sin(theta), linear if |cos(theta)| > 0.9995; needs no base",
    differs="there is no difference but rounding",
    parameters=SlerpParameters,
    fewest=2,
    most=2,
    symmetric=False,
    needs_base=False,
    statistics=lambda _parameters, _agents: gram.statistics(),
    prepare=prepare_slerp,
    merge=gram.merge,
)
NUSLERP = Method(
    name="nuslerp",
    family="spherical",
    title="Spherical interpolation of two task vectors",
    source="mergekit's method of this name; Shoemake 1985",
    formula="slerp of tau_1 and tau_2, or without a base of a_1 and a_2, at t = w_2 / (w_1 + w_2)",
    differs="there is no difference but rounding; `nuslerp_flatten: false` is `per: row`, or `column` with "
    "`nuslerp_row_wise`",
    parameters=NuslerpParameters,
    fewest=2,
    most=2,
    needs_base=False,
    takes_base=True,
    statistics=lambda parameters, _agents: gram.statistics(parameters.per),
    unit=lambda layer, parameters: gram.unit(layer, parameters.per),
    scratch=lambda layer, parameters, agents: gram.scratch(layer, parameters.per, agents),
    prepare=prepare_nuslerp,
    merge=gram.merge,
)
