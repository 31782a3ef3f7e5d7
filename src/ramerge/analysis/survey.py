"""The compiled loop of `analyze`: computes all counts for a stretch of base and agents; the layout of these counts.

Elements that no agent changed, which are most after RL, add nothing to any figure. So elements that an agent changed
are first gathered from a segment of the inputs. A chunk of them is widened into small arrays that stay in the nearest
cache; then short loops, one after another, compute one figure each. Loops over integers and sums of floats are
vectorized; only the histograms are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS, Loop
from ramerge.core.kernels.rounding import Counters, kept_base, names_of, rounded

Words = NDArray[Any]

# Magnitudes by float32 exponent: bin 0 for 0, then 2^-40 and below, 2^-39, ..., 2^7 and above.
EXPONENT_BINS, LEAST_EXPONENT = 49, -40
# Magnitudes in units of the base's last place, by exponent: bin 0 for 0, then 2^-16 and below, ..., 2^15 and above.
ULP_BINS, LEAST_ULP = 33, -16
# What a merge leaves of a moved element: as much as the agent moved it, less, the opposite, nothing.
FATES = ("kept", "diluted", "flipped", "lost")
# The compared merges: RAM, the mean of all task vectors, and the requested one.
MERGES = ("ram", "average", "merge")
# An element is kept if this part of the agent's change of it is left.
KEPT_SHARE = 0.99

_CHUNK = 1024
# What is gathered of a segment stays in the second cache, and fills its chunks but for the last one.
_SEGMENT = 1 << 15
# Both histograms are counted at once, as adding to a bin is what takes the time. Rows are a power of two apart.
_ULP_STRIDE = 64
# Mantissa bits, and the biased float32 exponent below which the unit in the last place does not shrink.
_LAST_PLACE = {"BF16": (7, 1), "F16": (10, 113), "F32": (23, 1), "F64": (52, 1)}


@dataclass(frozen=True)
class TallyLayout:
    """Layout of the figures of `survey` in its two arrays, each `(name, shape)` in order.

    Counts: `masks`, elements by the set of agents that moved them (bit t for agent t); `exponents` and `ulps`, the two
    histograms of each agent's |tau|; `agree`, elements that two agents moved in the same direction; `fates`, what
    happens to each agent's moved elements in each of `MERGES`. The first three may lack elements that no agent changed.

    Sums: `dots` of task vectors; `moved`, sum of |tau| of the first agent where both moved; `total`, sum of |tau|;
    `left`, sum of tau times what a merge keeps of it, and `active`, sum of tau^2, over each agent's moved elements.
    """

    agents: int

    @property
    def counts(self) -> dict[str, tuple[int, ...]]:
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
        n = self.agents
        return {"dots": (n, n), "moved": (n, n), "total": (n,), "left": (len(MERGES), n), "active": (n,)}


def size_of(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes.values()))


def slices(shapes: dict[str, tuple[int, ...]]) -> dict[str, slice]:
    """Return the slice of each array of a `TallyLayout` in their common array."""
    ends = list(accumulate(map(math.prod, shapes.values()), initial=0))
    return {name: slice(*bounds) for name, bounds in zip(shapes, pairwise(ends), strict=True)}


def survey(
    loop: Loop,
    inputs: Sequence[Words],
    merge: Words,
    epsilons: Sequence[float],
    others: Sequence[float],
    target: str,
    tables: NDArray[np.uint32],
    by_epsilon: NDArray[np.int64],
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> bool:
    """Add a stretch of elements to the tallies of an analysis; True if anything there is not finite.

    Elements that no agent changed may be missing from the empty set of agents and from the bins of 0: their number
    follows from the number of elements. So padding in the last word, which is zero in all inputs, does no harm.

    Args:
        inputs: base and N agents, 1-D arrays of equal length, in the words of the loop's formats.
        merge: the requested merge, rounded to `target`; as long as the inputs.
        epsilons: one threshold per agent, or one for all: an agent has moved an element where |agent - base| > epsilon,
            compared in the loop's real type.
        others: further thresholds, the same for all agents.
        target: the format to which merges are rounded, whose last place is the unit of `ulps`.
        tables: made by `tables`, for fewer than 2^32 elements; `fold` adds them to `counts`.
        by_epsilon: contiguous, shape (others, 2, N): elements that each agent moved by more than each of `others`, and
            elements that only this agent moved so.
        sums: as `TallyLayout.sums` lays them out. Chunks of 1,024 changed elements are added in float32 (in float64 for
            float64 inputs), in an order that the processor chooses. Values that are not finite add nothing.
    """
    n = len(inputs) - 1
    single = Loop(tuple(ELEMENTS[form.name] for form in loop.inputs), ELEMENTS[loop.out.name])
    forms = (*single.inputs, single.out)
    arrays = [words.view(form.word) for form, words in zip(forms, (*inputs, merge), strict=True)]
    numbers = np.zeros((2 * n + len(MERGES)) * _CHUNK, loop.out.real)
    marks = np.zeros((2 + n) * _CHUNK, np.uint32)
    kernel = _compile_survey(single, target, len(epsilons))
    return bool(
        kernel(
            *arrays,
            *[np.empty(_SEGMENT, form.word) for form in forms],
            *epsilons,
            np.array(others, loop.out.real),
            numbers,
            marks,
            tables,
            by_epsilon.reshape(-1),
            counts,
            sums,
        )
    )


def tables(agents: int) -> NDArray[np.uint32]:
    """Return zeroed tables in which `survey` counts sets of agents and both histograms."""
    return np.zeros(2 * _table_size(agents), np.uint32)


def fold(tables: NDArray[np.uint32], counts: NDArray[np.int64], agents: int) -> None:
    """Add the tables of `survey` to `masks` and the histograms of `counts`, as `TallyLayout.counts` lays them out."""
    both = tables.reshape(2, -1).sum(0, np.int64)
    at = slices(TallyLayout(agents).counts)
    joint = both[1 << agents :].reshape(agents, EXPONENT_BINS, _ULP_STRIDE)[:, :, :ULP_BINS]
    counts[at["masks"]] += both[: 1 << agents]
    counts[at["exponents"]] += joint.sum(2).reshape(-1)
    counts[at["ulps"]] += joint.sum(1).reshape(-1)


_SOURCE = """
def survey({inputs}, merged, {gathered}, {epsilons}, others, numbers, marks, joint, by_epsilon, counts, sums):
    ZERO, ONE, COUNT = {real}(0), {real}(1), {real}({n})
    nothing, one, seen = np.uint32(0), np.uint32(1), np.{bits}(0)
    field0, field1 = np.uint32(1), np.uint32(1 << 16)
    N, CHUNK, DIFFERENT, ALL = np.uint64({n}), np.uint64({chunk}), np.uint64(({n} + 1) * {chunk}), ~np.uint64(0)
    begin, start, count, size = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(base.size)
    while begin < size or start < count:
        if start >= count:
            end = min(begin + np.uint64({segment}), size)
            for i in range(begin, end):
                b = {base}
                seen = {peak}(seen, b)
            start = count = np.uint64(0)
            {gather}
            begin = end
            continue
        length, top = min(CHUNK, count - start), np.{bits}(0)
        if length < CHUNK:
            for k in range(np.uint64(numbers.size)):
                numbers[k] = ZERO
            for k in range(np.uint64(marks.size)):
                marks[k] = nothing
        for i in range(length):
            j = start + i
            {widen}
        seen = max(seen, top)
        for first in range(DIFFERENT, DIFFERENT + CHUNK, np.uint64(64)):
            left, at = not_zero(marks, first), first - DIFFERENT
            if left == ALL:
                for k in range(at, at + np.uint64(32)):
                    {dense}
            else:
                while left != np.uint64(0):
                    k = at + trailing_zeros(left)
                    left &= left - np.uint64(1)
                    {sparse}
        for e in range(np.uint64(others.size)):
            beyond = others[e]
            {clear}
            for k in range(CHUNK):
                {mark}
                alone = without_lowest_bit({combined}) == nothing
                {count}
            row = e * np.uint64(2 * {n})
            {flush_epsilon}
        for s in range(N):
            m = (N + s) * CHUNK
            own = {fated} = nothing
            for k in range(CHUNK):
                x = numbers[m + k]
                moved, up, enough = x != ZERO, x > ZERO, abs(x) * {real}({kept})
                own = add32(own, one if moved else nothing)
                {fates}
            {flush}
            for t in range(s):
                o, agree = (N + t) * CHUNK, nothing
                for k in range(CHUNK):
                    x, y = numbers[m + k], numbers[o + k]
                    agree = add32(agree, one if (x > ZERO and y > ZERO) or (x < ZERO and y < ZERO) else nothing)
                counts[np.uint64({agree}) + s * N + t] += agree
                counts[np.uint64({agree}) + t * N + s] += agree
        unit = 1.0
        if top >= np.{bits}({infinity}):  # sums are those of what is finite
            for k in range(np.uint64(numbers.size)):
                numbers[k] = numbers[k] if abs(numbers[k]) < np.inf else ZERO
            top = np.{bits}(0)
        {scale}
        for s in range(N):
            a, m = s * CHUNK, (N + s) * CHUNK
            total = square = active = {lefts} = ZERO
            for k in range(CHUNK):
                x, y = numbers[a + k], numbers[m + k]
                total = {plus}(total, abs(x))
                square = {plus}(square, x * x)
                active = {plus}(active, y * y)
                {left}
            sums[np.uint64({total}) + s] += np.float64(total) * unit
            sums[np.uint64({dots}) + s * N + s] += np.float64(square) * unit * unit
            sums[np.uint64({active}) + s] += np.float64(active) * unit * unit
            {flush_left}
            for t in range(s):
                b, o = t * CHUNK, (N + t) * CHUNK
                dot = moved_s = moved_t = ZERO
                for k in range(CHUNK):
                    dot = {plus}(dot, numbers[a + k] * numbers[b + k])
                    x, y = numbers[m + k], numbers[o + k]
                    moved_s = {plus}(moved_s, abs(x) if y != ZERO else ZERO)
                    moved_t = {plus}(moved_t, abs(y) if x != ZERO else ZERO)
                sums[np.uint64({dots}) + s * N + t] += np.float64(dot) * unit * unit
                sums[np.uint64({dots}) + t * N + s] += np.float64(dot) * unit * unit
                sums[np.uint64({moved}) + s * N + t] += np.float64(moved_s) * unit
                sums[np.uint64({moved}) + t * N + s] += np.float64(moved_t) * unit
        start += length
    return one if seen >= np.{bits}({infinity}) else nothing
"""

# The elements of a segment that an agent changed, one after the other.
_GATHER = """
while begin < end:
    width = min(end - begin, np.uint64(64))
    if width == np.uint64(64):
        mask = {differing}
        {vectorized_lines}
        if mask == ALL:
            for i in range(np.uint64(64)):
                {all}
            count += width
            mask = np.uint64(0)
    else:
        mask = np.uint64(0)
        for i in range(width):
            differs = {differs}
            mask |= (np.uint64(1) if differs else np.uint64(0)) << i
    while mask != np.uint64(0):
        i = trailing_zeros(mask)
        {scalar_lines}
        mask &= mask - np.uint64(1)
        count += np.uint64(1)
    begin += width
"""

# What merge number {r} leaves of an element, in the agent's direction: y. What is neither lost, flipped nor kept is
# diluted.
_FATE = """
y = numbers[(N + N + np.uint64({r})) * CHUNK + k]
y = y if up else -y
lost{r} = add32(lost{r}, one if moved and y == ZERO else nothing)
flipped{r} = add32(flipped{r}, one if moved and y < ZERO else nothing)
kept{r} = add32(kept{r}, one if moved and y >= enough else nothing)
"""
_FLUSH = """
first = np.uint64({fates} + {r} * {n} * 4) + s * np.uint64(4)
counts[first] += kept{r}
counts[first + np.uint64(1)] += np.int64(own) - np.int64(kept{r}) - np.int64(flipped{r}) - np.int64(lost{r})
counts[first + np.uint64(2)] += flipped{r}
counts[first + np.uint64(3)] += lost{r}
"""

# Sums run in float32 over a chunk. Where a chunk's largest task vector is so large or small that squares leave the
# range of float32, the chunk is brought near 1 first, by a power of two.
_SCALE = """
exponent = top >> np.uint32(23)
if top != nothing and (exponent > np.uint32(167) or exponent < np.uint32(97)):
    exponent = min(max(exponent, np.uint32(1)), np.uint32(253))
    factor = f32_whole(np.uint32(np.uint32(254) - exponent) << np.uint32(23))
    for k in range(np.uint64(numbers.size)):
        numbers[k] = numbers[k] * factor
    unit = 1.0 / np.float64(factor)
"""


@cache
def _compile_survey(loop: Loop, target: str, epsilons: int) -> Any:
    """Generate and compile the loops of `survey` for a base and its agents."""
    form, n = loop.out, len(loop.inputs) - 1
    layout, counters = TallyLayout(n), Counters(n)
    at = {name: part.start for name, part in (slices(layout.counts) | slices(layout.sums)).items()}
    names, thresholds = ["base", *[f"a{t}" for t in range(n)]], names_of("epsilon", epsilons, n)
    plus = "plus_f32" if form.real is np.float32 else "plus"
    beyond = [counters.mark(t, f"abs(numbers[np.uint64({t * _CHUNK}) + k]) > beyond") for t in range(n)]
    source = native.fill(
        _SOURCE,
        inputs=", ".join(names),
        gathered=", ".join(f"of_{name}" for name in (*names, "merged")),
        epsilons=", ".join(thresholds[:epsilons]),
        real=form.real_name,
        bits=form.bits,
        n=n,
        chunk=_CHUNK,
        segment=_SEGMENT,
        base=loop.element(0, 0, "base[i]"),
        peak=form.peak,
        gather=_compaction_source(loop, names),
        widen=_element_source(loop, target, thresholds),
        dense=[*_histogram_source(n, 0, "k"), *_histogram_source(n, 1, "k + np.uint64(32)")],
        sparse=_histogram_source(n, 0, "k"),
        clear=counters.clear(("moved", "unique")),
        mark=[*counters.clear(("active",)), *beyond],
        combined=counters.combined,
        count=[*counters.count("moved"), *counters.count("unique", "alone")],
        flush_epsilon=counters.flush("by_epsilon", ("moved", "unique"), "row"),
        **_source_of_merges(n, at["fates"], at["left"], plus),
        plus=plus,
        scale=_SCALE.strip().splitlines() if form.real is np.float32 else [],
        kept=KEPT_SHARE,
        infinity=form.infinity,
        **{name: at[name] for name in ("total", "dots", "moved", "agree", "active")},
    )
    words = [f"{each.word_code}[]" for each in (*loop.inputs, form)]
    reals = [*[form.real_code] * epsilons, *[f"{form.real_code}[]"] * 2]
    return native.load("survey", source, (*words, *words, *reals, *["u32[]"] * 2, *["i64[]"] * 2, "f64[]"), "u32")


def _source_of_merges(n: int, fates: int, left: int, plus: str) -> dict[str, str | list[str]]:
    """Generate source that counts and sums for each of `MERGES`."""
    merges = range(len(MERGES))
    return {
        "fated": " = ".join(f"{fate}{r}" for r in merges for fate in ("kept", "flipped", "lost")),
        "fates": [line for r in merges for line in _FATE.strip().format(r=r).splitlines()],
        "flush": [line for r in merges for line in _FLUSH.strip().format(r=r, n=n, fates=fates).splitlines()],
        "lefts": " = ".join(f"left{r}" for r in merges),
        "left": [f"left{r} = {plus}(left{r}, y * numbers[(N + N + np.uint64({r})) * CHUNK + k])" for r in merges],
        "flush_left": [f"sums[np.uint64({left + r * n}) + s] += np.float64(left{r}) * unit * unit" for r in merges],
    }


def _compaction_source(loop: Loop, array_names: Sequence[str]) -> list[str]:
    """Generate the source of the loop that compacts the changed elements of a segment."""
    base, *agents = array_names
    same_dtype = len(set(loop.inputs)) == 1  # else words cannot be compared, and every element is taken
    arrays = [*array_names, "merged"]
    compress = [f"compress({name}, of_{name}, (begin, count, mask))" for name in arrays]
    vectorized_lines = (
        [*compress, "count += ones(mask)", "begin += width", "continue"] if same_dtype and native.can_expand() else []
    )
    source = native.fill(
        _GATHER,
        differing=" | ".join(f"differing({base}, {name}, begin)" for name in agents) if same_dtype else "ALL",
        vectorized_lines=vectorized_lines,
        all=[f"of_{name}[count + i] = {name}[begin + i]" for name in arrays],
        differs=" or ".join(f"{base}[begin + i] != {name}[begin + i]" for name in agents) if same_dtype else "True",
        scalar_lines=[f"of_{name}[count] = {name}[begin + i]" for name in arrays],
    )
    return source.splitlines()


def _element_source(loop: Loop, target: str, thresholds: Sequence[str]) -> list[str]:
    """Generate source for one gathered element: task vectors, who moved it, merges, and bins of its magnitudes."""
    form, n, chunk = loop.out, len(loop.inputs) - 1, _CHUNK
    mantissa, least = _LAST_PLACE[target]
    lines = [
        f"b = {loop.element(0, 0, 'of_base[j]')}",
        "mask, different, movers, total, moved = nothing, nothing, ZERO, ZERO, ZERO",
        "exponent = np.int32(peak_f32(nothing, np.float32(b)) >> np.uint32(23))",
        f"unit = (exponent if exponent > np.int32({least}) else np.int32({least})) - np.int32({mantissa})",
    ]
    for t in range(n):
        lines += [
            f"tau = {loop.element(1 + t, 0, f'of_a{t}[j]')} - b",
            f"top = {form.peak}(top, tau)",
            f"numbers[{t * chunk} + i] = tau",
            f"active = abs(tau) > {thresholds[t]}",
            f"numbers[{(n + t) * chunk} + i] = tau if active else ZERO",
            f"mask = or32(mask, np.uint32({1 << t}) if active else nothing)",
            "movers = movers + (ONE if active else ZERO)",
            "moved = moved + (tau if active else ZERO)",
            "total = total + tau",
            "bits = peak_f32(nothing, np.float32(tau))",
            "different = or32(different, bits)",
            "exponent = np.int32(bits >> np.uint32(23))",
            *_bin_source("row", f"exponent - np.int32({127 + LEAST_EXPONENT})", EXPONENT_BINS),
            *_bin_source("column", f"exponent - unit - np.int32({LEAST_ULP})", ULP_BINS),
            f"bin = row * np.int32({_ULP_STRIDE}) + column",
            f"marks[{(1 + t) * chunk} + i] = np.uint32(bin) if bits != nothing else nothing",
        ]
    lines += ["marks[i] = mask", f"marks[{(1 + n) * chunk} + i] = different"]
    results_of_methods = ("b + moved / movers if movers > ZERO else b", "b + total / COUNT")
    results = [*[rounded(form, target, f"({value})") for value in results_of_methods], f"{form.lanes[0]}(of_merged[j])"]
    # the stored value where no agent moves anything: the base, rounded if the output's format is narrower
    lines.append(f"stays = {kept_base(loop, target)}")
    lines += [f"numbers[{(2 * n + merge) * chunk} + i] = {result} - stays" for merge, result in enumerate(results)]
    return lines


def _histogram_source(agents: int, table: int, at: str) -> list[str]:
    """Generate source that counts element `at` in one of two tables in turn, so that neither waits for the other."""
    start = table * _table_size(agents)
    lines = [f"joint[np.uint64({start}) + np.uint64(marks[{at}])] += one"]
    for t in range(agents):
        first = start + (1 << agents) + t * EXPONENT_BINS * _ULP_STRIDE
        lines.append(f"joint[np.uint64({first}) + np.uint64(marks[np.uint64({(1 + t) * _CHUNK}) + {at}])] += one")
    return lines


def _table_size(agents: int) -> int:
    return (1 << agents) + agents * EXPONENT_BINS * _ULP_STRIDE


def _bin_source(name: str, value: str, bins: int) -> list[str]:
    """Generate source for the bin of a nonzero magnitude: `value`, clamped to the bins after the first.

    The bin is made 32 bits wide again, because numba computes in 64, and so would all steps that follow.
    """
    return [
        f"{name} = np.int32({value} + np.int32(1))",
        f"{name} = {name} if {name} > np.int32(1) else np.int32(1)",
        f"{name} = {name} if {name} < np.int32({bins - 1}) else np.int32({bins - 1})",
    ]
