"""What the last rounding does to a merge.

An agent's *updates* are the elements that it moved and that the merge changes. An update is *erased* where the result,
once rounded to the output's dtype, is what the base would be there: the output does not show that it was learned. Loops
count both while they merge, because the result before rounding exists nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels.formats import FORMATS, Format

# What is counted, by agent.
ROWS = ("updates", "erased")


Words = NDArray[Any]


@dataclass(frozen=True)
class Rounding:
    """Where a merge counts what rounding does to it.

    Attributes:
        target: format that results are rounded to, a key of `FORMATS`; narrower than the arithmetic.
        counts: int64, shape (2, N): each agent's updates, and those of them that rounding erases.
    """

    target: str
    counts: NDArray[np.int64]

    @property
    def flat(self) -> NDArray[np.int64]:
        """The counts as compiled loops take them."""
        return self.counts.reshape(-1)


def loses(real: type[Any], target: str) -> bool:
    """Whether rounding from `real` (float32 or float64) to a format can lose anything."""
    return FORMATS[target].itemsize < np.dtype(real).itemsize


def rounded(form: Format, target: str, value: str) -> str:
    """Source of `value`, of the format's real type, rounded to nearest even in `target` and widened again; exact."""
    if not loses(form.real, target):
        return value
    if target == "F32":
        return f"np.float64(np.float32({value}))"
    narrow = f"sticky_f32({value})" if form.real is np.float64 else value
    return f"{FORMATS[target].lanes[0]}({FORMATS[target].pack}({narrow}, {narrow}))"


class Counters:
    """Source of the counters in a loop over words: fields of 16 bits, two agents to a register.

    A field holds what at most 65,535 elements add to it, so that a loop must flush them after as many. `active` is one
    bit for each agent that moved an element, in that agent's field.
    """

    def __init__(self, agents: int) -> None:
        self.agents = range(agents)
        self.pairs = range((agents + 1) // 2)

    def clear(self, names: Sequence[str]) -> list[str]:
        """Set registers to zero."""
        return [f"{name}{pair} = nothing" for name in names for pair in self.pairs]

    def mark(self, agent: int, moved: str) -> str:
        """Enter in `active` that an agent moved the element."""
        pair = agent // 2
        return f"active{pair} = or32(active{pair}, field{agent % 2}) if {moved} else active{pair}"

    def count(self, name: str, where: str = "") -> list[str]:
        """Add `active` to counters, everywhere or where a condition holds."""
        condition = f" if {where} else {name}{{pair}}" if where else ""
        line = f"{name}{{pair}} = add32({name}{{pair}}, active{{pair}}){condition}"
        return [line.format(pair=pair) for pair in self.pairs]

    def flush(self, array: str, names: Sequence[str]) -> list[str]:
        """Add the counters to an array, one row for each of them."""
        n = len(self.agents)
        return [
            f"{array}[{row * n + t}] += ({name}{t // 2} >> {16 * (t % 2)}) & 65535"
            for row, name in enumerate(names)
            for t in self.agents
        ]

    def survey(self, form: Format, target: str, result: str) -> list[str]:
        """Count the element whose `result` is to be rounded, of the base `b`."""
        lines = [
            f"changed = {result} != b",
            f"same = changed and {rounded(form, target, result)} == {rounded(form, target, 'b')}",
        ]
        return [*lines, *self.count("updates", "changed"), *self.count("erased", "same")]


def survey_words(
    moved: Sequence[NDArray[np.bool_]], changed: NDArray[np.bool_], stored: Words, base: Words, rounding: Rounding
) -> None:
    """The same for whole arrays, where there is no loop to count in.

    Args:
        moved: for each agent, which elements it moved.
        changed: which elements the merge changes, before rounding.
        stored: words of the result in the format `rounding.target`.
        base: words of the base, rounded to it.
        rounding: is added to.
    """
    bits = np.dtype(f"u{FORMATS[rounding.target].itemsize}")
    left, right = stored.view(bits)[: changed.size], base.view(bits)[: changed.size]
    magnitude = bits.type(np.iinfo(bits).max >> 1)
    same = changed & ((left == right) | (((left | right) & magnitude) == 0))  # zeros of both signs are equal
    for t, own in enumerate(moved):
        rounding.counts[0, t] += np.count_nonzero(own & changed)
        rounding.counts[1, t] += np.count_nonzero(own & same)
