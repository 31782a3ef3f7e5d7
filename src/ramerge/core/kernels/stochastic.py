"""Stochastic rounding: a random draw decides between the two neighbors of a number, so that it is right on average.

Let x be a finite number, L <= |x| <= U its neighbors in magnitude in the target format, and p = (|x| - L) / (U - L).
A draw is a number c of k bits. |x| becomes U where c + floor(p * 2^k) >= 2^k, otherwise L; the sign stays. So the
probability of U is p, rounded down to a multiple of 2^-k. From float32 to bfloat16 k = 16, and to float16 k = 32; from
float64 k = 64. That is all that rounding discards, but for numbers below 2^-32 in float16 and likewise small ones of
float64, which lose further bits of p.

Three kinds of numbers are rounded to nearest even instead: those that equal the base, because no agent changed them;
those whose U would be infinite, so that only what overflows to nearest overflows; and what is not finite.

The key of a tensor is the first 8 bytes of SHA-256 over the UTF-8 text "ramerge rounding\\n{seed}\\n{tensor}" (\\n is a
line feed), as two little-endian 32-bit words. A block of Threefry-2x32-20 under that key, first word x, second word y,
is a number x + 2^32 y, and holds 64 / k draws, from its lowest bits up. Element i of a tensor takes draw i mod (64 / k)
of the block of the 64-bit counter floor(i * k / 64), whose low half is the first word that is enciphered.
"""

from __future__ import annotations

import hashlib
from functools import cache

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS, ElementFormat, Words, before_packing
from ramerge.core.kernels.native import Kernel
from ramerge.core.kernels.threefry import key_words
from ramerge.core.kernels.threefry import words as words_of_key

# Draws are made for so many elements at a time, so that they stay in the processor's cache.
_CHUNK = 1 << 16


def draw_bits(source: str, target: str) -> int:
    """Bits of the draws with which F32 or F64 is rounded to a shorter format."""
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
    """Write numbers in a shorter format, each as one of its two neighbors there, as a random draw decides.

    Args:
        source: F32 or F64, the format of `words`.
        target: the format of `out`, a key of `FORMATS` that is shorter.
        start: index in that tensor of the first element.
        base: format and words of the base, if there is one: numbers that equal it are rounded to nearest.

    Returns:
        True if a result is not finite.
    """
    before, after = ELEMENTS[source], ELEMENTS[target]
    against = ELEMENTS[base[0]] if base is not None else None
    bits = draw_bits(source, target)
    values, result = before.array(words, elements), after.array(out, elements)
    base_values = against.array(base[1], elements) if against is not None and base is not None else values
    kernel = _kernel(before, after, against, bits)
    key = key_words(hashlib.sha256(f"ramerge rounding\n{seed}\n{tensor}".encode()).digest())
    peak, each = 0, 64 // bits  # draws of a word
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
def _kernel(source: ElementFormat, target: ElementFormat, base: ElementFormat | None, bits: int) -> Kernel:
    """The loop from one format to another. Without a base, its array is not looked at."""
    before, after = source.name.lower(), target.name.lower()
    name = f"{before}_drawn_to_{after}"
    text = _SOURCE.format(
        name=name,
        bits=target.bits,
        real=source.real_name,
        largest=_LARGEST[target.name],
        lane=source.lanes[0],
        base=f"{base.lanes[0]}(base[i])" if base is not None else f"{source.real_name}(np.nan)",
        nearest=before_packing(source, target, "value"),
        peak=target.peak,
        pack=target.pack,
        drawn=f"{after}_drawn_{before}",
    )
    other = (base or source).word_code
    types = (f"{source.word_code}[]", f"{other}[]", f"u{bits}[]", f"{target.word_code}[]")
    return native.load(name, text, types, target.bits_code)
