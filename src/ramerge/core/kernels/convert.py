"""Converts between floating-point formats, and counts values that are not finite or negative."""

from __future__ import annotations

from functools import cache

import numpy as np

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS, FORMATS, ElementFormat, Words, packing_source
from ramerge.core.kernels.native import Kernel

_SOURCE = """
def {name}(words, out):
    peak = np.{bits}(0)
    for i in range(np.uint64(out.size)):
        value = {value}
        peak = {peak}(peak, value)
        out[i] = {pack}(value)
    return peak
"""


def convert(source: str, words: Words, target: str, out: Words, elements: int) -> bool:
    """Convert `elements` numbers to another format: exactly if it is wider, otherwise rounded to nearest even.

    Formats are keys of `FORMATS`; arrays are 1-D, of any integer type. Return whether a result is not finite.
    """
    before, after = ELEMENTS[source], ELEMENTS[target]
    peak = _conversion_kernel(before, after)(before.array(words, elements), after.array(out, elements))
    return bool(peak >= after.overflow)


@cache
def _conversion_kernel(source: ElementFormat, target: ElementFormat) -> Kernel:
    name = f"{source.name.lower()}_to_{target.name.lower()}"
    value = packing_source(source, target, f"{source.lanes[0]}(words[i])")
    text = _SOURCE.format(name=name, bits=target.bits, value=value, peak=target.peak, pack=target.pack)
    return native.load(name, text, (f"{source.word_code}[]", f"{target.word_code}[]"), target.bits_code)


# The bits of the exponent, which are also the bits of infinity.
_EXPONENTS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF0000000000000}


def count_non_finite(format: str, words: Words, elements: int) -> int:
    """Count NaN and Inf among the first `elements` elements."""
    bits = words.view(f"u{FORMATS[format].itemsize}")[:elements]
    exponent = bits.dtype.type(_EXPONENTS[format])
    return int(np.count_nonzero((bits & exponent) == exponent))


def count_negative(format: str, words: Words, elements: int) -> int:
    """Count negative finite numbers among the first `elements` elements."""
    bits = words.view(f"u{FORMATS[format].itemsize}")[:elements]
    top = 1 << (8 * bits.itemsize - 1)
    return int(np.count_nonzero((bits > bits.dtype.type(top)) & (bits < bits.dtype.type(top | _EXPONENTS[format]))))
