"""WUDI-Merging: the task vector that interferes least (Cheng et al. 2025, arXiv 2503.08099).

For each linear weight, tau minimizes sum_t ||(tau - tau_t) tau_t^T||_F^2 / ||tau_t||_F^2; all other tensors are merged
by Task Arithmetic. Linear weights are the matrices named `....weight` inside the numbered layers of a model. The
objective is quadratic: `linalg.wudi` computes its minimum directly, while the authors take 300 steps of Adam.

In directions in which the agents hardly moved, the minimum can be hundreds of times as far from the base as the sum of
the task vectors, although the objective hardly improves; Adam never gets there. `proximity` bounds that: in a direction
with the share s of the curvature, tau goes the fraction 1 - (proximity / (s + proximity))^2 of the way from the sum to
the minimum. With 1e-10, it reaches the minimum to float32 accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from ramerge.core.linalg import arrays
from ramerge.core.linalg import wudi as kernel
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import Agents, Layer, Parameters
from ramerge.core.methods.formula import Formula
from ramerge.core.methods.matrices import MatrixMethod
from ramerge.core.methods.task_arithmetic import weighted_sum


class WudiParameters(Parameters):
    proximity: float = Field(
        1e-5,
        ge=1e-12,
        le=1,
        description="the share of the curvature at which a direction goes three quarters of the way from the sum to "
        "the minimum; those of a smaller share stay nearer to the sum, smoothly; 1e-10: the minimum itself",
    )
    scale: float = Field(
        1.0, allow_inf_nan=False, description="factor of the task vectors of tensors that are not linear weights"
    )


class Wudi(MatrixMethod[WudiParameters]):
    name = "wudi"
    family = "spectral"
    title = "WUDI-Merging"
    source = "Whoever Started the Interference Should End It, arXiv 2503.08099; RAM paper, appendix C.6"
    formula = (
        "linear weights: tau of least sum_t ||(tau - tau_t) tau_t^T||^2 / ||tau_t||^2; others: scale * sum_t tau_t"
    )
    differs = "has no such method"
    parameters = WudiParameters

    def solve(self, tensor: str, taus: Sequence[Array], parameters: WudiParameters) -> Array:
        """The merged task vector of a linear weight; NaN if a task vector is not finite."""
        if not all(map(arrays.all_finite, taus)):
            return math.nan * taus[0]
        return kernel.closed_form(taus, parameters.proximity)

    def others(self, parameters: WudiParameters, agents: Agents) -> Formula:
        return weighted_sum((1.0,) * len(agents), parameters.scale)

    def memory(self, layer: Layer, parameters: WudiParameters, agents: int) -> int:
        """Bytes for the task vectors in the dtype of the computation, the result, and the solver."""
        out, width = layer.shape
        vectors = (agents + 2) * out * width * 8
        return vectors + kernel.scratch_bytes((out, width), agents)

    def harms_adapters(self, parameters: WudiParameters) -> str:
        return "goes to a minimum that amplifies directions that adapters have almost in common"


WUDI = Wudi()
