"""The reads of the inputs before the merging pass, and the statistics that each of them counts."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from ramerge.core.methods.base import Statistic
from ramerge.core.planning.model import MergePlan, PlannedCounts, TensorPlan
from ramerge.core.recipe.points import Point


def rounds(
    tensors: Sequence[TensorPlan], points: Sequence[Point], cached_results: Container[tuple[Statistic, str]] = ()
) -> tuple[dict[int, tuple[Statistic, ...]], ...]:
    """For each read, the statistics to count, by the tensor's index. Statistics of several points are counted once.

    Results in `cached_results`, by statistic and part of the model, are not counted again.
    """
    required_statistics = {
        rule: list(
            dict.fromkeys(each for point in points for last in point.statistics(rule) for each in _counting_order(last))
        )
        for rule in {tensor.rule for tensor in tensors if tensor.merged}
    }
    reads = max((statistic.reads for statistics in required_statistics.values() for statistic in statistics), default=0)
    result = []
    for read in range(1, reads + 1):
        due = {
            rule: [statistic for statistic in statistics if statistic.reads == read]
            for rule, statistics in required_statistics.items()
        }
        statistics_by_tensor = {
            index: tuple(
                statistic
                for statistic in due[tensor.rule]
                if (statistic, tensor.part(statistic.scope)) not in cached_results
            )
            for index, tensor in enumerate(tensors)
            if tensor.merged
        }
        result.append({index: statistics for index, statistics in statistics_by_tensor.items() if statistics})
    return tuple(read for read in result if read)


def without_cache(plan: MergePlan) -> MergePlan:
    """The plan without cached counts: it counts everything again."""
    return replace(plan, counts=PlannedCounts(rounds(plan.tensors, plan.points)))


def _counting_order(statistic: Statistic) -> Iterator[Statistic]:
    if statistic.after is not None:
        yield from _counting_order(statistic.after)
    yield statistic
