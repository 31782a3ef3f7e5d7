"""kernels."""

from ramerge.core.kernels import fixed, native
from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.fixed import WIDE_LIMBS, decode, encode
from ramerge.core.kernels.formats import ELEMENTS, FORMATS, Loop
from ramerge.core.kernels.piece import Piece
from ramerge.core.kernels.rounding import Counters, kept_base, names_of, rounded
from ramerge.core.kernels.weighted import add_changes

__all__ = [
    "ELEMENTS",
    "FORMATS",
    "WIDE_LIMBS",
    "Counters",
    "Loop",
    "Piece",
    "add_changes",
    "convert",
    "decode",
    "encode",
    "fixed",
    "kept_base",
    "names_of",
    "native",
    "rounded",
]
