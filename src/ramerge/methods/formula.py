"""Methods that are a formula of one element, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from ramerge.kernels.elementwise import Element, Given, Inputs
from ramerge.kernels.elementwise import merge as merge_elements
from ramerge.kernels.piece import Piece
from ramerge.methods.base import Counts
from ramerge.methods.drop_mask import DropMask


@dataclass(frozen=True)
class Formula:
    """A formula with its numbers.

    Attributes:
        element: the formula of one element, as `kernels.elementwise.merge` takes it.
        given: what it takes beside its inputs, in order: numbers, flags, and tuples of one number for each agent.
        agents: how many there are.
        inputs: what it reads beside the agents.
        coins: drops elements of task vectors first.
        bounds: which of `given` it is that magnitudes are compared with: what a merge counts are those above, and those
            that reach it.
        beyond: one for each agent, or only one: it has moved an element where |agent - base| > beyond; for what is
            counted of rounding.
    """

    element: Element
    given: tuple[Given, ...]
    agents: int
    base: bool = True
    importances: bool = False
    coins: DropMask | None = None
    bounds: int = 0
    beyond: tuple[float, ...] = (0.0,)


def merge(piece: Piece, prepared: Formula, counts: Counts | None, _allow_nonfinite: bool) -> bool:
    """Merge a piece by its formula; see `Method.merge`."""
    which = Inputs(prepared.agents, base=prepared.base, importances=prepared.importances)
    drop = prepared.coins.drop(piece) if prepared.coins else None
    return piece.compute(
        lambda loop, inputs, out, rounding: merge_elements(
            prepared.element,
            loop,
            inputs,
            out,
            which,
            prepared.given,
            drop,
            rounding,
            prepared.beyond,
            counts,
            prepared.bounds,
        ),
        beyond=prepared.beyond,
    )
