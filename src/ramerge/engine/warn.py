"""Warnings about values. They are errors of a strict plan, before its output appears."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ramerge.engine.suspect import suspicions
from ramerge.foundation.errors import WeightsError
from ramerge.methods.base import Counts
from ramerge.planning.model import Plan

# If a larger share of an agent's updates than this is lost, the user is warned.
_MUCH = 0.1


def inspect(plan: Plan) -> tuple[str, ...]:
    """Warnings from a sample of the weights.

    Raises:
        WeightsError: the plan is strict, and there are warnings.
        CheckpointError: an input cannot be read.
    """
    found = tuple(suspicions(plan))
    refuse(plan, found)
    return found


def erasures(rounding: Counts) -> list[dict[str, Any]]:
    """How much of each agent's updates rounding erases, for the record.

    Args:
        rounding: int64, as in `kernels.piece.no_counts`.

    Returns:
        For each agent `updates` and `erased`, in elements, and `erased_share`, erased / updates.
    """
    return [
        {"updates": updates, "erased": erased, "erased_share": erased / updates if updates else 0.0}
        for updates, erased in rounding.T.tolist()
    ]


def warnings_of(plan: Plan, seen: Sequence[str], rounding: Counts) -> tuple[str, ...]:
    """All warnings of a point.

    Args:
        plan: its own come first.
        seen: what `inspect` found.
        rounding: int64: counts of rounding, likewise; if they are not counted, the forecast from headers is used.
    """
    return (*plan.warnings, *seen, *(_erased(plan, rounding) if plan.rounds_updates else plan.forecast))


def _erased(plan: Plan, rounding: Counts) -> list[str]:
    """Warnings if rounding to the output's dtype erases much of an agent, or rounds tensors taken from an agent."""
    found = []
    shares = {name: lost["erased_share"] for name, lost in zip(plan.agents, erasures(rounding), strict=True)}
    much = [f"{share:.0%} of {name}" for name, share in shares.items() if share > _MUCH]
    keep = f"the line `dtype: {plan.exact_dtype}` in the recipe, or the flag `--dtype {plan.exact_dtype}`, keeps it"
    dtype = "the output's dtypes" if plan.dtype == "mixed" else plan.dtype
    if much:
        found.append(f"rounding to {dtype} erases much of what {plan.method.name} changes: {', '.join(much)}; {keep}")
    if copies := plan.narrowed_copies:
        what = f"{len(copies):,} tensor{'s' if len(copies) > 1 else ''} that rules take from agents"
        found.append(f"{what} are rounded to {dtype}, and what that erases is not counted; {keep}")
    return found


def refuse(plan: Plan, warnings: Iterable[str]) -> None:
    """Make an error of warnings if the plan is strict.

    Raises:
        WeightsError: the plan is strict, and there are warnings.
    """
    problems = dict.fromkeys(warnings)
    if plan.strict and problems:
        raise WeightsError(problems)
