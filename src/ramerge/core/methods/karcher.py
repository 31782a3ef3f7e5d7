"""The Karcher mean: the point of a sphere with the least sum of squared distances to all models (Karcher 1977).

For each tensor, the models are points v_t / |v_t| of the unit sphere. Starting at their normalized sum, each step goes
along the mean of the directions to all points, until a step is shorter than `tol`. The result has the models' mean
length. All points and directions are linear combinations of the models, so the steps only need their coefficients and
the Gram matrix.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from ramerge.core.methods import gram
from ramerge.core.methods.base import MANY, Agents, Parameters
from ramerge.core.methods.gram import CombinationMethod
from ramerge.core.methods.sums import Floats


class KarcherParameters(Parameters):
    max_iter: int = Field(10, ge=0, le=100_000, description="steps at most")
    tol: float = Field(1e-5, gt=0, le=1, description="steps and distances in radians below which nothing moves")


def _coefficients(products: Floats, max_iter: int, tol: float) -> Floats:
    lengths = gram.norms(products)
    points = [t for t in range(len(lengths)) if lengths[t] > 0]
    coefficients = np.zeros(len(lengths))
    if points:
        place = _karcher_place(gram.cosines(products)[np.ix_(points, points)], max_iter, tol)
        coefficients[points] = lengths.mean() * place / lengths[points]
    return coefficients


def _karcher_place(cosines: Floats, max_iter: int, tol: float) -> Floats:
    n = len(cosines)
    place = np.full(n, 1 / n)
    length = _vector_length(place, cosines)
    place = place / length if length >= tol else np.eye(n)[0]
    for _ in range(max_iter):
        step = np.zeros(n)
        for t, cosine in enumerate(np.clip(cosines @ place, -1, 1)):
            direction = np.eye(n)[t] - cosine * place
            sine, apart = _vector_length(direction, cosines), _vector_length(np.eye(n)[t] - place, cosines)
            distance = 2 * math.asin(min(apart / 2, 1))
            if distance >= tol and sine > 0:
                step += direction * (distance / sine) / n
        size = _vector_length(step, cosines)
        if size < tol:
            break
        place = math.cos(size) * place + math.sin(size) * step / size
        place = place / _vector_length(place, cosines)
    return place


def _vector_length(coordinates: Floats, cosines: Floats) -> float:
    return math.sqrt(max(float(coordinates @ cosines @ coordinates), 0.0))


class Karcher(CombinationMethod[KarcherParameters]):
    name = "karcher"
    family = "spherical"
    title = "Karcher mean of models"
    source = "Riemannian center of mass, Karcher 1977, for each tensor"
    formula = (
        "mean_t |a_t| times the point of the unit sphere of the least sum of squared distances to all a_t / |a_t|; "
        "needs no base"
    )
    alone = "the result is the agent itself"
    differs = "measures small angles as arccos of float32 cosines, and leaves out tensors that are shorter than `tol`"
    parameters = KarcherParameters
    needs_base = False
    limit = MANY

    def coefficients(self, parameters: KarcherParameters, agents: Agents, gram: Floats) -> Floats:
        if not np.isfinite(gram).all():
            return np.full(len(agents), np.nan)
        return _coefficients(gram, parameters.max_iter, parameters.tol)


KARCHER = Karcher()
