"""Iso-CTS: common and task-specific directions, all equally strong (Marczak et al. 2025, arXiv 2502.04959).

Of r = min(m, n) directions, k come from the sum Delta of the task vectors. The others are the leading directions of
each agent outside of the left space of these k, with the same number for each agent:

    T = N round((r - floor(r f)) / N)        k = r - T
    U_c: the k leading left vectors of Delta        tau_t' = tau_t - U_c U_c^T tau_t: its T / N leading triples
    tau = scale * mean(sigma) * polar(U) polar(V)^T        U, V: vectors of all these triples, side by side
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array, wide
from ramerge.core.linalg.spectral import Triples
from ramerge.core.methods.base import WeightedParameters
from ramerge.core.methods.iso_c import Isotropic
from ramerge.core.methods.matrices import Shape


class IsoCtsParameters(WeightedParameters):
    common_space_fraction: float = Field(
        0.8, ge=0, le=1, description="share of the directions that are those of the sum"
    )


def _own_directions(r: int, agents: int, fraction: float) -> int:
    """How many of `r` directions each agent contributes; rounded half to even, as in the authors' code."""
    return min(round((r - int(r * fraction)) / agents), r // agents)


def _leading_directions_outside(tau: Array, common: Array, k: int) -> Triples:
    tau, common = wide(tau), wide(common)
    left = tau - common @ (common.T @ tau)
    return spectral.leading(left, lambda _squares: k, least=spectral.squares(tau))


class IsoCts(Isotropic[IsoCtsParameters]):
    name = "iso_cts"
    title = "Iso-CTS"
    source = "No Task Left Behind: Isotropic Model Merging with Common and Task-Specific Subspaces, arXiv 2502.04959"
    formula = (
        "matrices: leading directions of the sum, and of each tau_t outside of these, made orthogonal, all of the "
        "mean singular value; others: scale * mean of tau_t"
    )
    parameters = IsoCtsParameters

    def solve(self, tensor: str, taus: Sequence[Array], parameters: IsoCtsParameters) -> Array:
        r = min(taus[0].shape)
        own = _own_directions(r, len(taus), parameters.common_space_fraction)
        common = spectral.leading(spectral.total(taus), lambda _squares: r - own * len(taus))
        parts = [*[_leading_directions_outside(tau, common.u, own) for tau in taus if own], common]
        sigma = sum(float(one.s.sum()) for one in parts) / r
        return spectral.align([Triples(one.u, np.full_like(one.s, sigma), one.v) for one in parts])

    def workspace_floats(self, shape: Shape, parameters: IsoCtsParameters, agents: int) -> int:
        r, long = sorted(shape)
        return 3 * r * (r + long) + max(6 * r * r, 2 * r * long)


ISO_CTS = IsoCts()
