"""What storing an agent in bfloat16 would do to its task vector."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native
from ramerge.kernels.formats import Loop
from ramerge.kernels.rounding import rounded

Words = NDArray[Any]

COUNTS = ("moved", "moved_lost", "changed", "changed_lost")
SUMS = ("update", "update_lost")

_SOURCE = """
def count_lost(base, agent, epsilon, counts, sums):
    start, size = np.int64(0), np.int64(base.size)
    while start < size:
        stop = min(start + np.int64(1 << 15), size)
        nothing, one = np.uint32(0), np.uint32(1)
        moved, moved_lost, changed, changed_lost = nothing, nothing, nothing, nothing
        update, update_lost = 0.0, 0.0
        for i in range(np.uint64(start), np.uint64(stop)):
            b, a = {base}, {agent}
            tau = a - b
            wide = np.float64(tau)
            gone = {round_a} == {round_b}
            differs, far = tau != {real}(0), abs(tau) > epsilon
            changed = add32(changed, one if differs else nothing)
            changed_lost = add32(changed_lost, one if differs and gone else nothing)
            moved = add32(moved, one if far else nothing)
            moved_lost = add32(moved_lost, one if far and gone else nothing)
            update = plus(update, wide * wide)
            update_lost = plus(update_lost, wide * wide if gone else 0.0)
        counts[0] += moved
        counts[1] += moved_lost
        counts[2] += changed
        counts[3] += changed_lost
        sums[0] += update
        sums[1] += update_lost
        start = stop
    return np.uint32(0)
"""


def count_lost(
    loop: Loop, base: Words, agent: Words, epsilon: float, counts: NDArray[np.int64], sums: NDArray[np.float64]
) -> None:
    """Count the elements of a task vector that rounding agent and base to bfloat16 would put to 0.

    Formats of base and agent have one element a word. An element has moved where |agent - base| > epsilon. Added to are
    `counts`: elements that moved, and those of them that are lost; elements that changed at all, and those of them that
    are lost; and `sums`: squares of the task vector, and of its part that is lost, in an order of the processor's
    choice.
    """
    _count_lost(loop)(base, agent, epsilon, counts, sums)


@cache
def _count_lost(loop: Loop) -> Any:
    form = loop.out
    source = _SOURCE.format(
        base=loop.element(0, 0, "base[i]"),
        agent=loop.element(1, 0, "agent[i]"),
        real=f"np.{np.dtype(form.real).name}",
        round_a=rounded(form, "BF16", "a"),
        round_b=rounded(form, "BF16", "b"),
    )
    words = [f"{each.word_code}[]" for each in loop.inputs]
    return native.load("count_lost", source, (*words, form.real_code, "i64[]", "f64[]"), "u32")
