"""Methods that consist of a formula of one element; weighted sums of more agents than a kernel takes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ramerge.core.kernels import elementwise
from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.element_formats import FORMATS
from ramerge.core.kernels.elementwise import Argument, Each, Element, Inputs
from ramerge.core.kernels.piece import Numbers, Piece, PieceResult, arithmetic
from ramerge.core.kernels.weighted import add_weighted
from ramerge.core.methods.base import FEW, Agents, Counts, Method, P, Results, Statistic
from ramerge.core.methods.drop_mask import DropMask


@dataclass(frozen=True)
class Formula(elementwise.ElementFormula):
    """A formula with its arguments, and a drop mask for task vectors."""

    drop_mask: DropMask | None = None


class ElementMethod(Method[P, Formula]):
    """A method that is a formula of one element, compiled together with the loop around it.

    Attributes:
        element: `element(base, taus, [importances,] *numbers)`, a plain function of numbers and of tuples with one
            number per agent; see `kernels.elementwise`.
    """

    element: Element

    @abstractmethod
    def numbers(self, parameters: P, agents: Agents, results: Results) -> tuple[Argument, ...]:
        """Arguments of the formula besides its inputs."""

    def beyond(self, parameters: P, results: Results) -> Each:
        """Thresholds, one per agent or one for all: an agent has moved an element if |tau| is larger."""
        return (0.0,)

    def drop_mask(self, parameters: P, agents: Agents) -> DropMask | None:
        """The mask that drops elements of task vectors before merging; None for none."""
        return None

    def prepare(self, parameters: P, agents: Agents, results: Results) -> Formula:
        return Formula(
            self.element,
            self.numbers(parameters, agents, results),
            Inputs(len(agents), self.needs_base, self.needs_importance),
            self.beyond(parameters, results),
            self.drop_mask(parameters, agents),
        )

    def merge(self, piece: Piece, prepared: Formula, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        return merge(piece, prepared)


class CountedMethod(ElementMethod[P]):
    """A method that is a formula of one element whose arguments depend on statistics: it reads inputs repeatedly."""

    @abstractmethod
    def statistics(self, parameters: P, agents: Agents) -> tuple[Statistic, ...]:
        """The statistics whose results `numbers` uses; empty if these parameters need none."""


def merge(piece: Piece, formula: Formula) -> PieceResult:
    """Write the value of the formula for each element of a piece."""
    drop = formula.drop_mask.drop(piece) if formula.drop_mask else None
    return piece.compute(
        lambda loop, inputs, out, rounding: elementwise.merge(formula, loop, inputs, out, drop, rounding),
        beyond=formula.beyond,
    )


def merge_many(
    piece: Piece,
    weights: Sequence[float],
    finish: Callable[[Numbers, Numbers], Numbers],
    *,
    origin: int | None,
    start: float = 0.0,
) -> PieceResult:
    """Store finish(x, start x + sum_t w_t (a_t - x)), where the input x is the origin and a_t are the agents.

    The effects of rounding are not counted.

    Args:
        piece: its inputs are the agents, preceded by the base if there is one.
        finish: computes the result from the origin and the sum, both 1-D and in the dtype of the computation.
        origin: index of the input that is the origin; None to sum the agents themselves: `finish` then gets the first
            input as the origin.
    """
    real, formats = arithmetic(piece.formats), set(piece.formats)
    form = piece.formats[0] if len(formats) == 1 else real
    words = piece.inputs if len(formats) == 1 else piece.widened()
    agents, kind = words[len(words) - len(weights) :], FORMATS[real].real
    first = np.empty(piece.elements, kind)
    convert(form, words[origin or 0], real, first.view(FORMATS[real].word), piece.elements)
    with np.errstate(all="ignore"):  # non-finite values are found in the result
        total = kind(start) * first if start else np.zeros_like(first)
        for begin in range(0, len(agents), FEW):
            group = slice(begin, begin + FEW)
            add_weighted(form, None if origin is None else words[origin], agents[group], weights[group], total)
        return piece.store(finish(first, total))
