"""The number of input rows to record for an expert: all experts of a layer share a budget."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ramerge.core.formats.recorded import expert_of

_EXPERT_NUMBER = re.compile(r"\.experts\.(\d+)\.")
_LAYERS = 16
"""The budget of all experts of a layer, in multiples of the rows of a layer that every token passes through."""


def number_of(name: str) -> int | None:
    """Return an expert's number in its layer, from the name of one of its weights; None for other weights."""
    if (expert := expert_of(name)) is not None:
        return expert[1]
    match = _EXPERT_NUMBER.search(name)
    return int(match[1]) if match else None


def rows_per_expert(rows: int, names: Iterable[str]) -> int:
    """Return the most input rows to record for each expert, at least one.

    Example:
        >>> from ramerge.calibration.experts import rows_per_expert
        >>> rows_per_expert(256, [f"model.layers.0.mlp.experts.{number}.up_proj.weight" for number in range(128)])
        32
    """
    experts = 1 + max((number for name in names if (number := number_of(name)) is not None), default=0)
    return min(rows, max(_LAYERS * rows // experts, 1))
