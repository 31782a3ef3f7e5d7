"""How floating-point numbers lie in machine words.

A kernel reads *words*. A 16-bit format packs two elements in a 32-bit word, the other formats one element a word, so
that every lane of a vector register holds a 32-bit (or 64-bit) value from load to store and nothing is ever shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """A floating-point format as kernels see it. Functions are named, as `intrinsics` defines them.

    Attributes:
        name: the dtype in safetensors' spelling.
        itemsize: bytes of one element.
        word: the integer type that kernels load and store.
        real: the type in which the format is computed with (float32, or float64 for F64).
        lanes: functions from a word to its elements, in memory order.
        pack: function from the elements of a word to the word, rounding to nearest even.
        peak: running maximum of magnitudes, as bits of `real`.
        overflow: the smallest magnitude, as bits of `real`, that `pack` rounds to infinity.
        infinity: the bits of infinity in `real`.
    """

    name: str
    itemsize: int
    word: type[np.uint32] | type[np.uint64]
    real: type[np.float32] | type[np.float64]
    lanes: tuple[str, ...]
    pack: str
    peak: str
    overflow: int
    infinity: int

    @property
    def word_code(self) -> str:
        """`word` as `native.load` names it."""
        return f"u{8 * np.dtype(self.word).itemsize}"

    @property
    def real_code(self) -> str:
        """`real` as `native.load` names it."""
        return f"f{8 * np.dtype(self.real).itemsize}"


_INFINITY_32, _INFINITY_64 = 0x7F800000, 0x7FF0000000000000


def _sixteen(name: str, lanes: tuple[str, str], pack: str, overflow: int) -> Format:
    return Format(name, 2, np.uint32, np.float32, lanes, pack, "peak_f32", overflow, _INFINITY_32)


FORMATS = {
    "BF16": _sixteen("BF16", ("bf16_low", "bf16_high"), "bf16_pack", 0x7F7F8000),
    "F16": _sixteen("F16", ("f16_low", "f16_high"), "f16_pack", 0x477FF000),
    "F32": Format("F32", 4, np.uint32, np.float32, ("f32_whole",), "f32_pack", "peak_f32", _INFINITY_32, _INFINITY_32),
    "F64": Format("F64", 8, np.uint64, np.float64, ("f64_whole",), "f64_pack", "peak_f64", _INFINITY_64, _INFINITY_64),
}
