"""PSA: singular vectors made orthogonal, with each agent at its own norm (policy-shift-guided spectral alignment).

The authors' code is minsik-choi126/PSA at commit 8b19ded, `pipeline/merge.py`. Its column weights are 1 here, because
computing them takes forward passes of the agents. The leading singular triples of each task vector are kept, as many as
hold the share `energy` of its squared norm. Left vectors and right vectors of all agents, side by side, are replaced by
their polar factors:

    tau~_t = polar(U)_t diag(S_t) polar(V)_t^T        tau = scale * sum_t w_t ||tau_t|| / ||tau~_t|| tau~_t
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import WeightedParameters
from ramerge.core.methods.matrices import Shape, SpectralMethod


class PsaParameters(WeightedParameters):
    energy: float = Field(
        0.9, gt=0, le=1, description="share of a task vector's squared norm that the kept directions hold"
    )


def _gram_of(x: Array) -> Array:
    return x.T @ x


def _leading_count(squares: Array, energy: float) -> int:
    """The least number of leading singular values that hold the share `energy` of the sum of squares."""
    total = squares.sum()
    return int(np.count_nonzero(np.cumsum(squares) < energy * total)) + 1 if total > 0 else 0


class Psa(SpectralMethod[PsaParameters]):
    name = "psa"
    is_transposable = True
    title = "PSA"
    source = (
        "Policy-Shift-Guided Spectral Alignment, github.com/minsik-choi126/PSA at 8b19ded, with column weights of 1"
    )
    formula = (
        "matrices: scale * sum of the shares of tau_t in polar(U) S polar(V)^T of all agents, each at ||tau_t||; "
        "others: scale * mean of tau_t"
    )
    parameters = PsaParameters

    def solve(self, tensor: str, taus: Sequence[Array], parameters: PsaParameters) -> Array:
        if taus[0].shape[0] > taus[0].shape[1]:
            return self.solve(tensor, [tau.T for tau in taus], parameters).T
        truncations = [
            spectral.leading(tau, lambda squares: _leading_count(squares, parameters.energy), exact=False)
            for tau in taus
        ]
        lefts, rights = spectral.side_by_side(truncations)
        lefts = spectral.polar(lefts)
        if rights.shape[1] > len(rights):
            rights, root = spectral.polar(rights), None
        else:  # polar(V) is V root, but only its projection to each agent's part is needed
            root = spectral.inverse_root(rights.T)
        factors, start = [], 0
        for one, tau in zip(truncations, taus, strict=True):
            part = slice(start, start := start + one.s.size)
            share = spectral.scale_columns(lefts[:, part], one.s)
            within = _gram_of(rights[:, part]) if root is None else root.projection(part)
            energy = (
                spectral.squares(share) if within is None else spectral.inner(share, spectral.matmul(share, within))
            )
            factors.append(one.s * (math.sqrt(spectral.squares(tau) / energy) if energy > 0 else 0.0))
        operator = spectral.scale_columns(lefts, np.concatenate(factors))
        if root is not None:
            operator = spectral.matmul(operator, root.root)
        return spectral.matmul(operator, rights.T)

    def workspace_floats(self, shape: Shape, parameters: PsaParameters, agents: int) -> int:
        r, long = sorted(shape)
        return 3 * agents * r * (r + long) + max(6 * min(agents * r, long) ** 2, r * long)


PSA = Psa()
