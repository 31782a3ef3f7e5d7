"""Interface of plug-ins: methods, formats, and the version of the interface.

**Unstable.** Names and fields may change with every version of ramerge; `INTERFACE` changes when plug-ins must be
changed. A plug-in names the version that it is written for, and is refused by name if that is another one:

    from typing import Annotated, Any

    from ramerge.plugins import ZERO, PerAgent, merge_method


    @merge_method("my_sum", source="arXiv 2401.00000", interface=1)
    def my_sum(base: Any, taus: Any, *, weights: Annotated[PerAgent, "factor of each agent"] = 1.0) -> Any:
        \"""The weighted sum of the task vectors.\"""
        total = ZERO
        for t in range(len(taus)):
            total = total + weights[t] * taus[t]
        return base + total

It is found by its entry point, `my_sum = "my_package:my_sum"` in the group `ramerge.methods`; formats are in the group
`ramerge.formats`, and commands, which are click's, in `ramerge.commands`. `ramerge.testing` checks a method.
"""

from ramerge.core.formats.files import check_files, read_config
from ramerge.core.formats.format import Format, Opening
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.kernels.elementwise import INFINITY, ONE, ZERO
from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.methods.base import Agents, Column, Counts, Layer, Method, Parameters, Results, Statistic, Work
from ramerge.core.methods.define import ChosenAgent, PerAgent, Range, merge_method
from ramerge.core.registry import INTERFACE
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.tensor import Origin, Stored, Tensor

__all__ = [
    "INFINITY",
    "INTERFACE",
    "ONE",
    "ZERO",
    "Agents",
    "CheckpointError",
    "ChosenAgent",
    "Column",
    "Contents",
    "Counts",
    "Format",
    "Layer",
    "Location",
    "Method",
    "Opening",
    "Origin",
    "Parameters",
    "PerAgent",
    "Piece",
    "PieceResult",
    "Range",
    "Results",
    "Statistic",
    "Stored",
    "Tensor",
    "Work",
    "check_files",
    "identify",
    "merge_method",
    "read_config",
]
