"""Counting and merging for Reinforced Agent Merging (arXiv 2601.13572, equations 1, 2 and 7).

A loop reads every input once and holds everything else in registers. The number of agents, the formats and the tasks
of the loop are fixed when it is compiled, because a loop over agents inside the loop over elements is five times
slower. So the source of each kernel is generated from the template below, one line per agent; `native` compiles it on
first use and stores it.

Sums run over the agents in order, and nothing is contracted or reassociated: results equal NumPy's bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import Loop, Words
from ramerge.core.kernels.native import Kernel
from ramerge.core.kernels.rounding import CHUNK_WORDS, ROWS, Counters, Counts, names_of

_TEMPLATE = """
def {name}(base, {agents}, {lambdas}, {epsilons}, out, counts, rounding):
    nothing, one, zero, peak = np.uint32(0), {real}(1), {real}(0), np.{bits}(0)
    field0, field1 = np.uint32(1), np.uint32(1 << 16)
    for start in range(0, base.size, {chunk}):
        stop = min(start + {chunk}, base.size)
        {reset}
        for i in range(np.uint64(start), np.uint64(stop)):
            {elements}
            {store}
        {flush}
    return peak
"""

# How elements that several agents moved are combined, from the sum of the task vectors and the number of these agents.
# With a single mover, all combinations return its task vector. `high` and `low` are the extremes of the movers' task
# vectors and 0, so if all signs agree, one of the two is 0. A NaN reaches `total`, but not the extremes.
COMBINATIONS = {
    "mean": "total / c",
    "agree_max": "total / c if (low < zero and high > zero) or total != total else low + high",
    "sum": "total",
    "rms": "total / root_{real}(c)",
}


@dataclass(frozen=True)
class _RamLoop:
    """The variant of a loop over a base and agents.

    Attributes:
        loop: formats of the inputs and of the result.
        epsilons: the number of thresholds; 1 if all agents share one.
        merges: a key of `COMBINATIONS`, to store merged elements; if empty, only count.
        rescales: whether to multiply unique elements by lambda.
        counts: whether to count moved and unique elements.
        rounds: whether to count the updates that storing in the output's format erases.
        allow_nonfinite: whether a NaN counts as not moved, as in IEEE comparisons. Otherwise it counts as moved, so
            that it reaches `peak` through the result, which detects non-finite values at no cost. If a NaN cannot reach
            the result, `peak` also covers task vectors.
    """

    loop: Loop
    epsilons: int
    merges: str = ""
    rescales: bool = False
    counts: bool = False
    rounds: bool = False
    allow_nonfinite: bool = False

    @property
    def agents(self) -> range:
        return range(len(self.loop.inputs) - 1)

    @property
    def name(self) -> str:
        rule = f"merge_{self.merges}".removesuffix("_mean")
        tasks = ((rule, self.merges), ("rescale", self.rescales), ("count", self.counts), ("survey", self.rounds))
        task = "_".join(word for word, does in tasks if does)
        return f"{task}_{self.loop.formats_suffix}_{len(self.agents)}" + ("_nonfinite" if self.allow_nonfinite else "")

    def source(self) -> str:
        form, counters = self.loop.out, Counters(len(self.agents))
        totals_by_array = {
            "counts": ("moved", "unique") if self.counts else (),
            "rounding": ROWS if self.rounds else (),
        }
        values = ", ".join(f"value{part}" for part in self.loop.parts)
        return native.fill(
            _TEMPLATE,
            name=self.name,
            real=form.real_name,
            bits=form.bits,
            chunk=CHUNK_WORDS,
            agents=", ".join(f"a{t}" for t in self.agents),
            lambdas=", ".join(f"lambda{t}" for t in self.agents),
            epsilons=", ".join(names_of("epsilon", self.epsilons, len(self.agents))[: self.epsilons]),
            reset=[line for totals in totals_by_array.values() for line in counters.clear(totals)],
            elements=[line for part in self.loop.parts for line in self._element(part, counters)],
            store=[f"out[i] = {form.pack}({values})"] if self.merges else [],
            flush=[line for array, totals in totals_by_array.items() for line in counters.flush(array, totals)],
        )

    def _element(self, part: int, counters: Counters) -> list[str]:
        """Return source code for one element: `b` is the base, `tau` a task vector, `c` how many agents moved it.

        `active` has one bit for each agent that moved it, in the agent's field.
        """
        lines = [f"b = {self.loop.element(0, part, 'base[i]')}", "total, scale, c = zero, one, zero"]
        lines += ["high, low = zero, zero"] if self.merges == "agree_max" else []
        lines += counters.clear(["active"]) if self.counts or self.rounds else []
        for t, epsilon in zip(self.agents, names_of("epsilon", self.epsilons, len(self.agents)), strict=True):
            lines.append(f"tau = {self.loop.element(1 + t, part, f'a{t}[i]')} - b")
            if self.allow_nonfinite or not self.merges:
                lines += [f"peak = {self.loop.out.peak}(peak, tau)", f"moved = abs(tau) > {epsilon}"]
            else:
                lines.append(f"moved = not (abs(tau) <= {epsilon})")
            lines += ["total = total + tau if moved else total", "c = c + one if moved else c"]
            if self.merges == "agree_max":
                lines += ["high = tau if moved and tau > high else high", "low = tau if moved and tau < low else low"]
            lines += [f"scale = lambda{t} if moved else scale"] if self.rescales else []
            lines += [counters.mark(t, "moved")] if self.counts or self.rounds else []
        if self.counts:
            # an element is unique if exactly one bit is set in all fields together
            alone = "c == one" if self.merges else f"without_lowest_bit({counters.combined}) == nothing"
            lines += [f"alone = {alone}", *counters.count("moved"), *counters.count("unique", "alone")]
        if self.merges:
            form = self.loop.out
            lines.append(f"tau = {COMBINATIONS[self.merges].format(real=form.real_code)}")
            lines += ["tau = scale * total if c == one else tau"] if self.rescales else []
            lines += ["result = b if c == zero else b + tau", f"peak = {form.peak}(peak, result)"]
            lines.append(f"value{part} = result")
        return lines + (counters.survey(self.loop, self.loop.out.name, "result") if self.rounds else [])


@cache
def _ram_kernel(task: _RamLoop) -> Kernel:
    loop, form = task.loop, task.loop.out
    numbers = [form.real_code] * (len(task.agents) + task.epsilons)
    arguments = (*loop.codes, *numbers, f"{form.word_code}[]", "i64[]", "i64[]")
    return native.load(task.name, task.source(), arguments, form.bits_code)


def count(loop: Loop, inputs: Sequence[Words], epsilons: Sequence[float], counts: Counts) -> bool:
    """Add the moved and the unique elements of each agent to `counts` (equations 1 and 2).

    Args:
        loop: formats of the inputs.
        inputs: base and N agents, 1-D arrays of words in these formats, of equal length.
        epsilons: a threshold for each agent, or one for all: an element has moved if |agent - base| > epsilon, compared
            in the loop's real type.
        counts: int64, shape (2, N): elements that the agent moved, elements that only this agent moved.

    Returns:
        True if a task vector holds NaN or Inf: an input is not finite, or the difference overflows.
    """
    n, loop = len(inputs) - 1, Loop(loop.inputs, loop.inputs[0])
    kernel = _ram_kernel(_RamLoop(loop, len(epsilons), counts=True))
    peak = kernel(*inputs, *[1.0] * n, *epsilons, np.empty(0, loop.out.word), counts, counts)
    return bool(peak >= loop.out.infinity)


def merge(
    loop: Loop,
    inputs: Sequence[Words],
    epsilons: Sequence[float],
    lambdas: Sequence[float] | None,
    out: Words,
    counts: Counts | None = None,
    allow_nonfinite: bool = False,
    rounding: Counts | None = None,
    combination: str = "mean",
) -> bool:
    """Write the merged elements to `out` (equation 7).

    Args:
        loop: formats of the inputs and of `out`.
        inputs: base and N agents, 1-D arrays of words in these formats, of equal length.
        epsilons: thresholds, as for `count`.
        lambdas: N factors of unique elements, rounded here to the real type; None for plain RAM.
        out: array for the result, of the inputs' length.
        counts: if given, added to as in `count`.
        allow_nonfinite: compute with NaN and Inf; a NaN does not count as moved.
        rounding: int64, shape (2, N): counts of updates that rounding erases (`kernels.rounding`), added to; only for
            a 16-bit result.
        combination: how to combine elements that several agents moved, a key of `COMBINATIONS`.

    Returns:
        True if a result is not finite, because an input is not or the result overflows the format; with
            `allow_nonfinite`, also if a difference overflows.
    """
    n = len(inputs) - 1
    does = (combination, lambdas is not None, counts is not None, rounding is not None, allow_nonfinite)
    kernel = _ram_kernel(_RamLoop(loop, len(epsilons), *does))
    scales = lambdas if lambdas is not None else [1.0] * n
    nowhere = np.empty(2 * n, np.int64)
    peak = kernel(
        *inputs,
        *scales,
        *epsilons,
        out,
        counts.reshape(-1) if counts is not None else nowhere,
        rounding.reshape(-1) if rounding is not None else nowhere,
    )
    return bool(peak >= loop.out.overflow)
