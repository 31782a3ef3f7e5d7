"""What is warned of once values have been read; a strict plan is refused for it, before its output appears."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ramerge.engine.suspect import suspicions
from ramerge.engine.worker import Known
from ramerge.errors import WeightsError
from ramerge.planning.model import Plan, Point


def inspected(plan: Plan) -> Plan:
    """The plan with warnings of what a sample of the weights shows.

    Raises:
        WeightsError: the plan is strict, and there are some.
        CheckpointError: an input cannot be read.
    """
    found = suspicions(plan)
    refuse(plan, found)
    return replace(plan, warnings=(*plan.warnings, *found))


def warnings_of(plan: Plan, _point: Point, _known: Known) -> tuple[str, ...]:
    """All warnings of a point: the plan's, and those that its counts give."""
    return plan.warnings


def refuse(plan: Plan, warnings: Iterable[str]) -> None:
    """Make an error of warnings if the plan is strict.

    Raises:
        WeightsError: the plan is strict, and there are some.
    """
    problems = dict.fromkeys(warnings)
    if plan.strict and problems:
        raise WeightsError(problems)
