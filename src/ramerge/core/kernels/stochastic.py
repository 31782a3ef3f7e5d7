"""Stochastic rounding: a random draw chooses between the two neighbors of a number, so that the mean error is 0.

Let x be a finite number, L <= |x| <= U its neighbors in magnitude in the target format, and p = (|x| - L) / (U - L).
A draw is a number c of k bits. |x| becomes U if c + floor(p * 2^k) >= 2^k, otherwise L; the sign stays. So the
probability of U is p, rounded down to a multiple of 2^-k. From float32 to bfloat16, k = 16, and to float16, k = 32;
from float64, k = 64. These k bits hold everything that rounding discards, except for very small numbers (below 2^-32 in
float16, and likewise from float64), whose p loses further bits.

Three kinds of numbers are rounded to nearest even instead: numbers that equal the base, because no agent changed them;
numbers whose U would be infinite, so that a number overflows only if it does so to nearest; and NaN and Inf.

The key of a tensor is the first 8 bytes of SHA-256 over the UTF-8 text "ramerge rounding\\n{seed}\\n{tensor}" (\\n is a
line feed), as two little-endian 32-bit words. A block of Threefry-2x32-20 under this key, with first word x and second
word y, is the number x + 2^32 y; it holds 64 / k draws, from the lowest bits up. Element i of a tensor takes draw
i mod (64 / k) of the block for the 64-bit counter floor(i * k / 64), whose low half is the first enciphered word.
"""

from __future__ import annotations

import hashlib
from functools import cache

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS, ElementFormat, Words, packing_source
from ramerge.core.kernels.native import Kernel
from ramerge.core.kernels.threefry import key_words
from ramerge.core.kernels.threefry import words as words_of_key

# The number of elements that get their draws at a time, so that the draws stay in the processor's cache.
_CHUNK = 1 << 16


def draw_bits(source: str, target: str) -> int:
    """Return the number of bits in a draw for rounding F32 or F64 to a shorter format."""
    if source == "F64":
        return 64
    return 16 if target == "BF16" else 32


def round_stochastically(
    source: str,
    words: Words,
    target: str,
    out: Words,
    elements: int,
    *,
    seed: int,
    tensor: str,
    start: int,
    base: tuple[str, Words] | None,
) -> bool:
    """Round numbers to a shorter format, each to one of its two neighbors, chosen by a random draw.

    Args:
        source: the format of `words`, F32 or F64.
        words: the numbers.
        target: the format of `out`, a shorter key of `FORMATS`.
        out: array for the result.
        elements: number of elements.
        seed: the recipe's seed.
        tensor: the tensor's name.
        start: index of the first element in the tensor.
        base: format and words of the base, if there is one: numbers that equal it are rounded to nearest.

    Returns:
        True if a result is not finite.
    """
    before, after = ELEMENTS[source], ELEMENTS[target]
    against = ELEMENTS[base[0]] if base is not None else None
    bits = draw_bits(source, target)
    values, result = before.array(words, elements), after.array(out, elements)
    base_values = against.array(base[1], elements) if against is not None and base is not None else values
    kernel = _rounding_kernel(before, after, against, bits)
    key = key_words(hashlib.sha256(f"ramerge rounding\n{seed}\n{tensor}".encode()).digest())
    peak, each = 0, 64 // bits  # draws per block
    for first in range(0, elements, _CHUNK):
        part = slice(first, min(first + _CHUNK, elements))
        word, offset = divmod(start + first, each)
        stop = offset + part.stop - first
        draws = words_of_key(key, 2 * word, 2 * -(-stop // each)).view(f"u{bits // 8}")[offset:stop]
        peak = max(peak, kernel(values[part], base_values[part], draws, result[part]))
    return bool(peak >= after.overflow)


_SOURCE = """
def {name}(words, base, draws, out):
    peak, largest = np.{bits}(0), {real}({largest})
    for i in range(np.uint64(out.size)):
        value, b = {lane}(words[i]), {base}
        nearest = {nearest}
        peak = {peak}(peak, nearest)
        near, drawn = {pack}(nearest), {drawn}(value, draws[i])
        out[i] = drawn if abs(value) < largest and value != b else near
    return peak
"""

_LARGEST = {"BF16": 3.3895313892515355e38, "F16": 65504.0, "F32": 3.4028234663852886e38}


@cache
def _rounding_kernel(source: ElementFormat, target: ElementFormat, base: ElementFormat | None, bits: int) -> Kernel:
    """Return the loop from one format to another. Without a base, the argument `base` is ignored."""
    before, after = source.name.lower(), target.name.lower()
    name = f"{before}_drawn_to_{after}"
    text = _SOURCE.format(
        name=name,
        bits=target.bits,
        real=source.real_name,
        largest=_LARGEST[target.name],
        lane=source.lanes[0],
        base=f"{base.lanes[0]}(base[i])" if base is not None else f"{source.real_name}(np.nan)",
        nearest=packing_source(source, target, "value"),
        peak=target.peak,
        pack=target.pack,
        drawn=f"{after}_drawn_{before}",
    )
    other = (base or source).word_code
    types = (f"{source.word_code}[]", f"{other}[]", f"u{bits}[]", f"{target.word_code}[]")
    return native.load(name, text, types, target.bits_code)
