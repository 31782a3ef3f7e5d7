"""Methods that are a formula of one element, and nothing else; sums of more agents than a kernel takes."""

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
    """A formula with its numbers, and a drop mask for task vectors."""

    drop_mask: DropMask | None = None


class ElementMethod(Method[P, Formula]):
    """A formula of one element, compiled with the loop around it.

    Attributes:
        element: `element(base, taus, [importances,] *numbers)`, a plain function of numbers and of tuples of one number
            for each agent; see `kernels.elementwise`.
    """

    element: Element

    @abstractmethod
    def numbers(self, parameters: P, agents: Agents, results: Results) -> tuple[Argument, ...]:
        """Numbers that the formula takes besides its inputs."""

    def beyond(self, parameters: P, results: Results) -> Each:
        """One for each agent, or only one: it has moved an element where |tau| > beyond."""
        return (0.0,)

    def drop_mask(self, parameters: P, agents: Agents) -> DropMask | None:
        """Random draws that drop elements of task vectors first; None for none."""
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
    """A formula whose numbers depend on statistics, so that the inputs are read more than once."""

    @abstractmethod
    def statistics(self, parameters: P, agents: Agents) -> tuple[Statistic, ...]:
        """Statistics whose results `numbers` takes; none if these parameters need none."""


def merge(piece: Piece, formula: Formula) -> PieceResult:
    """Write the formula's value for every element of a piece."""
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
    """Store what `finish` makes of one input, the origin, and of start x + sum_t w_t (a_t - x), where x is the origin.

    The effect of rounding on so many agents is not counted.

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
