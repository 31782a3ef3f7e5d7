"""Updates that the last rounding of a merge erases, counted over all elements.

An agent's *updates* are the elements that it moved and that the merge changes. An update is *erased* where the result,
once rounded to the output's dtype, is what the base would be there: the output does not show that it was learned.

Loops that round on the way (16-bit formats) count on the way, with `Counters`; where the result is there in float32 or
float64 before it is rounded, `survey` counts it. `kernels.effect` measures more, on a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS, FORMATS, ElementFormat, Loop, Words
from ramerge.core.kernels.native import Kernel

# What is counted, by agent.
Counts = NDArray[np.int64]
"""An array to count in, of shape (rows, agents)."""
ROWS = ("updates", "erased")

# Counters are fields of 16 bits, so they are flushed after this many words, of two elements at most.
CHUNK_WORDS = 1 << 14


def is_narrowing(real: type[np.generic], target: str) -> bool:
    """Whether rounding from `real` (float32 or float64) to a format can lose anything."""
    return FORMATS[target].itemsize < np.dtype(real).itemsize


def rounded(form: ElementFormat, target: str, value: str) -> str:
    """Source of `value`, of the format's real type, rounded to nearest even in `target` and widened again; exact."""
    if not is_narrowing(form.real, target):
        return value
    if target == "F32":
        return f"np.float64(np.float32({value}))"
    if form.real is np.float64:
        return f"np.float64({_stored_value(target, f'sticky_f32({value})')})"
    return _stored_value(target, value)


def kept_base(loop: Loop, target: str) -> str:
    """Source of the base `b`, the loop's first input, as stored in `target`."""
    return "b" if loop.inputs[0].name == target else rounded(loop.out, target, "b")


def _stored_value(target: str, value: str) -> str:
    form = ELEMENTS[target]
    return f"{form.lanes[0]}({form.pack}({value}))"


def names_of(name: str, numbers: int, agents: int) -> list[str]:
    """Names in source of a number of each agent: names of their own, or one name if all have the same number."""
    return [f"{name}{t}" for t in range(agents)] if numbers > 1 else [name] * agents


class Counters:
    """Source of the counters in a loop over words: fields of 16 bits, two agents to a register.

    A field holds what at most 65,535 elements add to it, so that a loop must flush them after as many. `active` is one
    bit for each agent that moved an element, in that agent's field.
    """

    def __init__(self, agents: int) -> None:
        self.agents = range(agents)
        self.pairs = range((agents + 1) // 2)

    @property
    def combined(self) -> str:
        """`active` of all agents, each with a bit of its own."""
        bits = "active0"
        for pair in self.pairs[1:]:
            bits = f"or32(double32({bits}), active{pair})"
        return bits

    def clear(self, names: Sequence[str]) -> list[str]:
        """Set counters of these names, or `active`, to 0."""
        return [f"{name}{pair} = nothing" for name in names for pair in self.pairs]

    def mark(self, agent: int, condition: str) -> str:
        """Set an agent's bit of `active` where the condition `condition` holds."""
        flag = f"active{agent // 2}"
        return f"{flag} = or32({flag}, field{agent % 2}) if {condition} else {flag}"

    def count(self, name: str, where: str = "") -> list[str]:
        """Add `active` to counters, everywhere or where a condition holds."""
        condition = f" if {where} else {name}{{pair}}" if where else ""
        line = f"{name}{{pair}} = add32({name}{{pair}}, active{{pair}}){condition}"
        return [line.format(pair=pair) for pair in self.pairs]

    def flush(self, array: str, names: Sequence[str], start: str = "") -> list[str]:
        """Add the counters to an array from the index `start` on, one row for each of them."""
        n = len(self.agents)
        places = range(len(names) * n)
        at = [f"{start} + np.uint64({place})" if start else f"{place}" for place in places]
        return [
            f"{array}[{at[row * n + t]}] += ({name}{t // 2} >> {16 * (t % 2)}) & 65535"
            for row, name in enumerate(names)
            for t in self.agents
        ]

    def survey(self, loop: Loop, target: str, result: str, stored_value: str = "") -> list[str]:
        """Count the element whose `result`, of the base `b`, is to be rounded, or is `stored_value` already."""
        same = f"{stored_value or rounded(loop.out, target, result)} == {kept_base(loop, target)}"
        lines = [f"changed = {result} != b", f"same = changed and {same}"]
        return [*lines, *self.count("updates", "changed"), *self.count("erased", "same")]


_SURVEY = """
def survey({arrays}, result, stored, {beyond}, counts):
    nothing, field0, field1 = np.uint32(0), np.uint32(1), np.uint32(1 << 16)
    for start in range(0, result.size, {chunk}):
        stop = min(start + {chunk}, result.size)
        {clear}
        for i in range(np.uint64(start), np.uint64(stop)):
            b, r, s = {base}, {result}, {stored}
            {body}
        {flush}
    return nothing
"""


def survey(
    loop: Loop,
    inputs: Sequence[Words],
    result: Words,
    target: str,
    stored_words: Words,
    beyond: Sequence[float],
    counts: NDArray[np.int64],
) -> None:
    """Count what rounding a result to a format did to the updates of N agents.

    Args:
        loop: formats of the inputs, and of the result: F32 or F64.
        inputs: words of the base and the agents; as long as the result, or longer.
        target: the format that the result was rounded to. F32 for a float32 result that is stored as other numbers.
        stored_words: the result as it is read back: words of `target`, one element a word.
        beyond: one for each agent, or only one: it has moved an element where |agent - base| > beyond.
        counts: shape (2, N) or more rows, added to: updates, and those of them that rounding erased.
    """
    _survey(loop, target, len(beyond))(*inputs, result, stored_words, *beyond, counts.reshape(-1))


@cache
def _survey(loop: Loop, target: str, limits: int) -> Kernel:
    form, n, after = loop.out, len(loop.inputs) - 1, ELEMENTS[target]
    wide = "np.float64" if form.real is np.float64 else ""
    counters = Counters(n)
    beyond = names_of("beyond", limits, n)
    marks = [counters.mark(t, f"abs({loop.element(1 + t, 0, f'a{t}[i]')} - b) > {beyond[t]}") for t in range(n)]
    source = native.fill(
        _SURVEY,
        arrays=", ".join(["base", *[f"a{t}" for t in range(n)]]),
        beyond=", ".join(beyond[:limits]),
        chunk=CHUNK_WORDS,
        base=loop.element(0, 0, "base[i]"),
        result=f"{form.lanes[0]}(result[i])",
        stored=f"{wide}({after.lanes[0]}(stored[i]))",
        clear=counters.clear(ROWS),
        body=[*counters.clear(["active"]), *marks, *counters.survey(loop, target, "r", "s")],
        flush=counters.flush("counts", ROWS),
    )
    types = (*loop.codes, f"{form.word_code}[]", f"{after.word_code}[]", *[form.real_code] * limits, "i64[]")
    return native.load("survey", source, types, "u32")
