"""Counting and merging for Reinforced Agent Merging (arXiv 2601.13572, equations 1, 2 and 7).

One loop reads every input once and keeps everything else in registers. The number of agents, the formats and what the
loop has to do are fixed when it is compiled, because a loop over agents inside the loop over elements is five times
slower. So the source of each kernel is written out from the template below, one line an agent; `native` compiles it on
first use and keeps it.

Sums run over the agents in order, nothing is contracted or reassociated: the results are those of NumPy, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import native
from ramerge.kernels.formats import Loop
from ramerge.kernels.rounding import CHUNK_WORDS, ROWS, Counters, names_of

Words = NDArray[Any]
Counts = NDArray[np.int64]

_TEMPLATE = """
def {name}(base, {agents}, {lambdas}, {epsilons}, out, counts, rounding):
    nothing, one, zero, peak = np.uint32(0), np.{real}(1), np.{real}(0), np.{bits}(0)
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

# What happens to one element. `b` is the base, `tau` a task vector, `c` the number of agents that moved the element.
# `active` holds one bit for each agent that moved it, in that agent's field.
_ELEMENT = """
            b = {base}
            total, scale, c = zero, one, zero
            {clear_extremes}
            {clear_active}
            {each_agent}
            {count}
            {merge}
            {survey}
"""

_AGENT = """
            tau = {agent} - b
            {peak_of_tau}
            moved = {moved}
            total = total + tau if moved else total
            c = c + one if moved else c
            {extremes}
            {scale}
            {mark_active}
"""

# What several agents moved becomes, from the sum of their task vectors and their number. One that a single agent moved
# stays as it is in all of them. `high` and `low` are the extremes of the movers and 0, so where all agree in sign, one
# of them is 0. A NaN is in `total`, but not in the extremes.
SHARED = {
    "mean": "total / c",
    "agree_max": "total / c if (low < zero and high > zero) or total != total else low + high",
    "sum": "total",
    "rms": "total / {root}(c)",
}

_MERGE = """
            tau = {shared}
            {rescale}
            result = b if c == zero else b + tau
            peak = {peak}(peak, result)
            value{part} = result
"""

_EXTREMES = ("high = tau if moved and tau > high else high", "low = tau if moved and tau < low else low")


@cache
def _kernel(
    loop: Loop, epsilons: int, *, merges: str, rescales: bool, counts: bool, rounds: bool, allow_nonfinite: bool
) -> Any:
    """Write out and compile the loop for a base and agents.

    epsilons: their number, 1 if all agents have the same. merges: a key of `SHARED`, to store the merged elements (if
    empty, only count). rescales: unique elements times lambda. counts: count active and unique elements. rounds: count
    what storing them in the format erases. lenient: NaN counts as not moved, as IEEE comparison has it; otherwise a NaN
    counts as moved, so that it reaches `peak`, which is how non-finite values are noticed at no cost. Where a NaN does
    not reach the result, `peak` is of task vectors too.
    """
    n, form = len(loop.inputs) - 1, loop.out
    counters = Counters(n)
    marks = counts or rounds
    thresholds = names_of("epsilon", epsilons, n)
    shared = SHARED[merges].format(root=form.root) if merges else ""
    combined = "active0"
    for p in counters.pairs[1:]:
        combined = f"or32(double32({combined}), active{p})"

    def join(parts: Sequence[str], indent: int) -> str:
        return ("\n" + " " * indent).join(parts)

    def element(part: int) -> str:
        agents = [
            _AGENT.format(
                agent=loop.element(1 + t, part, f"a{t}[i]"),
                peak_of_tau="" if merges and not allow_nonfinite else f"peak = {form.peak}(peak, tau)",
                moved=f"abs(tau) > {thresholds[t]}"
                if allow_nonfinite or not merges
                else f"not (abs(tau) <= {thresholds[t]})",
                extremes=join(_EXTREMES, 12) if merges == "agree_max" else "",
                scale=f"scale = lambda{t} if moved else scale" if rescales else "",
                mark_active=counters.mark(t, "moved") if marks else "",
            )
            for t in range(n)
        ]
        # an element is unique if exactly one bit is set in all fields together
        alone = "alone = c == one" if merges else f"alone = without_lowest_bit({combined}) == nothing"
        count = [alone, *counters.count("moved"), *counters.count("unique", "alone")]
        rescale = "tau = scale * total if c == one else tau" if rescales else ""
        return _ELEMENT.format(
            base=loop.element(0, part, "base[i]"),
            clear_extremes="high, low = zero, zero" if merges == "agree_max" else "",
            clear_active=join(counters.clear(["active"]), 12) if marks else "",
            each_agent="".join(agents),
            count=join(count, 12) if counts else "",
            merge=_MERGE.format(part=part, shared=shared, rescale=rescale, peak=form.peak) if merges else "",
            survey=join(counters.survey(loop, form.name, "result"), 12) if rounds else "",
        )

    values = ", ".join(f"value{part}" for part in loop.parts)
    counted = {"counts": ("moved", "unique") if counts else (), "rounding": ROWS if rounds else ()}
    rule = f"merge_{merges}".removesuffix("_mean")
    tasks = ((rule, merges), ("rescale", rescales), ("count", counts), ("survey", rounds))
    task = "_".join(word for word, wanted in tasks if wanted)
    name = f"{task}_{loop.name}_{n}" + ("_lenient" if allow_nonfinite else "")
    source = _TEMPLATE.format(
        name=name,
        real=form.real.__name__,
        bits=form.bits,
        chunk=CHUNK_WORDS,
        agents=", ".join(f"a{t}" for t in range(n)),
        lambdas=", ".join(f"lambda{t}" for t in range(n)),
        epsilons=", ".join(thresholds[:epsilons]),
        reset=join([line for totals in counted.values() for line in counters.clear(totals)], 8),
        elements="".join(map(element, loop.parts)),
        store=f"out[i] = {form.pack}({values})" if merges else "",
        flush=join([line for array, totals in counted.items() for line in counters.flush(array, totals)], 8),
    )
    inputs = [f"{each.word_code}[]" for each in loop.inputs]
    arguments = (*inputs, *[form.real_code] * (n + epsilons), f"{form.word_code}[]", "i64[]", "i64[]")
    return native.load(name, "\n".join(line for line in source.splitlines() if line.strip()), arguments, form.bits_code)


def count(loop: Loop, inputs: Sequence[Words], epsilons: Sequence[float], counts: Counts) -> bool:
    """Add to `counts` how many elements each agent moved, and how many only it moved (equations 1 and 2).

    Args:
        loop: formats of the inputs.
        inputs: base and N agents, 1-D arrays of these formats' words, of equal length.
        epsilons: one for each agent, or only one: an element has moved where |agent - base| > epsilon, compared in the
            loop's real type.
        counts: int64 array of shape (2, N): elements moved, elements that only this agent moved.

    Returns:
        True if a task vector holds NaN or Inf: an input is not finite, or the difference overflows.
    """
    n, loop = len(inputs) - 1, Loop(loop.inputs, loop.inputs[0])
    kernel = _kernel(loop, len(epsilons), merges="", rescales=False, counts=True, rounds=False, allow_nonfinite=False)
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
    shared: str = "mean",
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
        shared: what becomes of elements that several agents moved, a key of `SHARED`.

    Returns:
        True if a result is not finite: an input is not, or a finite result overflows the format; if lenient,
        also if a difference overflows.
    """
    n = len(inputs) - 1
    kernel = _kernel(
        loop,
        len(epsilons),
        merges=shared,
        rescales=lambdas is not None,
        counts=counts is not None,
        rounds=rounding is not None,
        allow_nonfinite=allow_nonfinite,
    )
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
