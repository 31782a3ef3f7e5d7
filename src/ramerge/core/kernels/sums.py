"""Norms and dot products: sums of a formula's values, or of products of two values, over a tensor's segments.

Terms are float64. A segment of 16,384 elements or more is added up in 1024 lanes: element i goes to lane i % 1024, in
order. Then the upper half of the lanes is repeatedly added to the lower half until one lane is left. Shorter segments
have fewer lanes. So the order of additions, which suits vector units, does not depend on formats, processors, blocks
and threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS, Loop, Words
from ramerge.core.kernels.elementwise import Element, Inputs, task_vectors
from ramerge.core.kernels.native import Kernel

LANES = 1024
_ROOM = LANES + 8  # memory for the lanes of a term; padded, so that lanes of several terms do not share cache lines
_TERMS = 36  # the most terms of a loop; a loop over more is not vectorized
_SIDE = 6  # tiles of 6 by 6 agents have that many products
_FEW = 16  # the most agents of one loop


def products(agents: int) -> tuple[tuple[int, int], ...]:
    """Return the terms of a Gram matrix for `sums`: every agent with itself and with all earlier agents."""
    return tuple((i, j) for i in range(agents) for j in range(i + 1))


def squares(agents: int) -> tuple[tuple[int, int], ...]:
    """Return the terms for `sums` that give each agent's sum of squares."""
    return tuple((t, t) for t in range(agents))


def totals(agents: int) -> tuple[tuple[int, int], ...]:
    """Return the terms for `sums` that give each agent's plain sum."""
    return tuple((t, agents) for t in range(agents))


def sums(
    value: Element,
    loop: Loop,
    inputs: Sequence[Words],
    which: Inputs,
    terms: Sequence[tuple[int, int]],
    segment: int,
    elements: int,
    each: Sequence[Sequence[float]] = (),
    common: Sequence[float] = (),
) -> tuple[NDArray[np.float64], bool]:
    """Compute the sums of all terms in each segment.

    Args:
        value: a plain function `value(t, taus, *of_each, *common)` of an agent's index, all task vectors, and the
            agent's own numbers.
        loop: formats of the inputs.
        inputs: 1-D arrays of words in these formats, of equal length, in the order of `which`.
        which: the roles of the inputs; without a base, task vectors are the agents themselves.
        terms: pairs of agents' indices whose values are multiplied and summed; the index N stands for the value 1.
        segment: elements of a segment; the last segment may be shorter.
        elements: elements of the inputs.
        each: tuples with one number per agent, rounded here to the loop's real type.
        common: numbers that all agents share, rounded likewise.

    Returns:
        float64 of shape (segments, terms), and whether an input or a value is not finite.
    """
    numbers = np.array([*[number for row in each for number in row], *common], loop.out.real)
    single = Loop(tuple(ELEMENTS[form.name] for form in loop.inputs), ELEMENTS[loop.out.name])
    words, is_nonfinite = single.arrays(inputs, elements), False
    totals = np.zeros((-(-elements // segment), len(terms)))
    # lanes of a segment: a power of two; fewer for short segments, so that a lane gets several elements
    most = max(16, min(LANES, 1 << (max(segment // 16, 1).bit_length() - 1)))
    for places, agents in _term_groups(terms, which.agents):
        own = [0, *[1 + t for t in agents]] if which.base else agents
        loop = Loop(tuple(single.inputs[k] for k in own), single.out)
        new_numbers = {t: index for index, t in enumerate(agents)} | {which.agents: len(agents)}
        group = tuple((new_numbers[x], new_numbers[y]) for x, y in (terms[place] for place in places))
        kernel = _sums_kernel(value, loop, replace(which, agents=len(agents)), group, len(each), len(common))
        one, lanes = np.zeros((len(totals), len(group))), np.empty(len(group) * _ROOM)
        read = [words[k] for k in own]
        is_nonfinite |= bool(kernel(*read, numbers, lanes, one.reshape(-1), segment, most))
        totals[:, places] = one
    return totals, is_nonfinite


def _term_groups(terms: Sequence[tuple[int, int]], agents: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indices of terms that are summed in one loop, and the agents whose task vectors the loop takes.

    If there are few agents, a loop takes all of them. Otherwise, a loop takes tiles of six by six agents, so that it is
    compiled for few numbers of agents only; a value must then depend on the agent's own task vector only.
    """
    if agents <= _FEW:
        for first in range(0, len(terms), _TERMS):
            yield list(range(first, min(first + _TERMS, len(terms)))), list(range(agents))
        return
    tiles: dict[tuple[int, int], list[int]] = {}
    for place, (x, y) in enumerate(terms):
        tiles.setdefault((x // _SIDE, y // _SIDE), []).append(place)
    for (left, right), places in tiles.items():
        sides = dict.fromkeys((left, right))
        yield places, [t for side in sides for t in range(side * _SIDE, min((side + 1) * _SIDE, agents))]


# Lanes that a short segment does not reach would stay 0, so they are left out.
_SOURCE = """
def sums({arguments}):
    ZERO, ROOM = {real}(0), np.uint64({room})
    nothing, seen = np.uint32(0), np.{bits}(0)
    {numbers}
    begin, at, size = np.uint64(0), np.uint64(0), np.uint64({first}.size)
    while begin < size:
        end = min(begin + np.uint64(segment), size)
        width = np.uint64(most)
        while width > np.uint64(8) and width >= (end - begin) * np.uint64(2):
            width = width >> np.uint64(1)
        for row in range(np.uint64({terms})):
            for k in range(width):
                lanes[row * ROOM + k] = 0.0
        start = begin
        while start < end:
            for k in range(min(width, end - start)):
                i = start + k
                {add}
            start += width
        for term in range(np.uint64({terms})):
            z, span = term * ROOM, width
            while span > np.uint64(8):
                span = span >> np.uint64(1)
                for k in range(span):
                    lanes[z + k] += lanes[z + k + span]
            found[at + term] = {eight}
        at += np.uint64({terms})
        begin = end
    return np.uint32(1) if seen >= np.{bits}({infinity}) else np.uint32(0)
"""


def _fold_source(lanes: int, first: int = 0, apart: int = 1) -> str:
    """Return source code that sums lanes from z on: the upper half is added to the lower half until one is left."""
    if lanes == 1:
        return f"lanes[z + np.uint64({first})]"
    return f"({_fold_source(lanes // 2, first, 2 * apart)} + {_fold_source(lanes // 2, first + apart, 2 * apart)})"


@cache
def _sums_kernel(
    value: Element, loop: Loop, which: Inputs, terms: tuple[tuple[int, int], ...], each: int, common: int
) -> Kernel:
    form, agents = loop.out, range(which.agents)
    add = task_vectors(loop, which, 0)
    taus = f"({', '.join(f'tau{t}' for t in agents)},)"
    for t in agents:
        own = [*[f"e{index}_{t}" for index in range(each)], *[f"c{index}" for index in range(common)]]
        add += [
            f"v = value({', '.join([str(t), taus, *own])})",
            f"seen = {form.peak}(seen, v)",
            f"v{t} = np.float64(v)",
        ]
    for place, (x, y) in enumerate(terms):
        product = f"v{x} * v{y}" if y < which.agents else f"v{x}"
        add.append(f"lanes[np.uint64({place * _ROOM}) + k] += {product}")
    names = [*[f"e{index}_{t}" for index in range(each) for t in agents], *[f"c{index}" for index in range(common)]]
    source = native.fill(
        _SOURCE,
        arguments=", ".join([*which.names, "numbers", "lanes", "found", "segment", "most"]),
        real=form.real_name,
        bits=form.bits,
        numbers=[f"{name} = numbers[{index}]" for index, name in enumerate(names)],
        first=which.names[0],
        add=add,
        room=_ROOM,
        terms=len(terms),
        eight=_fold_source(8),
        infinity=form.infinity,
    )
    types = [*loop.codes, f"{form.real_code}[]", "f64[]", "f64[]", "i64", "i64"]
    return native.load("sums", source, tuple(types), "u32", {"value": value})
