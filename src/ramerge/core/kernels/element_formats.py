"""Layout of floating-point numbers in machine words.

A kernel reads *words*. Where all formats of a loop are the same, a 16-bit format packs two elements in a 32-bit word,
and the other formats one element a word: every lane of a vector register holds a 32-bit (or 64-bit) value from load to
store, and nothing is ever shuffled. Where they differ, a word is one element in all of them, and a loop widens 16 bits
to 32 when it loads, and shortens them when it stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ElementFormat:
    """A floating-point format as kernels see it. Functions are named, as `intrinsics` defines them.

    There is one object of each. So they are compared as objects, which makes keys of caches of kernels cheap.

    Attributes:
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
    word: type[np.uint16] | type[np.uint32] | type[np.uint64]
    real: type[np.float32] | type[np.float64]
    lanes: tuple[str, ...]
    pack: str
    peak: str
    overflow: int
    infinity: int

    @property
    def word_code(self) -> str:
        return f"u{8 * np.dtype(self.word).itemsize}"

    @property
    def real_code(self) -> str:
        return f"f{8 * np.dtype(self.real).itemsize}"

    @property
    def real_name(self) -> str:
        """Name of `real` in source."""
        return f"np.{np.dtype(self.real).name}"

    @property
    def bits(self) -> str:
        """Name of the integer type that holds the bits of `real`."""
        return f"uint{8 * np.dtype(self.real).itemsize}"

    @property
    def bits_code(self) -> str:
        return f"u{8 * np.dtype(self.real).itemsize}"

    def array(self, words: Words, elements: int) -> Words:
        """Part of an array of so many elements that a loop takes, with zeros up to a whole word."""
        return words.view(self.word)[: -(-elements // len(self.lanes))]


_INFINITY_32, _INFINITY_64 = 0x7F800000, 0x7FF0000000000000


def _sixteen_bit_formats(name: str, overflow: int) -> tuple[ElementFormat, ElementFormat]:
    low = name.lower()
    pair, one = ((f"{low}_low", f"{low}_high"), f"{low}_pack"), ((f"{low}_whole",), f"{low}_round")
    return (
        ElementFormat(name, 2, np.uint32, np.float32, *pair, "peak_f32", overflow, _INFINITY_32),
        ElementFormat(name, 2, np.uint16, np.float32, *one, "peak_f32", overflow, _INFINITY_32),
    )


_BF16, _F16 = _sixteen_bit_formats("BF16", 0x7F7F8000), _sixteen_bit_formats("F16", 0x477FF000)
_F32 = ElementFormat(
    "F32", 4, np.uint32, np.float32, ("f32_whole",), "f32_pack", "peak_f32", _INFINITY_32, _INFINITY_32
)
_F64 = ElementFormat(
    "F64", 8, np.uint64, np.float64, ("f64_whole",), "f64_pack", "peak_f64", _INFINITY_64, _INFINITY_64
)

FORMATS = {"BF16": _BF16[0], "F16": _F16[0], "F32": _F32, "F64": _F64}
"""For loops in which all formats are the same."""

ELEMENTS = {"BF16": _BF16[1], "F16": _F16[1], "F32": _F32, "F64": _F64}
"""For loops in which they differ: one element a word."""


def before_packing(source: ElementFormat, target: ElementFormat, value: str) -> str:
    """Source of `value`, of `source`'s real type, as `target`'s `pack` takes it.

    float64 to a 16-bit format goes through float32 rounded to odd, which keeps the last rounding the only one.
    """
    if source.real is target.real:
        return value
    return f"sticky_f32({value})" if target.itemsize == 2 else f"{target.real_name}({value})"


@dataclass(frozen=True)
class Loop:
    """The formats that a loop reads and writes. All have as many lanes, and are computed with in the same real type.

    A loop without a result takes from `out` the type to compute in.
    """

    inputs: tuple[ElementFormat, ...]
    out: ElementFormat

    @property
    def name(self) -> str:
        """The formats, as a part of a function's name."""
        names = [form.name.lower() for form in (*self.inputs, self.out)]
        return names[0] if len(set(names)) == 1 else "_".join(names)

    @property
    def parts(self) -> range:
        """Numbers of the elements of a word."""
        return range(len(self.out.lanes))

    @property
    def codes(self) -> list[str]:
        """Types of the inputs' arrays, as `native.load` takes them."""
        return [f"{form.word_code}[]" for form in self.inputs]

    def element(self, place: int, part: int, word: str) -> str:
        """Source of lane `part` in a word of the input at `place`."""
        return f"{self.inputs[place].lanes[part]}({word})"

    def arrays(self, inputs: Sequence[Words], elements: int) -> list[Words]:
        """Parts of arrays of so many elements that the loop takes."""
        return [form.array(words, elements) for form, words in zip(self.inputs, inputs, strict=True)]


def uniform(format: str, inputs: int) -> Loop:
    """A loop over so many inputs in which all formats are the same."""
    return Loop((FORMATS[format],) * inputs, FORMATS[format])


def loop_of(inputs: Sequence[str], out: str) -> Loop | None:
    """The loop that reads and writes keys of `FORMATS` as they are; None if they must be brought to one format first.

    Each combination of formats is compiled by itself. So there are loops for those that are usual: one format, or F32
    and a 16-bit format where all inputs after the first, which is the base, are alike.
    """
    formats = {*inputs, out}
    usual = formats in ({"BF16", "F32"}, {"F16", "F32"}) and len(set(inputs[1:])) <= 1
    if len(formats) > 1 and not usual:
        return None
    table = FORMATS if len(formats) == 1 else ELEMENTS
    return Loop(tuple(table[format] for format in inputs), table[out])
