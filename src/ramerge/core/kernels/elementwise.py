"""Loops that apply a method's formula to every element, or count magnitudes.

A method defines its formula as a plain function of one element, such as

    def element(b, taus, weights, scale):
        total = ZERO
        for t in range(len(taus)):
            total = total + weights[t] * taus[t]
        return b + scale * total

where `taus` and `weights` are tuples with one number for each agent. This module generates the loop around it for the
formats and the number of agents, so that the tuples stay in registers and the loop over agents is unrolled; both are
compiled together. IEEE operations follow each other as in NumPy: nothing is contracted or reassociated.

Dropping (DARE) happens before the formula: element i of a tensor takes word i % 2 of the block that `threefry` computes
from the 64-bit counter i // 2 (low half first) under the agent's key, and is dropped if the word is less than `below`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.convert import count_non_finite
from ramerge.core.kernels.element_formats import Loop, Words
from ramerge.core.kernels.native import Kernel
from ramerge.core.kernels.rounding import CHUNK_WORDS, ROWS, Counters, names_of
from ramerge.core.kernels.threefry import threefry

Element: TypeAlias = Callable[..., "float | np.float32"]
Each: TypeAlias = tuple[float, ...]
"""One number for each agent, in the agents' order."""
Argument: TypeAlias = float | bool | Each
"""A further argument of a formula: a number, a flag, or one number for each agent."""

# Constants for formulas. They widen exactly, so one formula serves float32 and float64; for type checkers, both are
# `float`.
ZERO, ONE, INFINITY = (cast(float, np.float32(number)) for number in (0, 1, np.inf))

# A magnitude is a float32 without its sign: 31 bits. The upper 15 bits are counted first, then the lower 16.
COARSE_BINS, FINE_BINS = 1 << 15, 1 << 16


@dataclass(frozen=True)
class Drop:
    """Random draws that drop elements of task vectors before the formula is applied.

    Attributes:
        keys: the two words of each agent's key.
        below: drop rate times 2^32 of each agent; a smaller draw drops its element.
        scales: the factor of the remaining elements, for each agent.
        start: index of the first element in the tensor.
    """

    keys: tuple[tuple[int, int], ...]
    below: tuple[int, ...]
    scales: tuple[float, ...]
    start: int = 0


@dataclass(frozen=True)
class Inputs:
    """The inputs of a loop, in this order: the base, if the method has task vectors; the agents; their importances."""

    agents: int
    base: bool = True
    importances: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the arrays in the generated code."""
        agents = range(self.agents)
        return [
            *(["base"] if self.base else []),
            *[f"a{t}" for t in agents],
            *([f"f{t}" for t in agents] if self.importances else []),
        ]


@dataclass(frozen=True)
class ElementFormula:
    """A formula of one element, with its further arguments.

    Attributes:
        element: `element(b, taus, [importances,] *given)`, a plain function. Without a base, `b` is 0 and `taus` are
            the agents themselves.
        given: further arguments: numbers and tuples with one number for each agent, rounded to the loop's real type;
            and flags, for whose values the loop is compiled.
        inputs: the inputs of the loop.
        beyond: a threshold for each agent, or one for all: an agent has moved an element if |tau| > beyond. Used to
            count effects of rounding.
    """

    element: Element
    given: tuple[Argument, ...]
    inputs: Inputs
    beyond: tuple[float, ...] = (0.0,)


def merge(
    formula: ElementFormula,
    loop: Loop,
    inputs: Sequence[Words],
    out: Words,
    drop: Drop | None = None,
    rounding: NDArray[np.int64] | None = None,
) -> bool:
    """Write the formula's value for every element to `out`.

    Args:
        formula: the formula and its arguments.
        loop: formats of the inputs and of `out`.
        inputs: 1-D arrays of words in these formats, of equal length, in the order of `formula.inputs`.
        out: array for the result, of the inputs' length.
        drop: random draws; `start` must be even if words hold two elements.
        rounding: int64, shape (2, N): counts of updates that rounding erases (`kernels.rounding`), added to; only for
            a 16-bit result and with a base.

    Returns:
        True if an input is not finite, an importance is negative, or a result overflows the format.
    """
    limits = formula.beyond if rounding is not None else ()
    kinds: list[str | bool] = []
    numbers: list[float] = []
    for value in formula.given:  # a loop is compiled for the values of flags, and for the kinds of other arguments
        kinds.append(value if isinstance(value, bool) else _EACH if isinstance(value, tuple) else _COMMON)
        numbers += () if isinstance(value, bool) else value if isinstance(value, tuple) else (value,)
    kernel = _merge_kernel(formula.element, loop, formula.inputs, tuple(kinds), drop is not None, len(limits))
    numbers += [*(drop.scales if drop else ()), *limits]
    counts = _NOTHING if rounding is None else rounding.reshape(-1)
    with np.errstate(over="ignore"):  # a number that overflows float32 makes results overflow, which is reported
        rounded_numbers = np.array(numbers, loop.out.real)
    status = kernel(*inputs, out, rounded_numbers, counts, *_drop_draws(drop))
    # a task vector is infinite if an input is, or if the difference of finite numbers overflows
    return bool(status & _WRONG) or (
        status == _DOUBTFUL
        and any(
            count_non_finite(form.name, words, words.size * len(form.lanes))
            for form, words in zip(loop.inputs, inputs, strict=True)
        )
    )


# Bits of a loop's status: a result overflows or an importance is invalid; a task vector is not finite.
_WRONG, _DOUBTFUL = 1, 2
_EACH, _COMMON = "each", "common"
_NOTHING = np.empty(0, np.int64)


def histogram(
    value: Element,
    loop: Loop,
    inputs: Sequence[Words],
    which: Inputs,
    counts: NDArray[np.uint32],
    bins: Sequence[int] | None = None,
    common: Sequence[float] = (),
    drop: Drop | None = None,
    rows: int | None = None,
) -> bool:
    """Add magnitudes of `value(t, taus, *common)` to a histogram for each agent t.

    Args:
        value: a plain function of an agent's index and all task vectors.
        loop: formats of the inputs.
        inputs: 1-D arrays of words in these formats, of equal length, in the order of `which`.
        which: the roles of the inputs.
        counts: shape (rows, COARSE_BINS), by the upper 15 bits of the magnitude as float32; with `bins`, shape
            (rows, FINE_BINS), by the lower 16 bits of magnitudes that lie in the agent's bin of the coarse count.
        bins: for the fine count, a bin of the coarse count for each agent.
        common: further arguments of `value`, rounded to the loop's real type.
        drop: random draws; `start` must be even if words hold two elements.
        rows: how many agents are counted, by default all; 1 for a value that is the same for all agents.

    Returns:
        True if an input or a task vector is not finite.
    """
    row_count = which.agents if rows is None else rows
    kernel = _histogram_kernel(value, loop, which, len(common), bins is not None, drop is not None, row_count)
    numbers = np.array([*common, *(drop.scales if drop else ())], loop.out.real)
    bin_numbers = np.array(bins if bins is not None else (0,) * row_count, np.uint32)
    magnitudes = np.empty(_CHUNK_WORDS * row_count * len(loop.parts), np.uint32)
    return bool(kernel(*inputs, numbers, bin_numbers, counts.reshape(-1), magnitudes, *_drop_draws(drop)))


def _drop_draws(drop: Drop | None) -> tuple[NDArray[np.uint32], int]:
    if drop is None:
        return np.zeros(0, np.uint32), 0
    rows = [(*key, below) for key, below in zip(drop.keys, drop.below, strict=True)]
    return np.array(rows, np.uint32).reshape(-1), drop.start


# --- source ----------------------------------------------------------------------------------------------------------


@cache
def _merge_kernel(
    element: Element, loop: Loop, which: Inputs, kinds: tuple[str | bool, ...], drops: bool, rounds: int
) -> Kernel:
    """Generate and compile a loop.

    `kinds`: kinds of the formula's arguments. `rounds`: the length of `beyond` if erased updates are counted, else 0.
    """
    form, agents, counters = loop.out, range(which.agents), Counters(which.agents)
    limits = names_of("beyond", rounds, which.agents)
    arguments = ["b", _tuple_source("tau{t}", agents)]
    arguments += [_tuple_source("f{t}_i", agents)] if which.importances else []
    for index, kind in enumerate(kinds):
        argument = _tuple_source(f"e{index}_{{t}}", agents) if kind == _EACH else f"c{index}"
        arguments.append(str(kind) if isinstance(kind, bool) else argument)
    body = _draw_words(loop, agents) if drops else []
    for part in loop.parts:
        body += task_vectors(loop, which, part)
        if rounds:
            body += [*counters.clear(["active"]), *[counters.mark(t, f"abs(tau{t}) > {limits[t]}") for t in agents]]
        body += _drop_source(loop, agents, part) if drops else []
        if which.importances:
            # a negative importance is reported like an infinite one
            body += [f"f{t}_i = {_element_source(loop, which, f'f{t}', part)}" for t in agents]
            body += [f"weighed = {form.peak}(weighed, f{t}_i if f{t}_i >= ZERO else INFINITY)" for t in agents]
        body += [f"r{part} = element({', '.join(arguments)})", f"peak = {form.peak}(peak, r{part})"]
        body += counters.survey(loop, form.name, f"r{part}") if rounds else []
    body.append(f"out[i] = {form.pack}({', '.join(f'r{part}' for part in loop.parts)})")
    totals = ROWS if rounds else ()
    source = native.fill(
        _LOOP,
        arguments=", ".join([*which.names, "out", "numbers", "counts", "draws", "start"]),
        real=form.real_name,
        bits=form.bits,
        before=_number_assignments(agents, kinds, drops, limits[:rounds]),
        first=which.names[0],
        chunk=CHUNK_WORDS,
        reset=counters.clear(totals),
        body=body,
        flush=counters.flush("counts", totals),
        wrong=_WRONG,
        doubtful=_DOUBTFUL,
        infinity=form.infinity,
        overflow=form.overflow,
    )
    types = [*loop.codes, f"{form.word_code}[]", f"{form.real_code}[]", "i64[]", "u32[]", "u64"]
    scope = {"element": element, **({"threefry": threefry} if drops else {})}
    return native.load("loop", source, tuple(types), "u32", scope)


@cache
def _histogram_kernel(
    value: Element, loop: Loop, which: Inputs, common: int, fine: bool, drops: bool, row_count: int
) -> Kernel:
    form, agents, rows, parts = loop.out, range(which.agents), range(row_count), loop.parts
    body = _draw_words(loop, agents) if drops else []
    for part in parts:
        body += task_vectors(loop, which, part)
        body += _drop_source(loop, agents, part) if drops else []
        for t in rows:
            call = ", ".join([str(t), _tuple_source("tau{t}", agents), *[f"c{number}" for number in range(common)]])
            row = f"np.uint64({_CHUNK_WORDS * (t * len(parts) + part)})"
            body.append(f"magnitudes[{row} + i - start_of_chunk] = peak_f32(nothing, np.float32(value({call})))")
    counting = []
    for t in rows:
        for part in parts:
            row = f"np.uint64({_CHUNK_WORDS * (t * len(parts) + part)})"
            counting.append(f"m = np.uint64(magnitudes[{row} + j])")
            if fine:
                counting += [
                    f"if m >> SIXTEEN == bin{t}:",
                    f"    counts[np.uint64({t * FINE_BINS}) + (m & LOWER)] += ONE32",
                ]
            else:
                counting.append(f"counts[np.uint64({t * COARSE_BINS}) + (m >> SIXTEEN)] += ONE32")
    bins = [f"bin{t} = np.uint64(bins[{t}])" for t in rows]
    source = native.fill(
        _COUNTING,
        arguments=", ".join([*which.names, "numbers", "bins", "counts", "magnitudes", "draws", "start"]),
        real=form.real_name,
        bits=form.bits,
        before=[*_number_assignments(agents, (_COMMON,) * common, drops), *(bins if fine else [])],
        first=which.names[0],
        chunk=_CHUNK_WORDS,
        body=body,
        counting=counting,
        infinity=form.infinity,
    )
    types = [*loop.codes, f"{form.real_code}[]", *["u32[]"] * 4, "u64"]
    scope = {"value": value, **({"threefry": threefry} if drops else {})}
    return native.load("loop", source, tuple(types), "u32", scope)


# Counting cannot be vectorized, but computing can, so magnitudes of a chunk pass through a small array.
_CHUNK_WORDS = 512
_COUNTING = """
def loop({arguments}):
    SIXTEEN, LOWER, ONE64, ONE32 = np.uint64(16), np.uint64(65535), np.uint64(1), np.uint32(1)
    ZERO = {real}(0)
    nothing, seen = np.uint32(0), np.{bits}(0)
    {before}
    size, chunk = np.uint64({first}.size), np.uint64({chunk})
    start_of_chunk = np.uint64(0)
    while start_of_chunk < size:
        end_of_chunk = min(start_of_chunk + chunk, size)
        for i in range(start_of_chunk, end_of_chunk):
            {body}
        for j in range(end_of_chunk - start_of_chunk):
            {counting}
        start_of_chunk = end_of_chunk
    return np.uint32(1) if seen >= np.{bits}({infinity}) else np.uint32(0)
"""

_LOOP = """
def loop({arguments}):
    SIXTEEN, LOWER, ONE64, ONE32 = np.uint64(16), np.uint64(65535), np.uint64(1), np.uint32(1)
    ZERO, INFINITY = {real}(0), {real}(np.inf)
    nothing, seen, weighed, peak = np.uint32(0), np.{bits}(0), np.{bits}(0), np.{bits}(0)
    field0, field1 = np.uint32(1), np.uint32(1 << 16)
    {before}
    for first in range(0, {first}.size, {chunk}):
        last = min(first + {chunk}, {first}.size)
        {reset}
        for i in range(np.uint64(first), np.uint64(last)):
            {body}
        {flush}
    wrong = np.uint32({wrong}) if weighed >= np.{bits}({infinity}) or peak >= np.{bits}({overflow}) else nothing
    return or32(wrong, np.uint32({doubtful}) if seen >= np.{bits}({infinity}) else nothing)
"""


def _element_source(loop: Loop, which: Inputs, name: str, part: int) -> str:
    return loop.element(which.names.index(name), part, f"{name}[i]")


def task_vectors(loop: Loop, which: Inputs, part: int) -> list[str]:
    """Return source code that computes base and task vectors for element `part` of a word.

    A task vector is not finite if base or agent is not, or if their difference overflows.
    """
    lines = [f"b = {_element_source(loop, which, 'base', part)}" if which.base else "b = ZERO"]
    for t in range(which.agents):
        x = _element_source(loop, which, f"a{t}", part)
        lines += [f"tau{t} = {x} - b" if which.base else f"tau{t} = {x}", f"seen = {loop.out.peak}(seen, tau{t})"]
    return lines


def _drop_source(loop: Loop, agents: range, part: int) -> list[str]:
    draw = f"word{part}_{{t}}" if len(loop.parts) == 2 else "(word1_{t} if odd else word0_{t})"
    return [f"tau{t} = tau{t} * stay{t} if {draw.format(t=t)} >= below{t} else ZERO" for t in agents]


def _number_assignments(agents: range, kinds: Sequence[str | bool], drops: bool, more: Sequence[str] = ()) -> list[str]:
    patterns = {_EACH: [f"e{{}}_{t}" for t in agents], _COMMON: ["c{}"]}
    names = [name.format(index) for index, kind in enumerate(kinds) for name in patterns.get(str(kind), [])]
    names += [*([f"stay{t}" for t in agents] if drops else []), *more]
    keys = [f"k{t}_0, k{t}_1, below{t} = draws[{3 * t}], draws[{3 * t + 1}], draws[{3 * t + 2}]" for t in agents]
    return [*[f"{name} = numbers[{index}]" for index, name in enumerate(names)], *(keys if drops else [])]


def _draw_words(loop: Loop, agents: range) -> list[str]:
    if len(loop.parts) == 2:
        lines = ["counter = (start >> ONE64) + i"]
    else:
        lines = ["counter = (start + i) >> ONE64", "odd = ((start + i) & ONE64) == ONE64"]
    lines += ["low, high = np.uint32(counter), np.uint32(counter >> np.uint64(32))"]
    lines += [f"word0_{t}, word1_{t} = threefry(low, high, k{t}_0, k{t}_1)" for t in agents]
    return lines


def _tuple_source(name: str, agents: range) -> str:
    return f"({', '.join(name.format(t=t) for t in agents)},)"
