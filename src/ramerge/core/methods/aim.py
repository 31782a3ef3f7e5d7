"""AIM: activation-informed merging (Nobari et al. 2025, arXiv 2502.02421), on the sum of the task vectors.

For a linear weight, with the mean absolute activation a_j of its input j over recorded inputs of all agents,

    tau_ij = scale * (sum_t tau_t)_ij * (1 - (1 - keep) a_j / max_j a_j)

Weights that multiply the base's strongest inputs change least. The paper takes the base's activations on any text:
record inputs with `ramerge calibrate --source base`. All other tensors, and weights without recorded inputs, take the
sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import (
    INPUTS,
    Agents,
    Counts,
    Layer,
    Method,
    RecordedRows,
    Results,
    ScaledParameters,
    SideInput,
)
from ramerge.core.methods.matrices import WIDENING_BYTES
from ramerge.core.methods.other_result import Start


class AimParameters(ScaledParameters):
    keep: float = Field(
        0.2, ge=0, le=1, description="what stays of an update that meets the input with the largest activation"
    )


class Aim(Method[AimParameters, Start]):
    name = "aim"
    family = "prompts"
    title = "Activation-informed merging"
    source = "Activation-Informed Merging of Large Language Models, arXiv 2502.02421"
    formula = (
        "linear weights: scale * (sum_t tau_t)_ij (1 - (1 - keep) a_j / max a), a: mean absolute inputs; others: "
        "scale * sum_t tau_t"
    )
    differs = "has no such method"
    parameters = AimParameters
    side: SideInput | None = INPUTS

    def operator(self, layer: Layer, records: Sequence[RecordedRows], parameters: AimParameters) -> Array | None:
        """Return the share of the update that each input keeps.

        Shape (d,), or (d, 1) for a weight stored transposed; None if all activations are 0.
        """
        means = np.mean([each.weights @ np.abs(each.inputs) for each in records], 0)
        largest = float(means.max(initial=0.0))
        if not largest:
            return None
        shares: Array = 1 - (1 - parameters.keep) * (means / largest)
        shares = shares.astype(np.float32 if layer.itemsize == 4 else np.float64)
        return shares[:, None] if layer.transposed else shares

    def prepare(self, parameters: AimParameters, agents: Agents, results: Results) -> Start:
        return Start(len(agents), parameters.scale)

    def merge(self, piece: Piece, prepared: Start, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        if piece.operator is None:
            return prepared.merge(piece, counts, allow_nonfinite)

        def damped(base: Array, *agents: Array) -> Array:
            return np.asarray(base + prepared([agent - base for agent in agents]) * piece.operator)

        with np.errstate(over="ignore", invalid="ignore"):  # non-finite values show in the result
            return piece.compute_numbers(damped, (-1, piece.shape[1]))

    def unit(self, layer: Layer, parameters: AimParameters) -> int:
        """Whole rows if inputs were recorded; at least 2, because 1 means an element-wise merge."""
        return max(layer.shape[1] * (layer.width if layer.transposed else 1), 2) if layer.rows else 1

    def scratch(self, layer: Layer, parameters: AimParameters, agents: int) -> int:
        """Bytes that the recorded inputs and their absolute values take."""
        result = 4 * math.prod(layer.shape) if layer.transposed else 0
        return 16 * (sum(layer.rows) * layer.width + result) + WIDENING_BYTES if layer.rows else 0


AIM = Aim()
