"""methods."""

from ramerge.core.methods import gram
from ramerge.core.methods.base import (
    MANY,
    SIDE_INPUTS,
    Agents,
    Column,
    Counts,
    Layer,
    Method,
    Parameters,
    Results,
    Statistic,
    conditions,
    names_agent,
)
from ramerge.core.methods.core import CORE, CoreParameters, cores_of, matrix_of
from ramerge.core.methods.gram import Combination, Gram
from ramerge.core.methods.means import mean_method
from ramerge.core.methods.moved import ORDERED, Relative, factor, measured, shown, thresholds
from ramerge.core.methods.ram import RESCALINGS, AgentCounts, Moved
from ramerge.core.methods.registry import METHODS, complete, listed
from ramerge.core.methods.sums import Floats

__all__ = [
    "CORE",
    "MANY",
    "METHODS",
    "ORDERED",
    "RESCALINGS",
    "SIDE_INPUTS",
    "AgentCounts",
    "Agents",
    "Column",
    "Combination",
    "CoreParameters",
    "Counts",
    "Floats",
    "Gram",
    "Layer",
    "Method",
    "Moved",
    "Parameters",
    "Relative",
    "Results",
    "Statistic",
    "complete",
    "conditions",
    "cores_of",
    "factor",
    "gram",
    "listed",
    "matrix_of",
    "mean_method",
    "measured",
    "names_agent",
    "shown",
    "thresholds",
]
