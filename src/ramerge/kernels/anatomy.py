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
from ramerge.kernels.formats import Loop
from ramerge.kernels.rounding import names_of, rounded

Words = NDArray[Any]

# Magnitudes by float32 exponent: bin 0 for 0, then 2^-40 and below, 2^-39, ..., 2^7 and above.
EXPONENT_BINS, LEAST_EXPONENT = 49, -40
# Magnitudes in units of the base's last place, by exponent: bin 0 for 0, then 2^-16 and below, ..., 2^15 and above.
ULP_BINS, LEAST_ULP = 33, -16
# Both are counted at once, as adding to a bin is what takes the time.
JOINT_BINS = EXPONENT_BINS * ULP_BINS
# What a merge leaves of a moved element: as much as the agent moved it, less, the opposite, nothing.
FATES = ("kept", "diluted", "flipped", "lost")
# What is compared: RAM, the mean of all task vectors, and the merge that was asked for.
MERGES = ("ram", "average", "merge")
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


def slices(shapes: dict[str, tuple[int, ...]]) -> dict[str, slice]:
    """Where each array lies in one array of them all."""
    ends = np.cumsum([0, *[int(np.prod(shape)) for shape in shapes.values()]]).tolist()
    return {name: slice(*bounds) for name, bounds in zip(shapes, pairwise(ends), strict=True)}


def survey(
    loop: Loop,
    inputs: Sequence[Words],
    merged: Words,
    epsilons: Sequence[float],
    target: str,
    joint: NDArray[np.uint32],
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> bool:
    """Add to `counts` and `sums` what a stretch of elements holds.

    Words after the last element, which are zero in all inputs, are counted as elements that no agent moved.

    Args:
        loop: formats of the inputs and of `merged`.
        inputs: base and N agents, 1-D arrays of these formats' words, of equal length.
        merged: the merge that was asked for, rounded to `target`; as long as the inputs.
        epsilons: one for each agent, or only one: it has moved an element where |agent - base| > epsilon, compared in
            the loop's real type.
        target: the format to which merges are rounded, whose last place is the unit of `ulps`.
        joint: of `joint_bins`, for fewer than 2^32 elements; `fold` adds it to `counts`.
        counts: int64, as `Layout.counts` lays it out.
        sums: float64, as `Layout.sums` lays it out; each is summed in an order of the processor's choice.

    Returns:
        True if an input or a task vector is not finite.
    """
    n = len(inputs) - 1
    chunk = _CHUNK_WORDS * len(loop.parts)
    numbers = np.zeros((n + len(MERGES)) * chunk, loop.out.real)
    marks = np.zeros((1 + n) * chunk, np.uint32)
    kernel = _survey(loop, target, len(epsilons))
    return bool(kernel(*inputs, merged, *epsilons, numbers, marks, joint.reshape(-1), counts, sums))


def joint_bins(agents: int) -> NDArray[np.uint32]:
    """What `survey` counts both histograms in: zeros of shape (agents, EXPONENT_BINS, ULP_BINS)."""
    return np.zeros((agents, EXPONENT_BINS, ULP_BINS), np.uint32)


def fold(joint: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
    """Add the two histograms to `counts`, as `Layout.counts` lays them out."""
    at = slices(Layout(len(joint)).counts)
    counts[at["exponents"]] += joint.sum(2, np.int64).reshape(-1)
    counts[at["ulps"]] += joint.sum(1, np.int64).reshape(-1)


_SOURCE = """
def survey({inputs}, merged, {epsilons}, numbers, marks, joint, counts, sums):
    ZERO, ONE, COUNT = {real}(0), {real}(1), {real}({n})
    nothing, seen = np.uint32(0), np.{bits}(0)
    N, CHUNK = np.int64({n}), np.int64({chunk})
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
        for k in range(CHUNK):
            counts[np.uint64(marks[k])] += 1
            {histograms}
        for s in range(N):
            a = s * CHUNK
            bit_s = np.uint32(1) << np.uint32(s)
            total = square = active = {lefts} = 0.0
            own = {fated} = nothing
            for k in range(CHUNK):
                x = numbers[a + k]
                wide = np.float64(x)
                total = plus(total, abs(wide))
                square = plus(square, wide * wide)
                moved = (marks[k] & bit_s) != nothing
                x = x if moved else ZERO
                wide = wide if moved else 0.0
                active = plus(active, wide * wide)
                own = add32(own, np.uint32(1) if moved else nothing)
                enough = abs(x) * {real}({kept})
                {fates}
            sums[{total} + s] += total
            sums[{dots} + s * N + s] += square
            sums[{active} + s] += active
            {flush}
            for t in range(s):
                b = t * CHUNK
                both = bit_s | (np.uint32(1) << np.uint32(t))
                dot, moved_s, moved_t, agree = 0.0, 0.0, 0.0, nothing
                for k in range(CHUNK):
                    x, y = np.float64(numbers[a + k]), np.float64(numbers[b + k])
                    product = x * y
                    dot = plus(dot, product)
                    shared = (marks[k] & both) == both
                    moved_s = plus(moved_s, abs(x) if shared else 0.0)
                    moved_t = plus(moved_t, abs(y) if shared else 0.0)
                    agree = add32(agree, np.uint32(1) if shared and (x > 0.0) == (y > 0.0) else nothing)
                sums[{dots} + s * N + t] += dot
                sums[{dots} + t * N + s] += dot
                sums[{moved} + s * N + t] += moved_s
                sums[{moved} + t * N + s] += moved_t
                counts[{agree} + s * N + t] += agree
                counts[{agree} + t * N + s] += agree
        start += length
    return np.uint32(1) if seen >= np.{bits}({infinity}) else np.uint32(0)
"""

# What merge number {r} leaves of an element: y. What is neither lost, flipped nor kept is diluted.
_FATE = """
                y = numbers[(N + {r}) * CHUNK + k]
                left{r} = plus(left{r}, wide * np.float64(y))
                gone = moved and y == ZERO
                opposite = (x > ZERO and y < ZERO) or (x < ZERO and y > ZERO)
                lost{r} = add32(lost{r}, np.uint32(1) if gone else nothing)
                flipped{r} = add32(flipped{r}, np.uint32(1) if opposite else nothing)
                stays = moved and abs(y) >= enough and not (gone or opposite)
                kept{r} = add32(kept{r}, np.uint32(1) if stays else nothing)
"""
_FLUSH = """
            sums[{left} + {r} * N + s] += left{r}
            first = {fates} + ({r} * N + s) * 4
            counts[first] += kept{r}
            counts[first + 1] += np.int64(own) - np.int64(kept{r}) - np.int64(flipped{r}) - np.int64(lost{r})
            counts[first + 2] += flipped{r}
            counts[first + 3] += lost{r}
"""


@cache
def _survey(loop: Loop, target: str, epsilons: int) -> Any:
    """Write out and compile the loops for a base and agents."""
    form, n = loop.out, len(loop.inputs) - 1
    layout = Layout(n)
    at = {name: part.start for name, part in (slices(layout.counts) | slices(layout.sums)).items()}
    chunk = _CHUNK_WORDS * len(loop.parts)
    body: list[str] = []
    thresholds = names_of("epsilon", epsilons, n)
    for part in loop.parts:
        body += _widen(loop, part, target, chunk, thresholds)
    counting = [
        f"joint[np.uint64({t * JOINT_BINS}) + np.uint64(marks[{(1 + t) * chunk} + k])] += np.uint32(1)"
        for t in range(n)
    ]
    real = f"np.{np.dtype(form.real).name}"
    merges = range(len(MERGES))
    source = _SOURCE.format(
        inputs=", ".join(["base", *[f"a{t}" for t in range(n)]]),
        epsilons=", ".join(thresholds[:epsilons]),
        real=real,
        bits=form.bits,
        n=n,
        chunk=chunk,
        chunk_words=_CHUNK_WORDS,
        widen="\n            ".join(body),
        histograms="\n            ".join(counting),
        lefts=" = ".join(f"left{r}" for r in merges),
        fated=" = ".join(f"{fate}{r}" for r in merges for fate in ("kept", "flipped", "lost")),
        fates="".join(_FATE.format(r=r) for r in merges).strip(),
        flush="".join(_FLUSH.format(r=r, fates=at["fates"], left=at["left"]) for r in merges).strip(),
        kept=KEPT,
        infinity=form.infinity,
        **{name: at[name] for name in ("total", "dots", "moved", "agree", "active")},
    )
    words = [f"{each.word_code}[]" for each in (*loop.inputs, form)]
    arguments = (*words, *[form.real_code] * epsilons, f"{form.real_code}[]", "u32[]", "u32[]", "i64[]", "f64[]")
    return native.load("survey", source, arguments, "u32")


def _widen(loop: Loop, part: int, target: str, chunk: int, thresholds: Sequence[str]) -> list[str]:
    """One element of a word: task vectors, who moved it, the merges, and the bins of its magnitudes."""
    form, n = loop.out, len(loop.inputs) - 1
    mantissa, least = _LAST_PLACE[target]
    first = part * _CHUNK_WORDS
    lines = [
        f"b = {loop.element(0, part, 'base[j]')}",
        f"seen = {form.peak}(seen, b)",
        "mask, movers, total, moved = nothing, ZERO, ZERO, ZERO",
        "exponent = np.int32(peak_f32(nothing, np.float32(b)) >> np.uint32(23))",
        f"unit = (exponent if exponent > np.int32({least}) else np.int32({least})) - np.int32({mantissa})",
    ]
    for t in range(n):
        lines += [
            f"tau = {loop.element(1 + t, part, f'a{t}[j]')} - b",
            f"seen = {form.peak}(seen, tau)",
            f"numbers[{t * chunk + first} + i] = tau",
            f"active = abs(tau) > {thresholds[t]}",
            f"mask = or32(mask, np.uint32({1 << t}) if active else nothing)",
            "movers = movers + (ONE if active else ZERO)",
            "moved = moved + (tau if active else ZERO)",
            "total = total + tau",
            "bits = peak_f32(nothing, np.float32(tau))",
            "exponent = np.int32(bits >> np.uint32(23))",
            *_binned("row", f"exponent - np.int32({127 + LEAST_EXPONENT})", EXPONENT_BINS),
            *_binned("column", f"exponent - unit - np.int32({LEAST_ULP})", ULP_BINS),
            f"bin = row * np.int32({ULP_BINS}) + column",
            f"marks[{(1 + t) * chunk + first} + i] = np.uint32(bin) if bits != nothing else nothing",
        ]
    lines.append(f"marks[{first} + i] = mask")
    computed = ("b + moved / movers if movers > ZERO else b", "b + total / COUNT")
    results = [*[rounded(form, target, f"({value})") for value in computed], f"{form.lanes[part]}(merged[j])"]
    # what is stored where no agent moves anything: the base, rounded if the output's format is narrower
    lines.append(f"stays = {rounded(form, target, 'b')}")
    lines += [f"numbers[{(n + merge) * chunk + first} + i] = {result} - stays" for merge, result in enumerate(results)]
    return lines


def _binned(name: str, value: str, bins: int) -> list[str]:
    """The bin of a magnitude that is not 0: `value` kept within the bins after the first."""
    return [
        f"{name} = {value}",
        f"{name} = {name} if {name} > np.int32(0) else np.int32(0)",
        f"{name} = ({name} if {name} < np.int32({bins - 2}) else np.int32({bins - 2})) + np.int32(1)",
    ]
