"""Methods that are a formula of one element, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from ramerge.kernels.elementwise import Element, Inputs
from ramerge.kernels.elementwise import merge as merge_elements
from ramerge.kernels.piece import Piece
from ramerge.methods.base import Counts
from ramerge.methods.coins import Coins


@dataclass(frozen=True)
class Formula:
    """A formula with its numbers.

    Attributes:
        element: the formula of one element, as `kernels.elementwise.merge` takes it.
        each: tuples of one number for each agent; at least one.
        common: numbers.
        inputs: what it reads beside the agents.
        coins: drops elements of task vectors first.
        bounds: which of `each` it is that magnitudes are compared with: what a merge counts are those above, and those
            that reach it.
        beyond: one for each agent, or only one: it has moved an element where |agent - base| > beyond; for what is
            counted of rounding.
    """

    element: Element
    each: tuple[tuple[float, ...], ...]
    common: tuple[float, ...] = ()
    base: bool = True
    importances: bool = False
    coins: Coins | None = None
    bounds: int = 0
    beyond: tuple[float, ...] = (0.0,)


def merge(piece: Piece, prepared: Formula, counts: Counts | None, _lenient: bool) -> bool:
    """Merge a piece by its formula; see `Method.merge`."""
    which = Inputs(len(prepared.each[0]), base=prepared.base, importances=prepared.importances)
    drop = prepared.coins.drop(piece) if prepared.coins else None
    return piece.compute(
        lambda loop, inputs, out, rounding: merge_elements(
            prepared.element,
            loop,
            inputs,
            out,
            which,
            prepared.each,
            prepared.common,
            drop,
            rounding,
            prepared.beyond,
            counts,
            prepared.bounds,
        ),
        beyond=prepared.beyond,
    )
