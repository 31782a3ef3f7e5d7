"""The table of suites: names, and where their classes are, which are imported when they run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ramerge.evaluation.suite import Suite

SUITES = {
    "tool": ("ramerge.evaluation.suites.tool.suite", "ToolSuite"),
    "memory": ("ramerge.evaluation.suites.memory.suite", "MemorySuite"),
    "coding": ("ramerge.evaluation.suites.coding.suite", "CodingSuite"),
    "instruct": ("ramerge.evaluation.suites.instruct", "InstructSuite"),
    "math": ("ramerge.evaluation.suites.math", "MathSuite"),
    "search": ("ramerge.evaluation.suites.search", "SearchSuite"),
    "rewards": ("ramerge.evaluation.suites.rewards", "RewardsSuite"),
}


def suite_type(name: str) -> type[Suite[Any]]:
    """The class of a suite in the table."""
    module, attribute = SUITES[name]
    found: type[Suite[Any]] = getattr(import_module(module), attribute)
    return found
