"""Layout of floating-point numbers in machine words.

A kernel reads *words*. If all formats of a loop are the same, a word of a 16-bit format is 32 bits with two elements,
and a word of another format is one element: every lane of a vector register holds a 32-bit (or 64-bit) value from load
to store, and nothing is ever shuffled. If the formats differ, every word is one element, and a loop widens 16 bits to
32 when it loads, and narrows them when it stores.
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
    """A floating-point format as kernels see it. Functions are given by their names in `intrinsics`.

    Formats are singletons that compare by identity, which makes them cheap keys of caches of kernels.

    Attributes:
        word: the integer type that kernels load and store.
        real: the type for arithmetic (float32, or float64 for F64).
        lanes: functions that extract the elements of a word, in memory order.
        pack: function that packs elements into a word, rounding to nearest even.
        peak: function for a running maximum of magnitudes, as bits of `real`.
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
        """The name of `real` in kernel source."""
        return f"np.{np.dtype(self.real).name}"

    @property
    def bits(self) -> str:
        """The name of the integer type that holds the bits of `real`."""
        return f"uint{8 * np.dtype(self.real).itemsize}"

    @property
    def bits_code(self) -> str:
        return f"u{8 * np.dtype(self.real).itemsize}"

    def array(self, words: Words, elements: int) -> Words:
        """Return the first `elements` elements of an array as whole words; the last word may have zeros at its end."""
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
"""Formats for loops in which all formats are the same."""

ELEMENTS = {"BF16": _BF16[1], "F16": _F16[1], "F32": _F32, "F64": _F64}
"""Formats for loops with different formats: every word is one element."""


def packing_source(source: ElementFormat, target: ElementFormat, value: str) -> str:
    """Return source code that converts `value` from `source`'s real type to the type that `target`'s `pack` takes.

    From float64 to a 16-bit format, it goes through float32 rounded to odd, so that the final rounding is correct.
    """
    if source.real is target.real:
        return value
    return f"sticky_f32({value})" if target.itemsize == 2 else f"{target.real_name}({value})"


@dataclass(frozen=True)
class Loop:
    """The formats that a loop reads and writes. All have the same number of lanes, and share a type for arithmetic.

    In a loop without a result, `out` only sets the type for arithmetic.
    """

    inputs: tuple[ElementFormat, ...]
    out: ElementFormat

    @property
    def formats_suffix(self) -> str:
        """The formats, as a suffix of a function's name."""
        names = [form.name.lower() for form in (*self.inputs, self.out)]
        return names[0] if len(set(names)) == 1 else "_".join(names)

    @property
    def parts(self) -> range:
        """The indices of the elements in a word."""
        return range(len(self.out.lanes))

    @property
    def codes(self) -> list[str]:
        """The types of the inputs' arrays, for `native.load`."""
        return [f"{form.word_code}[]" for form in self.inputs]

    def element(self, place: int, part: int, word: str) -> str:
        """Return source code that extracts element `part` from a word of input number `place`."""
        return f"{self.inputs[place].lanes[part]}({word})"

    def arrays(self, inputs: Sequence[Words], elements: int) -> list[Words]:
        """Return the first `elements` elements of each input as words of the loop's formats."""
        return [form.array(words, elements) for form, words in zip(self.inputs, inputs, strict=True)]


def uniform(format: str, inputs: int) -> Loop:
    """Return a loop over `inputs` inputs in which all formats are the same."""
    return Loop((FORMATS[format],) * inputs, FORMATS[format])


def loop_of(inputs: Sequence[str], out: str) -> Loop | None:
    """Return the loop for these formats (keys of `FORMATS`); None if inputs must be converted to one format first.

    Each combination of formats is compiled separately, so only usual ones have loops: a single format, or F32 and one
    16-bit format if all inputs after the first, the base, have the same format.
    """
    formats = {*inputs, out}
    usual = formats in ({"BF16", "F32"}, {"F16", "F32"}) and len(set(inputs[1:])) <= 1
    if len(formats) > 1 and not usual:
        return None
    table = FORMATS if len(formats) == 1 else ELEMENTS
    return Loop(tuple(table[format] for format in inputs), table[out])
