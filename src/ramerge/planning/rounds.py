"""Reads of the inputs before the merging pass, and what is counted in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ramerge.methods.base import Statistic
from ramerge.planning.model import Point, TensorPlan


def rounds(tensors: Sequence[TensorPlan], points: Sequence[Point]) -> list[dict[int, tuple[Statistic, ...]]]:
    """For each read what is counted of the tensors, by their places. What several points need is counted once."""
    wanted = {rule: _wanted(points, rule) for rule in {tensor.rule for tensor in tensors if tensor.merged}}
    reads = max((statistic.reads for statistics in wanted.values() for statistic in statistics), default=0)
    found = []
    for read in range(1, reads + 1):
        due = {rule: tuple(one for one in statistics if one.reads == read) for rule, statistics in wanted.items()}
        found.append(
            {place: due[tensor.rule] for place, tensor in enumerate(tensors) if tensor.merged and due[tensor.rule]}
        )
    return found


def _wanted(points: Sequence[Point], rule: int) -> list[Statistic]:
    """All statistics of a rule's tensors with those that they come after, each once."""
    chains = (chain for point in points for statistic in point.statistics(rule) for chain in _chain(statistic))
    return list(dict.fromkeys(chains))


def _chain(statistic: Statistic) -> Iterator[Statistic]:
    if statistic.after is not None:
        yield from _chain(statistic.after)
    yield statistic
