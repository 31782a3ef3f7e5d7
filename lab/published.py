"""Published tables: merges of RL-trained agents, measured by others.

Rows of one source can be compared, sources cannot: benchmarks, agents and settings differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Publication:
    """A published table.

    Attributes:
        source: where it stands.
        agents: how many, and of which base.
        averages: over the source's tasks, by method.
    """

    source: str
    agents: str
    averages: Mapping[str, float]


SUM = "Task Arithmetic"
TABLES = (
    Publication(
        "RAM paper (arXiv 2601.13572), tables 1, 10 and 12",
        "three, Qwen2.5-7B",
        {"RAM+": 66.6, "RAM": 64.8, "DARE": 63.3, "WUDI": 62.4, "TIES": 60.0, SUM: 58.3, "Fisher": 52.2},
    ),
    Publication(
        "PSA (minsik-choi126/PSA at 8b19ded)",
        "the three of the RAM paper",
        {"PSA": 68.6, "TIES": 66.5, "TSV-M": 66.5, "RAM+": 66.4, SUM: 63.4, "Iso-CTS": 62.5},
    ),
    Publication(
        "BACAM (shuaitongli/BACAM at 599ba2c)",
        "four, Qwen2.5-7B",
        {"WUDI": 41.1, "TSV-M": 39.7, SUM: 35.9, "RAM": 33.2, "Iso-C": 32.9, "TIES": 32.8},
    ),
    Publication(
        "ResMerge (arXiv 2606.02252)",
        "7B",
        {"ResMerge": 41.1, "Iso-C": 38.9, SUM: 38.7, "TSV-M": 36.1, "RAM": 32.7},
    ),
    Publication("the same", "4B", {"ResMerge": 47.3, SUM: 45.5, "TSV-M": 45.5, "RAM": 42.2}),
    Publication(
        "M2RL (mosAI25/M2RL at 0676e83)",
        "four, Qwen3-4B",
        {"TIES": 59.4, "SCE": 59.0, "DARE": 58.9, SUM: 57.9, "average": 55.9},
    ),
    Publication(
        "No Task Vector Is an Island",
        "five, Qwen3-4B",
        {"TIES": 55.4, SUM: 54.8, "TSV-M": 53.2, "Task Arithmetic, scaled": 50.8},
    ),
)


def ahead_of_sum(*methods: str) -> tuple[int, int]:
    """In how many tables one of some methods is ahead of the sum, and how many have both."""
    both = [one.averages for one in TABLES if one.averages.keys() & set(methods)]
    return sum(max(scores.get(name, 0.0) for name in methods) > scores[SUM] for scores in both), len(both)
