"""Methods that are a formula of one element, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from ramerge.core.kernels import elementwise
from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.methods.base import Counts
from ramerge.core.methods.drop_mask import DropMask


@dataclass(frozen=True)
class Formula(elementwise.ElementFormula):
    """A formula with its numbers, and what drops elements of task vectors first."""

    drop_mask: DropMask | None = None


def merge(piece: Piece, prepared: Formula, _counts: Counts | None, _allow_nonfinite: bool) -> PieceResult:
    drop = prepared.drop_mask.drop(piece) if prepared.drop_mask else None
    return piece.compute(
        lambda loop, inputs, out, rounding: elementwise.merge(prepared, loop, inputs, out, drop, rounding),
        beyond=prepared.beyond,
    )
