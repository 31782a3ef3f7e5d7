"""ResMerge: the heads and the residuals of task vectors, merged separately (arXiv 2606.02252).

The head H_t is the leading singular part of tau_t, of rank `rank_topk`, and R_t = tau_t - H_t is the residual. With the
unit vectors q_t = R_t / ||R_t|| and the direction q of their mean:

    a = mean over pairs of cos(R_s, R_t)        c = mean of cos(q_t, q)        z = ((a + 1) / 2 + (c + 1) / 2) / 2
    beta = src_beta_max - (src_beta_max - src_beta_min) z        A = c^beta * mean ||R_t|| * q
    S = mean over pairs of max(0, cos(H_s, H_t))        tau = A + head_ratio_budget * S * ||A|| * H / ||H||

z is 0 for matrices that belong neither to attention nor to an MLP. A is the mean of the residuals if their directions
agree no more than orthogonal directions would, c <= 1 / sqrt(N). H is the mean of the heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pydantic import Field

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array, wide
from ramerge.core.methods.base import ScaledParameters
from ramerge.core.methods.matrices import Shape, SpectralMethod

_FAMILIES = re.compile(
    r"self_attn|\.attn\.|attention|q_proj|k_proj|v_proj|o_proj|mlp|ffn|feed_forward|gate_proj|up_proj|down_proj",
    re.IGNORECASE,
)
# Relative norms and differences of cosines below this are rounding errors. Orthogonal residuals have c = 1 / sqrt(N).
_EQUAL = 1e-9


class ResmergeParameters(ScaledParameters):
    rank_topk: int = Field(1, ge=1, description="singular triples of a head")
    src_beta_min: float = Field(0.7, ge=0, allow_inf_nan=False, description="exponent of c where residuals agree")
    src_beta_max: float = Field(1.0, ge=0, allow_inf_nan=False, description="exponent of c where they do not")
    head_ratio_budget: float = Field(
        0.2,
        ge=0,
        allow_inf_nan=False,
        description="norm of the heads' part over that of the residuals, where heads agree",
    )


@dataclass(frozen=True)
class _SplitTau:
    """Head and residual of a task vector, float64, and their norms; a residual of mere rounding errors has norm 0."""

    head: Array
    residual: Array
    head_norm: float
    residual_norm: float


def _split_tau(tau: Array, k: int) -> _SplitTau:
    triples = spectral.leading(tau, lambda _squares: k)
    head = spectral.scale_columns(wide(triples.u), triples.s) @ wide(triples.v).T
    residual = wide(tau) - head
    norms = [spectral.norm(x) for x in (head, residual)]
    return _SplitTau(head, residual, norms[0], norms[1] if norms[1] > _EQUAL * norms[0] else 0.0)


def _merged_residual(parts: Sequence[_SplitTau], parameters: ResmergeParameters, in_family: bool) -> Array:
    mean = spectral.total(one.residual for one in parts) / len(parts)
    units = [one for one in parts if one.residual_norm]
    if not units:
        return 0 * mean
    direction = spectral.total(one.residual / one.residual_norm for one in units)
    length = spectral.norm(direction)
    coherence = min(1.0, length / len(parts))  # the mean of cos(q_t, q), where zero residuals count as 0
    if coherence <= (1 + _EQUAL) / math.sqrt(len(parts)):
        return mean
    pairs = [
        spectral.inner(one.residual, other.residual) / (one.residual_norm * other.residual_norm)
        for one, other in combinations(units, 2)
    ]
    alike = sum(pairs) / max(math.comb(len(parts), 2), 1)
    z = ((alike + 1) / 2 + (coherence + 1) / 2) / 2 if in_family else 0.0
    beta = parameters.src_beta_max - (parameters.src_beta_max - parameters.src_beta_min) * min(max(z, 0.0), 1.0)
    norm = sum(one.residual_norm for one in parts) / len(parts)
    direction *= coherence**beta * norm / length
    return direction


def _head_agreement(heads: Sequence[_SplitTau]) -> float:
    if len(heads) < 2:
        return float(len(heads))
    cosines = [
        spectral.inner(one.head, other.head) / (one.head_norm * other.head_norm)
        for one, other in combinations(heads, 2)
    ]
    return sum(max(0.0, cosine) for cosine in cosines) / len(cosines)


class Resmerge(SpectralMethod[ResmergeParameters]):
    name = "resmerge"
    is_transposable = True
    title = "ResMerge"
    source = "ResMerge, arXiv 2606.02252; sunyd0303-cpu/ResMerge-release at e990128"
    formula = (
        "matrices: leading singular parts and residuals of tau_t, each merged by agreement; "
        "others: scale * mean of tau_t"
    )
    parameters = ResmergeParameters

    def solve(self, tensor: str, taus: Sequence[Array], parameters: ResmergeParameters) -> Array:
        parts = [_split_tau(tau, parameters.rank_topk) for tau in taus]
        residual = _merged_residual(parts, parameters, bool(_FAMILIES.search(tensor)))
        heads = [one for one in parts if one.head_norm]
        head = spectral.total(one.head for one in parts)
        size = spectral.norm(head)
        agreement = _head_agreement(heads)
        if size > _EQUAL * max(one.head_norm for one in parts) and agreement:
            head *= parameters.head_ratio_budget * agreement * spectral.norm(residual) / size
            residual += head
        return residual

    def workspace_floats(self, shape: Shape, parameters: ResmergeParameters, agents: int) -> int:
        r, long = sorted(shape)
        return (2 * agents + 3) * r * long + 6 * r * r

    def harms_adapters(self, parameters: ResmergeParameters) -> str:
        return "damps the leading direction of each, which may be most of it"


RESMERGE = Resmerge()
