"""Measures on a sample what rounding does to an agent's update.

A tensor is divided into chunks of 4,096 elements. Chunk j is in the sample if j * 2654435769 mod 2^32 < 2^22: one chunk
in 1,024, evenly spread, and always the first chunk. The sample depends on nothing else. A chunk takes about 0.1 ms,
mostly for calls, so more chunks would cost more than they add.

Let r be the unrounded result, s the stored result, b the base, and b' the base as it would be stored (b itself if the
output has the base's dtype). For each agent t with its task vector tau_t, over elements of the sample:

    an update grew      if t moved the element, r is not b, and |s - b'| > |r - b|
    nominal lambda      sum of sign(tau_t) * (r - b) over sum of |tau_t|, over elements that only t moved
    effective lambda    sum of sign(tau_t) * (s - b') over sum of |tau_t|, over the same elements
    effective error     root of sum of ((s - b') - (r - b))^2 over sum of |tau_t|: the effective lambda's standard
                        error if rounding errors are random; large if few elements moved, or all by little

    Each number is added up as two integers, so that the order of additions does not matter: multiples of 2^-17, and the
    remainder in multiples of 2^-65. Smaller remainders are cut off, and elements with a number above 2^30 are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import FORMATS
from ramerge.core.kernels.native import Kernel

CHUNK = 1 << 12

# Counts over the sample, by agent: updates, updates that grew, and elements that only this agent moved.
COUNTS = ("sampled", "grown", "alone")
# Sums over elements that only this agent moved: |tau|, the signed changes in the result and in the stored result, and
# the square of their difference.
SUMS = ("size", "nominal", "effective", "missed")
# A sum is two integers, and each is added up in two halves of 32 bits.
_PARTS, _COARSE, _FINE = 4, 17, 65
ROWS = len(COUNTS) + len(SUMS) * _PARTS


def sample_ranges(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges within elements `start:stop` of a tensor that are in the sample, none longer than a chunk."""
    for chunk in range(start // CHUNK, -(-stop // CHUNK)):
        if chunk * 2654435769 % 2**32 < 2**22:
            yield max(start, chunk * CHUNK), min(stop, (chunk + 1) * CHUNK)


def measure(
    format: str,
    base: NDArray[Any],
    stored_base: NDArray[Any],
    agents: Sequence[NDArray[Any]],
    result: NDArray[Any],
    stored_result: NDArray[Any],
    beyond: Sequence[float],
    counts: NDArray[np.int64],
) -> None:
    """Add a range of the sample, of at most `CHUNK` elements, to counts of shape (ROWS, N).

    All arrays are 1-D with the same length, in `format`: F32 (float32) or F64 (float64). `stored_base` is the base as
    it would be stored, `result` the merge before rounding, and `stored_result` the merge after rounding. `beyond` has a
    threshold for each agent, or one for all: an agent has moved an element if |agent - base| > beyond.
    """
    limits = np.resize(np.array(beyond, base.dtype), len(agents))
    _effect_kernel(format)(base, stored_base, np.concatenate(agents), result, stored_result, limits, counts.reshape(-1))


def figures(counts: NDArray[np.int64]) -> list[dict[str, int | float | None]]:
    """Return figures of each agent's updates in the sample, from counts of shape (ROWS, N).

    `sampled`: updates in the sample; `grown_share`: the share of these that grew; `alone`: elements that only the agent
    moved; `nominal_lambda`, `effective_lambda` and `effective_error`: None if `alone` is 0.
    """
    rows: list[dict[str, int | float | None]] = []
    for column in counts.T.tolist():
        updates, growths, alone = column[: len(COUNTS)]
        parts = (column[first : first + _PARTS] for first in range(len(COUNTS), ROWS, _PARTS))
        size, nominal, effective, residue = (  # exact, in multiples of 2^-65
            ((low + (high << 32)) << (_FINE - _COARSE)) + fine_low + (fine_high << 32)
            for low, high, fine_low, fine_high in parts
        )
        rows.append(
            {
                "sampled": updates,
                "grown_share": growths / updates if updates else 0.0,
                "alone": alone,
                "nominal_lambda": nominal / size if size else None,
                "effective_lambda": effective / size if size else None,
                "effective_error": math.sqrt(math.ldexp(residue, _FINE)) / size if size else None,
            }
        )
    return rows


# The sample is small, so one loop serves any number of agents: it costs less than compiling one for each.
_SOURCE = """
def measure(base, base_stored, agents, result, stored, beyond, counts):
    size, n = np.uint64(base.size), np.uint64(beyond.size)
    for i in range(size):
        b, r = base[i], result[i]
        tau, movers, mover = {real}(0), np.uint64(0), np.uint64(0)
        for t in range(n):
            moved = agents[t * size + i] - b
            if abs(moved) > beyond[t]:
                tau, movers, mover = tau + moved, movers + np.uint64(1), t
        length = abs(np.float64(tau))
        nominal, effective = np.float64(r) - np.float64(b), np.float64(stored[i]) - np.float64(base_stored[i])
        missed = (effective - nominal) * (effective - nominal)
        if not (length <= LIMIT and abs(nominal) <= LIMIT and abs(effective) <= LIMIT and missed <= LIMIT):
            continue
        if r != b:
            for t in range(n):
                if abs(agents[t * size + i] - b) > beyond[t]:
                    counts[t] += 1
                    counts[n + t] += 1 if abs(effective) > abs(nominal) else 0
        if movers == np.uint64(1):
            place = np.uint64(2) * n + mover
            counts[place] += 1
            for k in range(np.uint64(4)):
                share = nominal if k == np.uint64(1) else effective
                share = share if tau > 0 else -share
                share = length if k == np.uint64(0) else missed if k == np.uint64(3) else share
                coarse = np.int64(share * COARSE)
                fine = np.int64((share - np.float64(coarse) / COARSE) * FINE)
                counts[place + n] += coarse & np.int64(0xFFFFFFFF)
                place += n + n
                counts[place] += coarse >> np.int64(32)
                counts[place + n] += fine & np.int64(0xFFFFFFFF)
                place += n + n
                counts[place] += fine >> np.int64(32)
    return np.uint32(0)
"""


@cache
def _effect_kernel(format: str) -> Kernel:
    form = FORMATS[format]
    source = _SOURCE.format(real=form.real_name)
    for name, exponent in (("LIMIT", 30), ("COARSE", _COARSE), ("FINE", _FINE)):
        source = source.replace(name, str(math.ldexp(1, exponent)))
    return native.load("measure", source, (*[f"{form.real_code}[]"] * 6, "i64[]"), "u32")
