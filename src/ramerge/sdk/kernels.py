"""Blocks of tensors: the input and output of a method with its own class.

>>> from ramerge.sdk.kernels import Piece, PieceResult
>>> def last(piece: Piece) -> PieceResult:
...     return piece.compute_numbers(lambda base, *agents: agents[-1], (-1,))
"""

from ramerge.core.kernels.piece import Piece, PieceResult

__all__ = [
    "Piece",
    "PieceResult",
]
