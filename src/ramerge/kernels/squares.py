"""Sums of squares of task vectors, the same whatever the blocks, threads and processors.

A chunk of `fixed.CHUNK` elements is added up in `LANES` lanes: element i goes to lane i % LANES, in order. Then the
upper half of the lanes is added to the lower one, until one is left. So there is one order, and it suits vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native
from ramerge.kernels.fixed import CHUNK, LIMBS, enter
from ramerge.kernels.formats import Loop

LANES = 1024

# Elements of a word lie apart, so those of even and of odd index are added first, which are the last two lanes of all.
_SOURCE = """
def squares({inputs}, limbs, lanes):
    seen, ZERO, INFINITY = np.{bits}(0), np.{real}(0), np.{real}(np.inf)
    words = np.uint64({words})
    size = np.uint64(base.size)
    start = np.uint64(0)
    while start < size:
        stop = min(start + np.uint64({chunk}), size)
        for k in range(np.uint64(lanes.size)):
            lanes[k] = 0.0
        row = start
        while row < stop:
            for k in range(min(words, stop - row)):
                i = row + k
                {elements}
            row += words
        for t in range({n}):
            total = 0.0
            for part in range({parts}):
                first = np.uint64((t * {parts} + part) * {words})
                width = words
                while width > np.uint64(1):
                    width = width >> np.uint64(1)
                    for k in range(width):
                        lanes[first + k] += lanes[first + k + width]
                total += lanes[first]
            enter(total, limbs, t * {limbs})
        start = stop
    return np.uint32(1) if seen >= np.{bits}({infinity}) else np.uint32(0)
"""

_ELEMENT = """
                b = {base}
                seen = {peak}(seen, b)
"""
_AGENT = """
                tau = {agent} - b
                seen = {peak}(seen, tau)
                wide = np.float64(tau if abs(tau) < INFINITY else ZERO)
                lanes[np.uint64({lane}) + k] += wide * wide
"""


def squares(loop: Loop, inputs: Sequence[NDArray[Any]], limbs: NDArray[np.int64]) -> bool:
    """Add each agent's sum of squares of its task vector to `limbs`, in float64. What is not finite adds nothing.

    Args:
        loop: formats of the inputs.
        inputs: base and N agents, 1-D arrays of these formats' words, of equal length; the first element is the first
            one of a chunk of its tensor.
        limbs: int64, shape (N, LIMBS), as `fixed` has them.

    Returns:
        True if an input or a task vector is not finite.
    """
    lanes = np.empty((len(inputs) - 1) * LANES, np.float64)
    return bool(_squares(Loop(loop.inputs, loop.inputs[0]))(*inputs, limbs.reshape(-1), lanes))


@cache
def _squares(loop: Loop) -> Any:
    form, n, parts = loop.out, len(loop.inputs) - 1, len(loop.parts)
    words = LANES // parts
    lines = []
    for part in loop.parts:
        lines.append(_ELEMENT.format(base=loop.element(0, part, "base[i]"), peak=form.peak))
        for t in range(n):
            agent = loop.element(1 + t, part, f"a{t}[i]")
            lines.append(_AGENT.format(agent=agent, peak=form.peak, lane=(t * parts + part) * words))
    source = _SOURCE.format(
        inputs=", ".join(["base", *[f"a{t}" for t in range(n)]]),
        bits=form.bits,
        real=np.dtype(form.real).name,
        infinity=form.infinity,
        words=words,
        chunk=CHUNK // parts,
        parts=parts,
        n=n,
        limbs=LIMBS,
        elements="".join(lines).strip(),
    )
    arguments = (*[f"{each.word_code}[]" for each in loop.inputs], "i64[]", "f64[]")
    return native.load("squares", source, arguments, "u32", {"enter": enter})
