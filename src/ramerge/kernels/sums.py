"""Sums over segments of a tensor of what formulas give, and of products of that: norms and dot products.

Terms are float64. The order in which a segment's are added depends on the processor and on the formats of the inputs,
so that the loop can be vectorised; it depends on neither blocks nor threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native
from ramerge.kernels.elementwise import Element, Inputs, task_vectors
from ramerge.kernels.formats import Loop

Words = NDArray[Any]

_CHUNK = 512


def products(agents: int) -> tuple[tuple[int, int], ...]:
    """The terms of a Gram matrix: every agent with itself and with those before it."""
    return tuple((i, j) for i in range(agents) for j in range(i + 1))


def totals(agents: int) -> tuple[tuple[int, int], ...]:
    """The terms of every agent's plain sum."""
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
    """Sums of each segment.

    Args:
        value: a plain function `value(t, taus, *of_each, *common)` of an agent's number, of all task vectors, and of
            the agent's own numbers.
        loop: formats of the inputs.
        inputs: 1-D arrays of these formats' words, of equal length, as `which` says.
        which: what the inputs are; without a base, task vectors are the agents themselves.
        terms: whose values are multiplied and summed, as numbers of agents; the number of agents itself stands for 1.
        segment: elements of a segment; the last one may be shorter. Even where words hold two elements.
        elements: how many elements there are.
        each: tuples of one number an agent, rounded here to the loop's real type.
        common: numbers, rounded alike.

    Returns:
        float64 of shape (segments, terms), and whether an input or a value is not finite.
    """
    kernel = _sums(value, loop, which, len(each), len(common))
    numbers = np.array([*[number for row in each for number in row], *common], loop.out.real)
    found = np.zeros((-(-elements // segment), len(terms)))
    left, right = np.array(terms, np.int64).T.copy()
    room = np.ones((which.agents + 1) * _CHUNK)
    flagged = kernel(*inputs, numbers, left, right, room, found.reshape(-1), segment // len(loop.parts))
    return found, bool(flagged)


_SOURCE = """
def sums({arguments}):
    ZERO, CHUNK = {real}(0), np.uint64({chunk})
    nothing, seen = np.uint32(0), np.{bits}(0)
    {numbers}
    words, begin, at, size = np.int64({chunk_words}), np.int64(0), np.uint64(0), np.int64({first}.size)
    while begin < size:
        end = min(begin + segment, size)
        start = begin
        while start < end:
            length = min(words, end - start)
            if length < words:
                for k in range({values}):
                    room[k] = 0.0
            for j in range(np.uint64(length)):
                i = np.uint64(start) + j
                {widen}
            for term in range(np.uint64(left.size)):
                x, y, total = np.uint64(left[term]) * CHUNK, np.uint64(right[term]) * CHUNK, 0.0
                for k in range(CHUNK):
                    total = plus(total, room[x + k] * room[y + k])
                found[at + term] += total
            start += words
        at += np.uint64(left.size)
        begin = end
    return np.uint32(1) if seen >= np.{bits}({infinity}) else np.uint32(0)
"""


@cache
def _sums(value: Element, loop: Loop, which: Inputs, each: int, common: int) -> Any:
    form, agents, words = loop.out, range(which.agents), _CHUNK // len(loop.parts)
    widen = []
    for part in loop.parts:
        widen += task_vectors(loop, which, part)
        taus = f"({', '.join(f'tau{t}' for t in agents)},)"
        for t in agents:
            own = [*[f"e{row}_{t}" for row in range(each)], *[f"c{index}" for index in range(common)]]
            widen += [
                f"v = value({', '.join([str(t), taus, *own])})",
                f"seen = {form.peak}(seen, v)",
                f"room[np.uint64({t * _CHUNK + part * words}) + j] = np.float64(v)",
            ]
    names = [*[f"e{row}_{t}" for row in range(each) for t in agents], *[f"c{index}" for index in range(common)]]
    source = _SOURCE.format(
        arguments=", ".join([*which.names, "numbers", "left", "right", "room", "found", "segment"]),
        real=f"np.{np.dtype(form.real).name}",
        bits=form.bits,
        chunk=_CHUNK,
        numbers="\n    ".join(f"{name} = numbers[{index}]" for index, name in enumerate(names)) or "pass",
        chunk_words=words,
        first=which.names[0],
        values=len(agents) * _CHUNK,
        widen="\n                ".join(widen),
        infinity=form.infinity,
    )
    types = [*[f"{each.word_code}[]" for each in loop.inputs], f"{form.real_code}[]", *["i64[]"] * 2, *["f64[]"] * 2]
    return native.load("sums", source, (*types, "i64"), "u32", {"value": value})
