"""The sum of the task vectors, which no element leaves by more than the agents themselves."""

from __future__ import annotations

from typing import Annotated

from ramerge.sdk.methods import ZERO, PerAgent, Range, merge_method


@merge_method(
    "clipped_sum",
    source="an example",
    formula="sum_t w_t tau_t, at most limit * max_t |tau_t| long",
    interface=1,
)
def clipped_sum(
    base: float,
    taus: tuple[float, ...],
    *,
    weights: Annotated[PerAgent, "factor of each agent"] = 1.0,
    limit: Annotated[float, Range(0, 10), "how many times as long as the largest update a sum may be"] = 1.5,
) -> float:
    """The sum of the task vectors, clipped element by element."""
    total, largest = ZERO, ZERO
    for t in range(len(taus)):
        total = total + weights[t] * taus[t]
        largest = max(largest, abs(taus[t]))
    bound = limit * largest
    return base + min(max(total, -bound), bound)
