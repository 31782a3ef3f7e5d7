"""Reinforced Agent Merging: RAM, RAM+ and RAM+s (arXiv 2601.13572, section 4, appendix E).

tau = 0                              nobody moved the element
    = lambda_t * tau_t               only agent t moved it
    = mean of tau_t over the movers  several did                                            (equation 7)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ramerge.kernels import ram as kernel
from ramerge.kernels.piece import Piece
from ramerge.methods.base import AgentCounts, Counts, Method, Parameters

SOURCE = "Behavior Knowledge Merge in Reinforced Agentic Models, arXiv 2601.13572"


class RamParameters(Parameters):
    """Parameters of `ram`."""

    epsilon: float = Field(1e-5, ge=0, allow_inf_nan=False, description="an element moved if |agent - base| > epsilon")


class RescaledParameters(RamParameters):
    """Parameters of `ram+s`."""

    r: float = Field(0.1, ge=0, le=10, allow_inf_nan=False, description="strength of the rescaling of unique elements")
    scope: Literal["model", "layer", "tensor"] = Field(
        "model", description="what rho is counted over: the whole model (the paper), each layer, each tensor"
    )

    @property
    def counted_over(self) -> str:
        """The scope."""
        return self.scope


class ClippedParameters(RescaledParameters):
    """Parameters of `ram+`."""

    alpha: float = Field(2.0, ge=0, allow_inf_nan=False, description="rho is clipped to at most alpha")


def rho(counts: AgentCounts) -> float:
    """Shared over unique elements (equation 2): infinite without unique ones, 0 without either."""
    if counts.unique == 0:
        return math.inf if counts.shared else 0.0
    return counts.shared / counts.unique


def plain(_counts: AgentCounts, _parameters: RamParameters) -> float:
    """RAM keeps unique elements as they are."""
    return 1.0


def clipped(counts: AgentCounts, parameters: ClippedParameters) -> float:
    """1 + r * clip(rho, 0, alpha) (equation 6)."""
    return 1.0 + parameters.r * min(rho(counts), parameters.alpha)


def saturated(counts: AgentCounts, parameters: RescaledParameters) -> float:
    """1 + r * rho / (1 + rho) (equation 8), computed as 1 + r * S / (S + U), which is the same (equation 9)."""
    return 1.0 + parameters.r * (counts.shared / counts.active if counts.active else 0.0)


def count(piece: Piece, parameters: RamParameters, counts: Counts) -> bool:
    """Count active and unique elements of each agent (equations 1 and 2)."""
    return piece.observe(lambda format, inputs: kernel.count(format, inputs, parameters.epsilon, counts))


def merge(
    piece: Piece, parameters: RamParameters, lambdas: Sequence[float] | None, counts: Counts | None, lenient: bool
) -> bool:
    """Merge a piece (equation 7)."""
    return piece.compute(
        lambda format, inputs, out: kernel.merge(format, inputs, parameters.epsilon, lambdas, out, counts, lenient)
    )


_PAPER: dict[str, object] = {"epsilon": 1e-5}

RAM = Method(
    name="ram",
    title="Reinforced Agent Merging",
    source=f"{SOURCE}, equation 7",
    formula="unique elements kept, shared elements averaged",
    parameters=RamParameters,
    presets={"paper": _PAPER},
    rescale=plain,
    needs_counts=False,
    count=count,
    merge=merge,
)
RAM_PLUS = Method(
    name="ram+",
    title="Reinforced Agent Merging with clipped rescaling",
    source=f"{SOURCE}, equations 6 and 7",
    formula="unique elements times lambda = 1 + r * clip(rho, 0, alpha), shared elements averaged",
    parameters=ClippedParameters,
    presets={
        "paper": {**_PAPER, "r": 0.1, "alpha": 2.0, "scope": "model"},
        # the authors' script clips rho at 1 and multiplies by a factor of 1.2, which is r = 0.2
        "official": {**_PAPER, "r": 0.2, "alpha": 1.0, "scope": "model"},
    },
    rescale=clipped,
    needs_counts=True,
    count=count,
    merge=merge,
)
RAM_PLUS_S = Method(
    name="ram+s",
    title="Reinforced Agent Merging with saturated rescaling",
    source=f"{SOURCE}, equations 7 and 8",
    formula="unique elements times lambda = 1 + r * rho / (1 + rho), shared elements averaged",
    parameters=RescaledParameters,
    presets={"paper": {**_PAPER, "r": 0.1, "scope": "model"}},
    rescale=saturated,
    needs_counts=True,
    count=count,
    merge=merge,
)
