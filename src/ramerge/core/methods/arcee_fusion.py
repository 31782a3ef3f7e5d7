"""Arcee Fusion: merge only the most important entries of one agent's task vector (mergekit's method of this name).

I = |tau| * sum over the row of p ln(p / q)        p, q: softmax of the agent's and of the base's row, plus 1e-8
merged = a    where I >= median + 1.5 * (upper quartile - lower quartile), over the tensor
       = b    otherwise

Where at least three quarters of the elements have I = 0, the threshold is 0 and the result is the agent. Quartiles are
the elements of rank floor(q (n - 1)), found by counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels.element_formats import uniform
from ramerge.core.kernels.elementwise import Inputs, histogram
from ramerge.core.kernels.piece import Numbers, Piece
from ramerge.core.methods.base import Agents, Counts, Parameters, Results, RowMethod, row_of
from ramerge.core.methods.quantiles import RankStatistic, Values, rank_statistic
from ramerge.core.methods.trim import every

_LEAST_CHANCE = 1e-8
# Rows are processed in groups of about this many elements, so that intermediate arrays are small.
_GROUP = 1 << 16


class ArceeFusionParameters(Parameters):
    """`arcee_fusion` has no parameters."""


@dataclass(frozen=True)
class Quartiles(Values):
    """Count importances, and find their quartiles."""

    def tally(self, piece: Piece, counts: Counts, bins: Sequence[int] | None, _required: object) -> bool:
        base, agent = piece.numbers((-1, row_of(piece.shape)))
        words = _weighted_changes(base, agent).reshape(-1).view(np.uint32)
        return histogram(every, uniform("F32", 1), [words], Inputs(1, base=False), counts, bins)

    def ranks(self, row: int, count: int) -> tuple[int, ...]:
        return tuple(count - int(part * (count - 1)) for part in (0.25, 0.5, 0.75)) if count else (1, 1, 1)


def _weighted_changes(base: Numbers, agent: Numbers) -> NDArray[np.float32]:
    """Each element's absolute change, times the KL divergence of its row's softmax from that of the base's row."""
    changes = np.empty(base.shape, np.float32)
    step = max(_GROUP // base.shape[1], 1)
    for first in range(0, len(base), step):
        rows = slice(first, first + step)
        with np.errstate(all="ignore"):
            p, q = _softmax_rows(agent[rows]), _softmax_rows(base[rows])
            divergence = np.maximum(np.sum(p * np.log(p / q), axis=-1, keepdims=True), 0)
            changes[rows] = np.abs(agent[rows] - base[rows]) * divergence
    return changes


def _softmax_rows(rows: Numbers) -> NDArray[np.float64]:
    """Softmax of each row plus 1e-8; float64, because the divergence of close rows is far below float32's accuracy."""
    wide = rows.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    chances: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True) + _LEAST_CHANCE
    return chances


class ArceeFusion(RowMethod[ArceeFusionParameters, np.float32]):
    name = "arcee_fusion"
    family = "one model"
    title = "Arcee Fusion of one agent"
    source = "mergekit's method of this name"
    formula = (
        "the agent where |tau| * KL(softmax of its row, of the base's) is at least median + 1.5 * interquartile "
        "range, else the base"
    )
    alone = "only what matters most of its task vector is merged"
    differs = "takes quartiles of a random million of elements, and softmaxes in the dtype of the merge"
    parameters = ArceeFusionParameters
    most: int | None = 1

    def statistics(self, parameters: ArceeFusionParameters, agents: Agents) -> tuple[RankStatistic]:
        return (rank_statistic(Quartiles()),)

    def prepare(self, parameters: ArceeFusionParameters, agents: Agents, results: Results) -> np.float32:
        """The least importance that is merged."""
        lower, median, upper = (rank.value for rank in results[rank_statistic(Quartiles())][0])
        with np.errstate(over="ignore"):
            return np.float32(median + 1.5 * (upper - lower))

    def rows(self, piece: Piece, prepared: np.float32, base: Numbers, *agents: Numbers) -> Numbers:
        # NaN importances of non-finite rows compare as false, so such rows do not become the base's
        return np.where(_weighted_changes(base, agents[0]) < prepared, base, agents[0])


ARCEE_FUSION = ArceeFusion()
