"""Iso-C: the sum of task vectors with all singular values equal (Marczak et al. 2025, arXiv 2502.04959).

    Delta = sum_t w_t tau_t        tau = scale * mean(sigma) * polar(Delta)

sigma are the min(m, n) singular values of Delta, including zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import WeightedParameters
from ramerge.core.methods.matrices import ScaledP, Shape, SpectralMethod


def _equalize_singular_values(delta: Array) -> Array:
    """Replace all singular values of a matrix by their mean."""
    if len(delta) > delta.shape[1]:
        return _equalize_singular_values(delta.T).T
    values, vectors = spectral.spectrum(spectral.gram(delta))
    rank = spectral.rank(values, spectral.noise(delta.shape))
    u, sigma = vectors[:, :rank], np.sqrt(values[:rank])
    return (spectral.scale_columns(u, sigma.sum() / len(delta) / sigma) @ u.T) @ delta


class Isotropic(SpectralMethod[ScaledP]):
    """A method that makes all singular values equal."""

    def harms_adapters(self, parameters: ScaledP) -> str:
        return "makes their update shorter, because its mean counts singular values that are 0; raise scale"


class IsoC(Isotropic[WeightedParameters]):
    name = "iso_c"
    is_transposable = True
    title = "Iso-C"
    source = "No Task Left Behind: Isotropic Model Merging with Common and Task-Specific Subspaces, arXiv 2502.04959"
    formula = (
        "matrices: the singular values of sum_t w_t tau_t all become scale * their mean; others: scale * mean of tau_t"
    )
    parameters = WeightedParameters

    def solve(self, tensor: str, taus: Sequence[Array], parameters: WeightedParameters) -> Array:
        return _equalize_singular_values(spectral.total(taus))

    def workspace_floats(self, shape: Shape, parameters: WeightedParameters, agents: int) -> int:
        r, long = sorted(shape)
        return 6 * r * r + 2 * r * long


ISO_C = IsoC()
