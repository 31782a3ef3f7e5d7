"""Singular value calibration: updates of several agents in one direction are counted once (2026, arXiv 2602.05536).

tau is the merged task vector of a matrix, by default the sum, and u_r is its r-th left singular vector. With the
projections p_r = u_r' tau of the merged task vector and p_rt = u_r' tau_t of each of N agents on that direction,

    s_rt = <p_r, p_rt> / ||p_rt||^2        tau' = scale * sum_r u_r p_r N / sum_t max(alpha, s_rt)

An agent without a component in a direction has s = 0 there. Directions with equal singular values can be rotated into
each other, so they share one factor, computed from all of their projections. All other tensors are only scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array, to_host, wide
from ramerge.core.linalg.solver import CPU
from ramerge.core.methods.base import Agents, Counts, Layer, Method, Results, ScaledParameters, Statistic
from ramerge.core.methods.matrices import WIDENING_BYTES, is_matrix, orient, oriented_bytes, scale_solution
from ramerge.core.methods.other_result import OtherName, OtherResult, Start, fits, name_field, parameters_field

_NULL = 1e-12
"""A projection counts as 0 if its squared norm is below this share of the largest squared norm of a task vector."""


class SvcParameters(ScaledParameters):
    start: OtherName = name_field("what is calibrated: the sum or the mean of the task vectors, or a method's result")
    start_parameters: Annotated[dict[str, Any], fits("start")] = parameters_field("start")
    alpha: float = Field(
        1.0, gt=0, le=1000, description="the least s that counts; with 1, no direction of the sum grows"
    )

    @property
    def other_result(self) -> OtherResult:
        """The merge whose result is calibrated."""
        return OtherResult(self.start, self.start_parameters)


def _calibrate_directions(merged_tau: Array, taus: Sequence[Array], alpha: float) -> Array:
    """Scale the directions of a merged task vector down if several agents have contributed to them."""
    triples = spectral.leading(merged_tau, lambda squares: len(squares))
    if not triples.s.size:
        return 0 * merged_tau
    u = wide(triples.u)
    shares = u.T @ wide(merged_tau)
    squares = triples.s**2
    least = spectral.noise(merged_tau.shape) * squares[0]
    starts = np.flatnonzero(np.append(True, squares[:-1] - squares[1:] > least))
    null = _NULL * max(spectral.squares(tau) for tau in taus)
    projections = np.zeros(len(starts))
    for tau in taus:
        own = u.T @ wide(tau)
        dots, norms = (np.add.reduceat(to_host((own * other).sum(1)), starts) for other in (shares, own))
        s = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > null)
        projections += np.maximum(alpha, s)
    factors = np.repeat(len(taus) / projections, np.diff(np.append(starts, len(squares))))
    return spectral.scale_columns(u, factors) @ shares


class Svc(Method[SvcParameters, tuple[Start, SvcParameters]]):
    name = "svc"
    family = "spectral"
    title = "Singular value calibration"
    source = "arXiv 2602.05536"
    formula = (
        "matrices: scale * sum_r u_r u_r' tau N / sum_t max(alpha, s_rt), u_r: left singular vectors of the merged "
        "tau; others: scale * tau"
    )
    differs = "has no such method"
    parameters = SvcParameters

    def statistics(self, parameters: SvcParameters, agents: Agents) -> tuple[Statistic, ...]:
        return parameters.other_result.statistics(agents)

    def prepare(self, parameters: SvcParameters, agents: Agents, results: Results) -> tuple[Start, SvcParameters]:
        return parameters.other_result.start(1.0, agents, results), parameters

    def merge(
        self, piece: Piece, prepared: tuple[Start, SvcParameters], counts: Counts | None, allow_nonfinite: bool
    ) -> PieceResult:
        start, parameters = prepared
        if not is_matrix(Layer(piece.tensor, piece.shape)):
            return replace(start, factor=start.factor * parameters.scale).merge(piece, counts, allow_nonfinite)
        other = start.task_vector(piece, allow_nonfinite, piece.shape)

        def merge_numbers(base: Array, *agents: Array) -> Array:
            taus = [orient(agent - base, piece.transposed) for agent in agents]
            first = start(taus) if other is None else orient(other, piece.transposed)
            result = scale_solution(
                [first, *taus],
                (1.0,) * (1 + len(taus)),
                parameters.scale,
                lambda ones: _calibrate_directions(ones[0], ones[1:], parameters.alpha),
                piece.solver or CPU,
            )
            return np.asarray(orient(result, piece.transposed) + base)

        with np.errstate(over="ignore", invalid="ignore"):  # non-finite values show in the result
            return piece.compute_numbers(merge_numbers)

    def unit(self, layer: Layer, parameters: SvcParameters) -> int:
        """All elements of a linear weight; at least 2, because 1 means an element-wise merge."""
        if is_matrix(layer):
            return max(math.prod(layer.shape), 2)
        return parameters.other_result.unit(parameters.scale, layer)

    def scratch(self, layer: Layer, parameters: SvcParameters, agents: int) -> int:
        first = parameters.other_result.scratch(layer, agents)
        if not is_matrix(layer):
            return first
        first += oriented_bytes(layer) + WIDENING_BYTES
        side, elements = min(layer.shape), math.prod(layer.shape)
        return first + ((agents + 3) * layer.itemsize + 6 * 8) * elements + 8 * 4 * side**2

    def solves(self, layer: Layer, parameters: SvcParameters) -> bool:
        return is_matrix(layer) or parameters.other_result.solves(layer)


SVC = Svc()
