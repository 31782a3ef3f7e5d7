"""Between formats: exact widening of inputs, one rounding of results. Only tensors of mixed dtypes come here."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ramerge.kernels.formats import FORMATS, Format, sticky_f32

Words = NDArray[Any]

_WIDEN = """
def {name}(words, out):
    for i in range(words.size):
        word = words[i]
        {stores}
"""

_NARROW = """
def {name}(values, out):
    peak = out.dtype.type(0)
    for i in range(out.size):
        {loads}
        out[i] = pack({names})
    return peak
"""


def _compile(source: str, name: str, **scope: Any) -> Any:
    scope["__name__"] = __name__
    exec(compile(source, __file__, "exec"), scope)  # noqa: S102
    return njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)(scope[name])


@cache
def _widen(source: Format, target: Format) -> Any:
    name = f"widen_{source.name.lower()}_{target.name.lower()}"
    lanes = {f"lane{k}": lane for k, lane in enumerate(source.lanes)}
    stores = "\n        ".join(f"out[{len(lanes)} * i + {k}] = lane{k}(word)" for k in range(len(lanes)))
    return _compile(_WIDEN.format(name=name, stores=stores), name, **lanes)


@cache
def _narrow(source: Format, target: Format) -> Any:
    name = f"narrow_{source.name.lower()}_{target.name.lower()}"
    width = len(target.lanes)
    # float64 to a 16-bit format goes through float32 rounded to odd, which keeps the last rounding the only one
    via = "value" if source.real is target.real else ("sticky" if width == 2 else "real")
    loads = "\n        ".join(
        f"value{k} = {via}(values[{width} * i + {k}]); peak = peak_of(peak, value{k})" for k in range(width)
    )
    names = ", ".join(f"value{k}" for k in range(width))
    return _compile(
        _NARROW.format(name=name, loads=loads.replace("= value(", "= ("), names=names),
        name,
        real=target.real,
        sticky=sticky_f32,
        pack=target.pack,
        peak_of=target.peak,
    )


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
