"""Between formats: exact widening of inputs, one rounding of results. Only tensors of mixed dtypes come here."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native
from ramerge.kernels.formats import FORMATS, Format

Words = NDArray[Any]

_WIDEN = """
def {name}(words, out):
    for i in range(np.uint64(words.size)):
        word = words[i]
        {stores}
    return 0
"""

_NARROW = """
def {name}(values, out):
    peak = np.{peak_type}(0)
    for i in range(np.uint64(out.size)):
        {loads}
        out[i] = {pack}({names})
    return peak
"""


def _at(lane: int, lanes: int) -> str:
    """Index of an element in a word, unsigned like `i`: signed indices become gathers."""
    return f"np.uint64({lanes}) * i + np.uint64({lane})"


@cache
def _widen(source: Format, target: Format) -> Any:
    name = f"widen_{source.name.lower()}_{target.name.lower()}"
    width = len(source.lanes)
    stores = "\n        ".join(f"out[{_at(k, width)}] = {lane}(word)" for k, lane in enumerate(source.lanes))
    arguments = (f"{source.word_code}[]", f"{target.real_code}[]")
    return native.load(name, _WIDEN.format(name=name, stores=stores), arguments, "i64")


@cache
def _narrow(source: Format, target: Format) -> Any:
    name = f"narrow_{source.name.lower()}_{target.name.lower()}"
    width = len(target.lanes)
    # float64 to a 16-bit format goes through float32 rounded to odd, which keeps the last rounding the only one
    via = "" if source.real is target.real else ("sticky_f32" if width == 2 else f"np.{target.real.__name__}")
    loads = "\n        ".join(
        f"value{k} = {via}(values[{_at(k, width)}]); peak = {target.peak}(peak, value{k})" for k in range(width)
    )
    names = ", ".join(f"value{k}" for k in range(width))
    text = _NARROW.format(name=name, peak_type=target.word.__name__, loads=loads, pack=target.pack, names=names)
    return native.load(name, text, (f"{source.real_code}[]", f"{target.word_code}[]"), target.word_code)


def widen(source: str, words: Words, target: str, out: Words) -> None:
    """Widen `words` of format `source` into `out`, words of the format `target` (F32 or F64); exact.

    `out` holds at least as many words as `words` holds elements. F64 can only be widened to F64.
    """
    form = FORMATS[target]
    if source == target:
        out[: words.size] = words
    else:
        _widen(FORMATS[source], form)(words, out.view(form.real))


def narrow(source: str, words: Words, target: str, out: Words) -> bool:
    """Round `words` of format `source` (F32 or F64) into `out`, words of format `target`, to nearest even.

    Returns:
        True if a result is not finite.
    """
    form = FORMATS[target]
    peak = _narrow(FORMATS[source], form)(words.view(FORMATS[source].real), out)
    return bool(peak >= form.overflow)


def count_non_finite(format: str, words: Words, elements: int) -> int:
    """How many of the first `elements` elements are NaN or Inf."""
    form = FORMATS[format]
    exponent = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF0000000000000}[format]
    bits = words.view(f"u{form.itemsize}")[:elements]
    return int(np.count_nonzero((bits & bits.dtype.type(exponent)) == exponent))
