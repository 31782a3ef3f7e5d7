"""Methods that are a formula of one element, and nothing else."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ramerge.core.kernels import elementwise
from ramerge.core.kernels.elementwise import Argument, Each, Element, Inputs
from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.methods.base import Agents, Counts, Method, P, Results, Statistic
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
