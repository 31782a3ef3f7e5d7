"""Requirements that kinds of output declare: functions that return why a merge does not meet the requirement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramerge.core.foundation.text import enumerated
from ramerge.core.planning.inputs import OpenedInputs
from ramerge.core.recipe.points import Point


@dataclass(frozen=True)
class RequestedMerge:
    """A merge to check for a kind of output: its points, its opened models, and whether it stays in memory."""

    points: Sequence[Point]
    inputs: OpenedInputs
    in_memory: bool

    @property
    def base(self) -> str:
        """The base's location, for messages."""
        return self.inputs.base.location


Requirement = Callable[[RequestedMerge], str]
"""A function that returns why a merge cannot be written as a kind of output; empty if it can."""


def one_merge(merge: RequestedMerge) -> str:
    """Require a single merge into a folder."""
    several = merge.in_memory or merge.points[0].name
    return "works for a single merge into a folder, not for sweeps or merges in memory" if several else ""


def named_base(merge: RequestedMerge) -> str:
    """Require a base in the recipe."""
    hint = "there is no base; name the model that the output is for (--base MODEL, or base in a recipe)"
    return "" if merge.inputs.has_base else hint


def one_folder(merge: RequestedMerge) -> str:
    """Require a base that is one folder, without adapters or deltas on it."""
    if not merge.inputs.base.adapters:
        return ""
    return (
        f"{merge.base} has adapters or deltas on it, but the output can name only one model as its base; "
        f"{_conversion_advice(merge)}"
    )


def _conversion_advice(merge: RequestedMerge) -> str:
    return f"write it as one model first, and name that: `ramerge convert {merge.base} BASE`, then --base BASE"


def whole_base(merge: RequestedMerge) -> str:
    """Require a base that is a whole model, not a delta."""
    base = merge.inputs.opened_base
    is_delta = base is not None and bool(base.lineage)
    return f"{merge.base} is made of deltas; {_conversion_advice(merge)}" if is_delta else ""


def exact_base(merge: RequestedMerge) -> str:
    """Require a base that is not quantized."""
    base = merge.inputs.opened_base
    is_quantized = base is not None and base.quantized is not None
    return f"{merge.base} is quantized; name the model that it was made from" if is_quantized else ""


def tied_as_base(merge: RequestedMerge) -> str:
    """Require that agents keep embeddings tied if the base ties them."""
    if not (names := merge.inputs.untied_by):
        return ""
    return (
        f"{enumerated(names)} changed the tied embeddings of {merge.base} in different ways, which this output cannot "
        "store; write the model instead"
    )
