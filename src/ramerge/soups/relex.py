"""RELEX: predicts a later checkpoint of a run from the straight line that its task vectors follow (arXiv 2605.21468).

For each tensor, M has a row tau_t for each agent; u is the first left singular vector of M, s its singular value. The
coordinates of the agents on the first right singular vector v are c = s u. A straight line through c over the steps
gives c* at the step `at`, and

    tau = c* v = (c* / s) M^T u = (a + b at) sum_t u_t tau_t        a + b s_t: the line through u_t over the steps

So two reads of the agents suffice: one for their Gram matrix G = M M^T, whose first eigenvector is u, and one for their
weighted sum. The sign of u cancels; it is fixed so that the sum of u is not negative. The line of a single agent goes
through the base at step 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ramerge.core.methods.base import Figure, Figures
from ramerge.sdk.methods import MANY, Agents, Column, CombinationMethod, Floats, Gram
from ramerge.soups.steps import SteppedParameters, steps_of


class RelexParameters(SteppedParameters):
    at: float | None = Field(
        None,
        allow_inf_nan=False,
        json_schema_extra={"range": "any number"},
        description="the training step that is predicted; by default that of the last agent, without what is not on "
        "the line",
    )


@dataclass(frozen=True)
class Line:
    """The rank-one trajectory of a tensor over steps, for `relex` and a run's straightness.

    Attributes:
        share: the first component's share of all task vectors' squared lengths; 1 if nothing moved.
        direction: the first eigenvector of the Gram matrix, of shape (agents,); 0 if nothing moved.
        intercept, slope: the straight line through `direction` over the steps.
        fit: R^2 of that line; 1 if all coordinates are equal.
    """

    share: float
    direction: Floats
    intercept: float
    slope: float
    fit: float

    @staticmethod
    def from_products(products: Floats, steps: Sequence[float]) -> Line:
        """Compute the trajectory of task vectors at these steps, from their scalar products, shape (agents, agents)."""
        count = len(steps)
        if not np.isfinite(products).all():
            return Line(math.nan, np.full(count, math.nan), math.nan, math.nan, math.nan)
        total = float(np.trace(products))
        if total <= 0:
            return Line(1.0, np.zeros(count), 0.0, 0.0, 1.0)
        values, vectors = np.linalg.eigh(products)
        direction: NDArray[Any] = vectors[:, -1]
        direction = -direction if direction.sum() < 0 else direction
        intercept, slope, fit = _fit_line(np.asarray(steps, float), direction)
        return Line(min(max(float(values[-1]), 0.0) / total, 1.0), direction, intercept, slope, fit)

    def coefficients(self, at: float) -> Floats:
        """Return the agents' weights in the task vector that `relex` predicts for a step."""
        return (self.intercept + self.slope * at) * self.direction


def _fit_line(steps: Floats, values: Floats) -> tuple[float, float, float]:
    """Return intercept, slope and R^2 of the least-squares line; the line of a single point goes through the origin."""
    if len(steps) == 1:
        return (0.0, float(values[0] / steps[0]), 1.0) if steps[0] else (float(values[0]), 0.0, 1.0)
    apart = steps - steps.mean()
    slope = float(apart @ (values - values.mean()) / (apart @ apart))
    intercept = float(values.mean() - slope * steps.mean())
    around = float(np.square(values - values.mean()).sum())
    residual = float(np.square(values - intercept - slope * steps).sum())
    return intercept, slope, 1 - residual / around if around > _NOTHING else 1.0


_NOTHING = 1e-24


STRAIGHT = 0.5
"""A run does not follow one line if the first component holds less of a checkpoint's squared task vector."""


def shares_of(parts: Sequence[Floats], lines: Sequence[Line], count: int) -> list[float]:
    """Return the share of each checkpoint's squared task vector, over all parts, that lies in the first components.

    Args:
        parts: the scalar products of the task vectors of each tensor, shape (count, count).
    """
    nothing = np.zeros(count)
    each = list(zip(parts, lines, strict=True))
    inside = sum((line.share * np.trace(products) * line.direction**2 for products, line in each), nothing)
    lengths = sum((np.diagonal(products) for products in parts), nothing)
    with np.errstate(all="ignore"):
        return [float(share) for share in np.where(lengths > 0, inside / lengths, 1.0)]


class Relex(CombinationMethod[RelexParameters]):
    name = "relex"
    family = "soups"
    title = "RELEX: a later checkpoint of a run, predicted"
    source = "RELEX: You Only Need Minimal RLVR Training, arXiv 2605.21468"
    formula = (
        "(a + b at) sum_t u_t tau_t, u the first eigenvector of the Gram matrix, a + b s_t its line over the steps"
    )
    parameters = RelexParameters
    alone = "the line through the base and this agent is continued"
    limit = MANY
    along_run = True
    symmetric = False
    columns: tuple[Column, ...] = (
        Column("step", "step", "g", "its training step"),
        Column("straight", "straight", ".1%", "share of its squared task vector in the first component"),
    )

    def coefficients(self, parameters: RelexParameters, agents: Agents, gram: Floats) -> Floats:
        steps = steps_of(parameters, agents)
        at = max(steps) if parameters.at is None else parameters.at
        return Line.from_products(gram, steps).coefficients(at)

    def reported(self, parameters: RelexParameters, agents: Agents) -> Gram:
        return Gram("tensor")

    def report(self, parameters: RelexParameters, parts: Sequence[Floats], agents: Agents) -> list[dict[str, Figure]]:
        """Each agent's step, and the share of its squared task vector in the first component, over all tensors."""
        steps = steps_of(parameters, agents)
        shares = shares_of(parts, [Line.from_products(products, steps) for products in parts], len(agents))
        return [{"step": step, "straight": share} for step, share in zip(steps, shares, strict=True)]

    def warning(self, figures: Sequence[Figures]) -> str:
        straightness = [(figure["straight"], figure["step"]) for figure in figures if "straight" in figure]
        if not straightness or min(straightness)[0] >= STRAIGHT:
            return ""
        return (
            f"{share_phrase(*min(straightness))}: the run does not follow one line, so what relex predicts may be "
            "far from it; `ramerge soup RUN --base BASE --analyze` shows it by layer"
        )


def share_phrase(share: float, step: float) -> str:
    """Return the phrase about the checkpoint with the smallest share in the first component."""
    return f"the first component holds only {share:.0%} of the task vector of step {step:g}"


RELEX = Relex()
