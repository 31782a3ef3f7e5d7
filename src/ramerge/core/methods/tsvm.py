"""TSV-Merge: singular vectors of all agents, made orthogonal to each other (Gargiulo et al. 2025, arXiv 2412.00081).

For a matrix of rank r at most, the leading floor(r / N) singular triples of each of N task vectors are kept. Their left
vectors, side by side in U, and their right vectors, side by side in V, are replaced by the nearest matrices with
orthonormal columns:

    tau = scale * polar(U) diag(S) polar(V)^T        polar(X) = X (X^T X)^(-1/2)
"""

from __future__ import annotations

from collections.abc import Sequence

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import WeightedParameters
from ramerge.core.methods.matrices import Shape, SpectralMethod


class Tsvm(SpectralMethod[WeightedParameters]):
    name = "tsvm"
    is_transposable = True
    title = "TSV-Merge"
    source = "Task Singular Vectors: Reducing Task Interference in Model Merging, arXiv 2412.00081"
    formula = (
        "matrices: scale * polar(U) S polar(V)^T of the leading r / N singular triples of each tau_t; "
        "others: scale * mean of tau_t"
    )
    parameters = WeightedParameters

    def solve(self, tensor: str, taus: Sequence[Array], parameters: WeightedParameters) -> Array:
        """The merged task vector; the mean of the task vectors if there are more agents than singular values."""
        k = min(taus[0].shape) // len(taus)
        if not k:
            return spectral.total(taus) / len(taus)
        return spectral.align([spectral.leading(tau, lambda _squares: k) for tau in taus])

    def workspace_floats(self, shape: Shape, parameters: WeightedParameters, agents: int) -> int:
        r, long = sorted(shape)
        return 3 * (r // agents * agents) * (r + long) + max(6 * r * r, r * long)


TSVM = Tsvm()
