"""Counts updates that the final rounding of a merge erases, over all elements.

An agent's *updates* are the elements that it moved and that the merge changes. An update is *erased* if the result,
rounded to the output's dtype, equals the base in that dtype: nothing of the update is left in the output. Loops that
round their results themselves (to 16-bit formats) also count, with `Counters`; if the result exists in float32 or
float64 before it is rounded, `survey` counts. `kernels.effect` measures more, on a sample.
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
"""An array of counts, of shape (rows, agents)."""
ROWS = ("updates", "erased")

# Counters are 16-bit fields, so they are flushed after this many words, which have at most two elements each.
CHUNK_WORDS = 1 << 14


def is_narrowing(real: type[np.generic], target: str) -> bool:
    """Whether rounding from `real` (float32 or float64) to the format `target` can lose precision."""
    return FORMATS[target].itemsize < np.dtype(real).itemsize


def rounded(form: ElementFormat, target: str, value: str) -> str:
    """Return source code that rounds `value` to nearest even in `target`, and widens it to the format's real type."""
    if not is_narrowing(form.real, target):
        return value
    if target == "F32":
        return f"np.float64(np.float32({value}))"
    if form.real is np.float64:
        return f"np.float64({_stored_value(target, f'sticky_f32({value})')})"
    return _stored_value(target, value)


def kept_base(loop: Loop, target: str) -> str:
    """Return source code for the base `b`, the loop's first input, as it would be stored in `target`."""
    return "b" if loop.inputs[0].name == target else rounded(loop.out, target, "b")


def _stored_value(target: str, value: str) -> str:
    form = ELEMENTS[target]
    return f"{form.lanes[0]}({form.pack}({value}))"


def names_of(name: str, numbers: int, agents: int) -> list[str]:
    """Return the name, in source code, of each agent's number: separate names, or one name if all share a number."""
    return [f"{name}{t}" for t in range(agents)] if numbers > 1 else [name] * agents


class Counters:
    """Generates source code for counters in a loop over words: 16-bit fields, two agents per register.

    A loop must flush the counters after at most 65,535 elements. `active` has one bit for each agent that moved the
    current element, in the agent's field.
    """

    def __init__(self, agents: int) -> None:
        self.agents = range(agents)
        self.pairs = range((agents + 1) // 2)

    @property
    def combined(self) -> str:
        """An expression that combines `active` of all agents, with one bit for each agent."""
        bits = "active0"
        for pair in self.pairs[1:]:
            bits = f"or32(double32({bits}), active{pair})"
        return bits

    def clear(self, names: Sequence[str]) -> list[str]:
        """Return source code that sets counters with these names, or `active`, to 0."""
        return [f"{name}{pair} = nothing" for name in names for pair in self.pairs]

    def mark(self, agent: int, condition: str) -> str:
        """Return source code that sets an agent's bit of `active` if `condition` holds."""
        flag = f"active{agent // 2}"
        return f"{flag} = or32({flag}, field{agent % 2}) if {condition} else {flag}"

    def count(self, name: str, where: str = "") -> list[str]:
        """Return source code that adds `active` to counters, always or only if the condition `where` holds."""
        condition = f" if {where} else {name}{{pair}}" if where else ""
        line = f"{name}{{pair}} = add32({name}{{pair}}, active{{pair}}){condition}"
        return [line.format(pair=pair) for pair in self.pairs]

    def flush(self, array: str, names: Sequence[str], start: str = "") -> list[str]:
        """Return source code that adds counters to an array, one row per name, from the index `start` on."""
        n = len(self.agents)
        places = range(len(names) * n)
        at = [f"{start} + np.uint64({place})" if start else f"{place}" for place in places]
        return [
            f"{array}[{at[row * n + t]}] += ({name}{t // 2} >> {16 * (t % 2)}) & 65535"
            for row, name in enumerate(names)
            for t in self.agents
        ]

    def survey(self, loop: Loop, target: str, result: str, stored_value: str = "") -> list[str]:
        """Return source code that counts an element with base `b`: `result` is stored rounded, or as `stored_value`."""
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
    """Count the updates of N agents, and the updates that rounding a result to a format erased.

    Args:
        loop: formats of the inputs, and of the result: F32 or F64.
        inputs: words of the base and the agents, at least as long as the result.
        result: the result before rounding.
        target: the format that the result was rounded to; F32 for a float32 result that is stored as codes.
        stored_words: the result as it is read back, in the format `target` with one element per word.
        beyond: a threshold for each agent, or one for all: an agent has moved an element if |agent - base| > beyond.
        counts: at least 2 rows and N columns, added to: updates and erased updates.
    """
    _survey_kernel(loop, target, len(beyond))(*inputs, result, stored_words, *beyond, counts.reshape(-1))


@cache
def _survey_kernel(loop: Loop, target: str, limits: int) -> Kernel:
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
