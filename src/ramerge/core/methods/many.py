"""Weighted sums of more agents than a kernel takes: added in groups, in one order, so the sum is that of one loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.element_formats import FORMATS
from ramerge.core.kernels.piece import Numbers, Piece, PieceResult, arithmetic
from ramerge.core.kernels.weighted import add_weighted
from ramerge.core.methods.base import FEW


def merge_many(
    piece: Piece,
    weights: Sequence[float],
    finish: Callable[[Numbers, Numbers], Numbers],
    *,
    origin: int | None,
    start: float = 0.0,
) -> PieceResult:
    """Store what `finish` makes of one input, the origin, and of start x + sum_t w_t (a_t - x), where x is the origin.

    What rounding does to so many agents is not counted.

    Args:
        piece: its inputs are the agents, or one more, of which the first is the base.
        finish: from the origin and the sum, both 1-D and of that type, to the result.
        origin: which input is the origin; None to sum the agents themselves, where `finish` gets the first of them.
    """
    real, formats = arithmetic(piece.formats), set(piece.formats)
    form = piece.formats[0] if len(formats) == 1 else real
    words = piece.inputs if len(formats) == 1 else piece.widened()
    agents, kind = words[len(words) - len(weights) :], FORMATS[real].real
    first = np.empty(piece.elements, kind)
    convert(form, words[origin or 0], real, first.view(FORMATS[real].word), piece.elements)
    with np.errstate(all="ignore"):  # what is not finite is found in the result
        total = kind(start) * first if start else np.zeros_like(first)
        for begin in range(0, len(agents), FEW):
            group = slice(begin, begin + FEW)
            add_weighted(form, None if origin is None else words[origin], agents[group], weights[group], total)
        return piece.store(finish(first, total))
