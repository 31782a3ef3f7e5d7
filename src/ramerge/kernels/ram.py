"""Counting and merging for Reinforced Agent Merging (arXiv 2601.13572, equations 1, 2 and 7).

One loop reads every input once and keeps everything else in registers. The number of agents, the format and what the
loop has to do are fixed when it is compiled, because a loop over agents inside the loop over elements is five times
slower. So the source of each kernel is written out from the template below, one line an agent, compiled on first use
and kept in numba's cache on disk.

Sums run over the agents in order, nothing is contracted or reassociated: the results are those of NumPy, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ramerge.kernels import formats
from ramerge.kernels.formats import FORMATS, Format

Words = NDArray[Any]
Counts = NDArray[np.int64]

# Counters are 16-bit fields, two to a register: a chunk must not hold more than 65,535 elements.
_CHUNK_WORDS = 1 << 14

_TEMPLATE = """
def {name}(base, {agents}, {lambdas}, epsilon, out, counts):
    nothing, one, zero, peak = np.uint32(0), real(1), real(0), base.dtype.type(0)
    field0, field1 = np.uint32(1), np.uint32(1 << 16)
    for start in range(0, base.size, CHUNK):
        stop = min(start + CHUNK, base.size)
        {reset_counts}
        for i in range(np.uint64(start), np.uint64(stop)):
            word = base[i]
            {lanes}
            {store}
        {flush_counts}
    return peak
"""

# What happens to one element. `b` is the base, `tau` a task vector, `c` the number of agents that moved the element.
# `active` holds one bit for each agent that moved it, in that agent's field.
_LANE = """
            b = {lane}(word)
            total, scale, c = zero, one, zero
            {clear_active}
            {each_agent}
            {count}
            {merge}
"""

_AGENT = """
            tau = {lane}(a{t}[i]) - b
            {peak_of_tau}
            moved = {moved}
            total = total + tau if moved else total
            c = c + one if moved else c
            {scale}
            {mark_active}
"""

_MERGE = """
            tau = total / c
            {rescale}
            result = b if c == zero else b + tau
            peak = peak_of(peak, result)
            value_{lane} = result
"""


def _compile(source: str, name: str, format: Format) -> Any:
    lines = [line for line in source.splitlines() if line.strip()]
    scope: dict[str, Any] = {
        "__name__": __name__,
        **{lane.__name__: lane for lane in format.lanes},
        "np": np,
        "real": format.real,
        "pack": format.pack,
        "peak_of": format.peak,
        "add32": formats.add32,
        "or32": formats.or32,
        "double32": formats.double32,
        "without_lowest_bit": formats.without_lowest_bit,
        "CHUNK": _CHUNK_WORDS,
    }
    # This file's name makes numba keep the compiled code in its cache, and drop it when this file changes.
    exec(compile("\n".join(lines), __file__, "exec"), scope)  # noqa: S102
    return njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)(scope[name])


@cache
def _kernel(format: Format, n: int, *, merges: bool, rescales: bool, counts: bool, lenient: bool) -> Any:
    """Write out and compile the loop for `n` agents.

    merges: store the merged elements (else only count). rescales: unique elements times lambda. counts: count active
    and unique elements. lenient: NaN counts as not moved, as IEEE comparison has it; otherwise a NaN counts as moved,
    so that it reaches `peak`, which is how non-finite values are noticed at no cost.
    """
    pairs = range((n + 1) // 2)
    combined = "active0"
    for p in pairs[1:]:
        combined = f"or32(double32({combined}), active{p})"

    def join(parts: Sequence[str], indent: int) -> str:
        return ("\n" + " " * indent).join(parts)

    def lane_source(lane: Any) -> str:
        name = lane.__name__
        agents = [
            _AGENT.format(
                lane=name,
                t=t,
                peak_of_tau="" if merges else "peak = peak_of(peak, tau)",
                moved="abs(tau) > epsilon" if lenient or not merges else "not (abs(tau) <= epsilon)",
                scale=f"scale = lambda{t} if moved else scale" if rescales else "",
                mark_active=f"active{t // 2} = or32(active{t // 2}, field{t % 2}) if moved else active{t // 2}"
                if counts
                else "",
            )
            for t in range(n)
        ]
        # an element is unique if exactly one bit is set in all fields together
        count = ["alone = c == one" if merges else f"alone = without_lowest_bit({combined}) == nothing"]
        count += [f"moved{p} = add32(moved{p}, active{p})" for p in pairs]
        count += [f"unique{p} = add32(unique{p}, active{p}) if alone else unique{p}" for p in pairs]
        rescale = "tau = scale * total if c == one else tau" if rescales else ""
        return _LANE.format(
            lane=name,
            clear_active=join([f"active{p} = nothing" for p in pairs], 12) if counts else "",
            each_agent="".join(agents),
            count=join(count, 12) if counts else "",
            merge=_MERGE.format(lane=name, rescale=rescale) if merges else "",
        )

    values = ", ".join(f"value_{lane.__name__}" for lane in format.lanes)
    flush = [
        f"counts[{row}, {t}] += ({total}{t // 2} >> {16 * (t % 2)}) & 65535"
        for row, total in enumerate(("moved", "unique"))
        for t in range(n)
    ]
    task = "_".join(word for word, wanted in (("merge", merges), ("rescale", rescales), ("count", counts)) if wanted)
    name = f"{task}_{format.name.lower()}_{n}" + ("_lenient" if lenient else "")
    source = _TEMPLATE.format(
        name=name,
        agents=", ".join(f"a{t}" for t in range(n)),
        lambdas=", ".join(f"lambda{t}" for t in range(n)),
        reset_counts=join([f"moved{p} = unique{p} = nothing" for p in pairs], 8) if counts else "",
        lanes="".join(lane_source(lane) for lane in format.lanes),
        store=f"out[i] = pack({values})" if merges else "",
        flush_counts=join(flush, 8) if counts else "",
    )
    return _compile(source, name, format)


def count(format: str, inputs: Sequence[Words], epsilon: float, counts: Counts) -> bool:
    """Add to `counts` how many elements each agent moved, and how many it alone moved (equations 1 and 2).

    Args:
        format: a key of `FORMATS`, the format of all inputs.
        inputs: base and N agents, 1-D arrays of that format's words, of equal length.
        epsilon: an element has moved where |agent - base| > epsilon, compared in the format's real type.
        counts: int64 array of shape (2, N): elements moved, elements moved by this agent alone.

    Returns:
        True if a task vector holds NaN or Inf: an input is not finite, or the difference overflows.
    """
    form, n = FORMATS[format], len(inputs) - 1
    kernel = _kernel(form, n, merges=False, rescales=False, counts=True, lenient=False)
    peak = kernel(*inputs, *[form.real(1)] * n, form.real(epsilon), inputs[0], counts)
    return bool(peak >= _infinity(form))


def merge(
    format: str,
    inputs: Sequence[Words],
    epsilon: float,
    lambdas: Sequence[float] | None,
    out: Words,
    counts: Counts | None = None,
    lenient: bool = False,
) -> bool:
    """Write the merged elements to `out` (equation 7).

    Args:
        format: a key of `FORMATS`, the format of all inputs and of `out`.
        inputs: base and N agents, 1-D arrays of that format's words, of equal length.
        epsilon: the threshold of `count`.
        lambdas: N scales of the unique elements, rounded here to the real type; None for plain RAM.
        out: words, of the inputs' length.
        counts: filled as by `count` where given.
        lenient: take NaN and Inf as they come instead of reporting them.

    Returns:
        True if a result is not finite: an input is not, or a finite result overflows the format. Never if lenient.
    """
    form, n = FORMATS[format], len(inputs) - 1
    kernel = _kernel(form, n, merges=True, rescales=lambdas is not None, counts=counts is not None, lenient=lenient)
    scales = [form.real(x) for x in lambdas] if lambdas is not None else [form.real(1)] * n
    spare = counts if counts is not None else np.empty((2, n), np.int64)
    peak = kernel(*inputs, *scales, form.real(epsilon), out, spare)
    return bool(peak >= form.overflow) and not lenient


def _infinity(form: Format) -> int:
    return 0x7F800000 if form.real is np.float32 else 0x7FF0000000000000
