"""Methods that merge whole rows, the last axis of a tensor."""

from __future__ import annotations

from abc import abstractmethod

from ramerge.core.kernels.piece import Numbers, Piece, PieceResult
from ramerge.core.methods.base import Counts, Layer, Method, P, R


class RowMethod(Method[P, R]):
    """A method that needs the whole row of an element, so blocks hold whole rows."""

    @abstractmethod
    def rows(self, piece: Piece, prepared: R, base: Numbers, *agents: Numbers) -> Numbers:
        """Merged rows of a piece, of shape (rows, columns), as those of its inputs; float32 or float64."""

    def unit(self, layer: Layer, parameters: P) -> int:
        return row_unit(layer)

    def merge(self, piece: Piece, prepared: R, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        return piece.compute_numbers(lambda *rows: self.rows(piece, prepared, *rows), (-1, row_of(piece.shape)))


def row_of(shape: tuple[int, ...]) -> int:
    """Number of elements of a row; a scalar counts as a row of one."""
    return max(shape[-1], 1) if shape else 1


def row_unit(layer: Layer) -> int:
    """Whole rows; more than one element, for which there is room to widen them."""
    return max(row_of(layer.shape), 2)
