"""Methods: formulas for one element, and classes for methods that count, or need rows, matrices or whole tensors.

    >>> from typing import Annotated
    >>> from ramerge.sdk.methods import ZERO, PerAgent, merge_method
    >>> @merge_method("my_sum", source="arXiv 2401.00000", interface=1)
    ... def my_sum(
    ...     base: float, taus: tuple[float, ...], *, weights: Annotated[PerAgent, "factor of each agent"] = 1.0
    ... ) -> float:
    ...     \"""The weighted sum of the task vectors.\"""
    ...     total = ZERO
    ...     for t in range(len(taus)):
    ...         total = total + weights[t] * taus[t]
    ...     return base + total
    >>> my_sum.name
    'my_sum'

Register the method by an entry point in the group `ramerge.methods`: `my_sum = "my_package:my_sum"`. Check it with
`ramerge.testing`.
"""

from ramerge.core.kernels.elementwise import INFINITY, ONE, ZERO, Inputs
from ramerge.core.methods.base import (
    MANY,
    Agents,
    Column,
    Counts,
    Layer,
    Method,
    Parameters,
    Results,
    RowMethod,
    Statistic,
)
from ramerge.core.methods.define import ChosenAgent, PerAgent, Range, merge_method
from ramerge.core.methods.formula import CountedMethod, ElementMethod, Formula
from ramerge.core.methods.gram import CombinationMethod, Gram
from ramerge.core.methods.matrices import MatrixMethod
from ramerge.core.methods.means import MeanMethod
from ramerge.core.methods.registry import METHODS
from ramerge.core.methods.sums import Floats
from ramerge.core.registry import INTERFACE

__all__ = [
    "INFINITY",
    "INTERFACE",
    "MANY",
    "METHODS",
    "ONE",
    "ZERO",
    "Agents",
    "ChosenAgent",
    "Column",
    "CombinationMethod",
    "CountedMethod",
    "Counts",
    "ElementMethod",
    "Floats",
    "Formula",
    "Gram",
    "Inputs",
    "Layer",
    "MatrixMethod",
    "MeanMethod",
    "Method",
    "Parameters",
    "PerAgent",
    "Range",
    "Results",
    "RowMethod",
    "Statistic",
    "merge_method",
]
