"""KnOTS: TIES in a basis that the agents share (Stoica et al. 2025, arXiv 2410.19735).

    [tau_1 ... tau_N] = U S [V_1 ... V_N]^T        tau = scale * U TIES(U^T tau_1, ..., U^T tau_N)

The signs of the basis vectors do not matter. If singular values are equal, the basis and the result are not unique.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from ramerge.core.linalg import arrays, spectral
from ramerge.core.linalg.arrays import Array, wide
from ramerge.core.methods.base import WeightedParameters
from ramerge.core.methods.matrices import Shape, SpectralMethod


class KnotsParameters(WeightedParameters):
    scale: float = Field(0.5, allow_inf_nan=False, description="factor of the merged task vector")
    density: float = Field(
        1.0, ge=0, le=1, description="share of each agent's coordinates that is kept, of each matrix by itself"
    )


def _shared_basis(taus: Sequence[Array]) -> Array:
    """Left singular vectors, shape (m, rank), of all task vectors side by side; from the smaller Gram matrix."""
    out, width = taus[0].shape
    joint = (out, width * len(taus))
    if out <= joint[1]:
        values, vectors = spectral.spectrum(spectral.total(spectral.gram(tau) for tau in taus))
        return vectors[:, : spectral.rank(values, spectral.noise(joint))]
    stack = wide(arrays.concat(taus, 1))
    values, vectors = spectral.spectrum(spectral.gram(stack.T))
    rank = spectral.rank(values, spectral.noise(joint))
    return stack @ spectral.scale_columns(vectors[:, :rank], 1 / np.sqrt(values[:rank]))


def _trim_coordinates(coordinates: Array, density: float) -> Array:
    """Set the smallest coordinates to 0; those that equal the smallest kept magnitude are kept."""
    count = math.prod(coordinates.shape)
    if density >= 1 or not count:
        return coordinates
    if not density:
        return 0 * coordinates
    sizes = abs(coordinates)
    coordinates[sizes < arrays.kth_largest(sizes, max(1, int(density * count)))] = 0
    return coordinates


def elect(values: Sequence[Array]) -> Array:
    """For each coordinate, the mean of the agents' values that have the sign of their sum; 0 if the sum is 0."""
    sign = arrays.sign(sum(values))
    total, voices = 0 * sign, 0 * sign
    for one in values:
        agreement = one * sign > 0
        total += one * agreement
        voices += agreement
    voices[voices < 1] = 1
    return total / voices


class Knots(SpectralMethod[KnotsParameters]):
    name = "knots"
    title = "KnOTS with TIES"
    source = "Model Merging with SVD to Tie the KnOTS, arXiv 2410.19735"
    formula = (
        "matrices: scale * U TIES(U^T tau_t) with the left singular vectors U of all tau_t side by side; "
        "others: scale * mean of tau_t"
    )
    parameters = KnotsParameters

    def solve(self, tensor: str, taus: Sequence[Array], parameters: KnotsParameters) -> Array:
        basis = _shared_basis(taus)
        return basis @ elect([_trim_coordinates(basis.T @ wide(tau), parameters.density) for tau in taus])

    def workspace_floats(self, shape: Shape, parameters: KnotsParameters, agents: int) -> int:
        out, width = shape
        side = min(out, agents * width)
        return 6 * side * side + (agents + 7) * side * width + out * side + agents * out * width


KNOTS = Knots()
