"""Counting and merging for Reinforced Agent Merging (arXiv 2601.13572, equations 1, 2 and 7).

One loop reads every input once and keeps everything else in registers. The number of agents, the formats and what the
loop has to do are fixed when it is compiled, because a loop over agents inside the loop over elements is five times
slower. So the source of each kernel is written out from the template below, one line an agent; `native` compiles it on
first use and keeps it.

Sums run over the agents in order, nothing is contracted or reassociated: the results are those of NumPy, bit for bit.
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

# What several agents moved becomes, from the sum of their task vectors and their number. One that a single agent moved
# stays as it is in all of them. `high` and `low` are the extremes of the movers and 0, so where all agree in sign, one
# of them is 0. A NaN is in `total`, but not in the extremes.
COMBINATIONS = {
    "mean": "total / c",
    "agree_max": "total / c if (low < zero and high > zero) or total != total else low + high",
    "sum": "total",
    "rms": "total / root_{real}(c)",
}


@dataclass(frozen=True)
class _RamLoop:
    """Kind of a loop over a base and agents.

    Attributes:
        epsilons: their number, 1 if all agents have the same.
        merges: a key of `SHARED`, to store the merged elements; if empty, only count.
        rescales: unique elements times lambda.
        rounds: whether to count the updates that storing them in the format erases.
        allow_nonfinite: NaN counts as not moved, as IEEE comparison has it; otherwise a NaN counts as moved, so that it
            reaches `peak`, which is how non-finite values are noticed at no cost. Where a NaN does not reach the
            result, `peak` is of task vectors too.
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
        return f"{task}_{self.loop.name}_{len(self.agents)}" + ("_nonfinite" if self.allow_nonfinite else "")

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
        """One element: `b` is the base, `tau` a task vector, `c` the number of agents that moved it.

        `active` holds one bit for each agent that moved it, in that agent's field.
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
    """Add to `counts` the moved and the unique elements of each agent (equations 1 and 2).

    Args:
        epsilons: one for each agent, or only one: an element has moved where |agent - base| > epsilon, compared in the
            loop's real type.
        counts: int64 array of shape (2, N): elements moved, elements that only this agent moved.

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
        inputs: base and N agents, 1-D arrays of these formats' words, of equal length.
        epsilons: the thresholds of `count`.
        lambdas: N scales of the unique elements, rounded here to the real type; None for plain RAM.
        out: words, of the inputs' length.
        counts: filled as by `count` where given.
        allow_nonfinite: take NaN and Inf as they come: a NaN is no update.
        rounding: int64, shape (2, N), for a result of 16 bits: where to count what storing it erases, as
            `kernels.rounding` has it.
        combination: the treatment of elements that several agents moved, a key of `SHARED`.

    Returns:
        True if a result is not finite: an input is not, or a finite result overflows the format; if `allow_nonfinite`,
        also if a difference overflows.
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
