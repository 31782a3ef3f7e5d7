"""Compiled loops over blocks of tensors, and the store of their machine code.

>>> import numpy as np
>>> from ramerge.sdk.kernels import convert
>>> numbers, words = np.array([1.0], np.float32).view(np.uint32), np.empty(1, np.uint16)
>>> convert("F32", numbers, "BF16", words, 1)  # whether a result is not finite
False
>>> hex(words[0])  # 1.0 in bfloat16
'0x3f80'
"""

from ramerge.core.kernels import fixed, native
from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.element_formats import ELEMENTS, FORMATS, Loop
from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.kernels.rounding import Counters, kept_base, names_of, rounded
from ramerge.core.kernels.weighted import add_changes

__all__ = [
    "ELEMENTS",
    "FORMATS",
    "Counters",
    "Loop",
    "Piece",
    "PieceResult",
    "add_changes",
    "convert",
    "fixed",
    "kept_base",
    "names_of",
    "native",
    "rounded",
]
