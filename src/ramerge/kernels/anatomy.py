"""One read of base and agents for everything that `ramerge analyze` says about task vectors.

A chunk of elements is widened into small arrays that stay in the nearest cache; then one short loop after another
takes a figure of it. Loops over integers and over sums of floats are vectorised; only the histograms are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native
from ramerge.kernels.formats import FORMATS, Format

Words = NDArray[Any]

# Magnitudes by float32 exponent: bin 0 for 0, then 2^-40 and below, 2^-39, ..., 2^7 and above.
EXPONENT_BINS, LEAST_EXPONENT = 49, -40
# Magnitudes in units of the base's last place, by exponent: bin 0 for 0, then 2^-16 and below, ..., 2^15 and above.
ULP_BINS, LEAST_ULP = 33, -16
# What a merge leaves of a moved element: as much as the agent moved it, less, the opposite, nothing.
FATES = ("kept", "diluted", "flipped", "lost")
# What is compared: RAM, and the mean of all task vectors.
MERGES = ("ram", "average")
# An element is kept if it is left with this part of what the agent moved it by.
KEPT = 0.99

_CHUNK_WORDS = 512
# Mantissa bits, and the biased float32 exponent below which the unit in the last place does not shrink.
_LAST_PLACE = {"BF16": (7, 1), "F16": (10, 113), "F32": (23, 1), "F64": (52, 1)}


@dataclass(frozen=True)
class Layout:
    """Where the figures of `survey` lie, in elements of its two arrays, each `(name, shape)` in order.

    Counts: `masks`, elements by the set of agents that moved them (bit t for agent t); `exponents` and `ulps`, the two
    histograms of each agent's |tau|; `agree`, elements that two agents moved in the same direction; `fates`, what
    becomes of each agent's moved elements in each of `MERGES`.

    Sums: `dots` of task vectors; `moved`, sum of |tau| of the first agent where both moved; `total`, sum of |tau|;
    `left`, sum of tau times what a merge leaves of it, and `active`, sum of tau^2, over each agent's moved elements.
    """

    agents: int

    @property
    def counts(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the integers."""
        n = self.agents
        return {
            "masks": (1 << n,),
            "exponents": (n, EXPONENT_BINS),
            "ulps": (n, ULP_BINS),
            "agree": (n, n),
            "fates": (len(MERGES), n, len(FATES)),
        }

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the float64."""
        n = self.agents
        return {"dots": (n, n), "moved": (n, n), "total": (n,), "left": (len(MERGES), n), "active": (n,)}


def size_of(shapes: dict[str, tuple[int, ...]]) -> int:
    """Elements of all arrays together."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


def places(shapes: dict[str, tuple[int, ...]]) -> dict[str, slice]:
    """Where each array lies."""
    ends = np.cumsum([0, *[int(np.prod(shape)) for shape in shapes.values()]]).tolist()
    return {name: slice(*bounds) for name, bounds in zip(shapes, pairwise(ends), strict=True)}


def survey(
    format: str,
    inputs: Sequence[Words],
    epsilon: float,
    stored: str,
    target: str,
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> bool:
    """Add to `counts` and `sums` what a stretch of elements holds.

    Words behind the last element, which are zero in all inputs, are counted as elements that nobody moved.

    Args:
        format: a key of `FORMATS`, the format of all inputs.
        inputs: base and N agents, 1-D arrays of that format's words, of equal length.
        epsilon: an element has moved where |agent - base| > epsilon, compared in the format's real type.
        stored: the format in which the base is stored, whose last place is the unit of `ulps`.
        target: the format to which merges are rounded.
        counts: int64, as `Layout.counts` lays it out.
        sums: float64, as `Layout.sums` lays it out; each is summed in an order of the processor's choice.

    Returns:
        True if an input or a task vector is not finite.
    """
    form, n = FORMATS[format], len(inputs) - 1
    lanes = len(form.lanes)
    chunk = _CHUNK_WORDS * lanes
    numbers = np.zeros((n + len(MERGES)) * chunk, form.real)
    marks = np.zeros((1 + 2 * n) * chunk, np.uint32)
    kernel = _survey(form, n, stored, target)
    return bool(kernel(*inputs, epsilon, numbers, marks, counts, sums))


_SOURCE = """
def survey({inputs}, epsilon, numbers, marks, counts, sums):
    ZERO, ONE, COUNT = {real}(0), {real}(1), {real}({n})
    nothing, seen = np.uint32(0), {word}(0)
    N, CHUNK, LANES = np.int64({n}), np.int64({chunk}), np.int64({lanes})
    words = np.int64({chunk_words})
    start, size = np.int64(0), np.int64(base.size)
    while start < size:
        length = min(words, size - start)
        if length < words:
            for k in range(numbers.size):
                numbers[k] = ZERO
            for k in range(marks.size):
                marks[k] = nothing
        for i in range(np.uint64(length)):
            j = np.uint64(start) + i
            {widen}
        # what was moved together, and where
        for k in range(CHUNK):
            counts[np.uint64(marks[k])] += 1
            {histograms}
        for s in range(N):
            a = s * CHUNK
            bit_s = np.uint32(1) << np.uint32(s)
            total, square = 0.0, 0.0
            for k in range(CHUNK):
                x = np.float64(numbers[a + k])
                total = plus(total, abs(x))
                square = plus(square, x * x)
            sums[{total} + s] += total
            sums[{dots} + s * N + s] += square
            for t in range(s):
                b = t * CHUNK
                both = bit_s | (np.uint32(1) << np.uint32(t))
                dot, moved_s, moved_t, agree = 0.0, 0.0, 0.0, nothing
                for k in range(CHUNK):
                    x, y = numbers[a + k], numbers[b + k]
                    dot = plus(dot, np.float64(x) * np.float64(y))
                    shared = (marks[k] & both) == both
                    moved_s = plus(moved_s, np.float64(abs(x) if shared else ZERO))
                    moved_t = plus(moved_t, np.float64(abs(y) if shared else ZERO))
                    agree = add32(agree, np.uint32(1) if shared and (x > ZERO) == (y > ZERO) else nothing)
                sums[{dots} + s * N + t] += dot
                sums[{dots} + t * N + s] += dot
                sums[{moved} + s * N + t] += moved_s
                sums[{moved} + t * N + s] += moved_t
                counts[{agree} + s * N + t] += agree
                counts[{agree} + t * N + s] += agree
            for r in range({merges}):
                d = (N + r) * CHUNK
                left, active = 0.0, 0.0
                kept, diluted, flipped, lost = nothing, nothing, nothing, nothing
                for k in range(CHUNK):
                    x, y = numbers[a + k], numbers[d + k]
                    moved = (marks[k] & bit_s) != nothing
                    x = x if moved else ZERO
                    left = plus(left, np.float64(x) * np.float64(y))
                    active = plus(active, np.float64(x) * np.float64(x))
                    opposite = (x > ZERO and y < ZERO) or (x < ZERO and y > ZERO)
                    enough = abs(y) >= abs(x) * {real}({kept})
                    gone = moved and y == ZERO
                    lost = add32(lost, np.uint32(1) if gone else nothing)
                    flipped = add32(flipped, np.uint32(1) if opposite else nothing)
                    kept = add32(kept, np.uint32(1) if moved and enough and not opposite and not gone else nothing)
                    diluted = add32(
                        diluted, np.uint32(1) if moved and not enough and not opposite and not gone else nothing
                    )
                place = {fates} + (r * N + s) * 4
                counts[place] += kept
                counts[place + 1] += diluted
                counts[place + 2] += flipped
                counts[place + 3] += lost
                sums[{left} + r * N + s] += left
                if r == 0:
                    sums[{active} + s] += active
        start += length
    return np.uint32(1) if seen >= {word}({infinity}) else np.uint32(0)
"""


@cache
def _survey(form: Format, n: int, stored: str, target: str) -> Any:
    """Write out and compile the loops for `n` agents."""
    layout = Layout(n)
    at = {name: place.start for name, place in (places(layout.counts) | places(layout.sums)).items()}
    chunk = _CHUNK_WORDS * len(form.lanes)
    body: list[str] = []
    for lane, function in enumerate(form.lanes):
        body += _widen(form, n, lane, function, stored, target, chunk)
    counting = []
    for t in range(n):
        for name, row, bins in (("exponents", 1 + t, EXPONENT_BINS), ("ulps", 1 + n + t, ULP_BINS)):
            counting.append(f"counts[np.uint64({at[name] + t * bins}) + np.uint64(marks[{row * chunk} + k])] += 1")
    real, word = f"np.{np.dtype(form.real).name}", f"np.{np.dtype(form.word).name}"
    source = _SOURCE.format(
        inputs=", ".join(["base", *[f"a{t}" for t in range(n)]]),
        real=real,
        word=word,
        n=n,
        chunk=chunk,
        lanes=len(form.lanes),
        chunk_words=_CHUNK_WORDS,
        widen="\n            ".join(body),
        histograms="\n            ".join(counting),
        merges=len(MERGES),
        kept=KEPT,
        infinity=form.infinity,
        **{name: at[name] for name in ("total", "dots", "moved", "agree", "fates", "left", "active")},
    )
    words = f"{form.word_code}[]"
    arguments = (*[words] * (1 + n), form.real_code, f"{form.real_code}[]", "u32[]", "i64[]", "f64[]")
    return native.load("survey", source, arguments, "u32")


def _widen(form: Format, n: int, lane: int, function: str, stored: str, target: str, chunk: int) -> list[str]:
    """One element of a word: task vectors, who moved it, both merges, and the bins of its magnitudes."""
    mantissa, least = _LAST_PLACE[stored]
    first = lane * _CHUNK_WORDS
    lines = [
        f"b = {function}(base[j])",
        f"seen = {form.peak}(seen, b)",
        "mask, movers, total, moved = nothing, ZERO, ZERO, ZERO",
        "exponent = np.int32(peak_f32(nothing, np.float32(b)) >> np.uint32(23))",
        f"unit = (exponent if exponent > np.int32({least}) else np.int32({least})) - np.int32({mantissa})",
    ]
    for t in range(n):
        lines += [
            f"tau = {function}(a{t}[j]) - b",
            f"seen = {form.peak}(seen, tau)",
            f"numbers[{t * chunk + first} + i] = tau",
            "active = abs(tau) > epsilon",
            f"mask = or32(mask, np.uint32({1 << t}) if active else nothing)",
            "movers = movers + (ONE if active else ZERO)",
            "moved = moved + (tau if active else ZERO)",
            "total = total + tau",
            "bits = peak_f32(nothing, np.float32(tau))",
            "exponent = np.int32(bits >> np.uint32(23))",
            *_binned(f"exponent - np.int32({127 + LEAST_EXPONENT})", EXPONENT_BINS, (1 + t) * chunk + first),
            *_binned(f"exponent - unit - np.int32({LEAST_ULP})", ULP_BINS, (1 + n + t) * chunk + first),
        ]
    lines.append(f"marks[{first} + i] = mask")
    merged = ("b + moved / movers if movers > ZERO else b", "b + total / COUNT")
    for place, result in enumerate(merged):
        lines += [
            f"result = {result}",
            f"numbers[{(n + place) * chunk + first} + i] = {_rounded(form, target)} - b",
        ]
    return lines


def _binned(value: str, bins: int, place: int) -> list[str]:
    """Store the bin of a magnitude: 0 for 0, and `value` kept within the others."""
    return [
        f"place = {value}",
        "place = place if place > np.int32(0) else np.int32(0)",
        f"place = place if place < np.int32({bins - 2}) else np.int32({bins - 2})",
        f"marks[{place} + i] = np.uint32(place + np.int32(1)) if bits != nothing else nothing",
    ]


def _rounded(form: Format, target: str) -> str:
    """`result`, rounded to a format and widened again."""
    wide = form.real is np.float64
    if target == "F64" or (target == "F32" and not wide):
        return "result"
    if target == "F32":
        return "np.float64(np.float32(result))"
    narrow = "sticky_f32(result)" if wide else "result"
    return f"{FORMATS[target].lanes[0]}({FORMATS[target].pack}({narrow}, {narrow}))"
