"""DARE: drop elements of task vectors at random, rescale the others (Yu et al. 2024, arXiv 2311.03099).

Every element of tau_t is dropped with probability p, and multiplied by 1 / (1 - p) otherwise. Task Arithmetic (`dare`)
or TIES (`dare_ties`) then merges what is left. `coins` says which elements are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from ramerge.methods import ties
from ramerge.methods.base import (
    WEIGHTS,
    Agents,
    Method,
    Parameters,
    Results,
    Statistic,
    for_each,
    per_agent,
    scale_field,
    seed_field,
    weights_field,
)
from ramerge.methods.drop_mask import DropMask
from ramerge.methods.formula import Formula, merge
from ramerge.methods.task_arithmetic import task_arithmetic

RATE: Any = per_agent(0.0, 1.0, below=True)


class DroppingParameters(Parameters):
    """What both have in common."""

    p: RATE = Field(0.5, description="drop rate")
    seed: int = seed_field()
    rescale: bool = Field(True, description="multiply what is not dropped by 1 / (1 - p)")


class DareParameters(DroppingParameters):
    """Parameters of `dare`: those of Task Arithmetic behind those of the drop."""

    scale: float = scale_field()
    weights: WEIGHTS = weights_field()
    normalize: bool = Field(False, description="divide by the sum of the weights, unless that is 0")


class DareTiesParameters(DroppingParameters, ties.TiesParameters):
    """Parameters of `dare_ties`."""


def coins(parameters: DroppingParameters, agents: Agents) -> DropMask:
    """The coins that the parameters ask for."""
    return DropMask(parameters.seed, agents, for_each(parameters.p, agents), parameters.rescale)


def prepare(parameters: DareParameters, agents: Agents, results: Results) -> Formula:
    """Task Arithmetic behind coins."""
    formula: Formula = task_arithmetic.prepare(parameters, agents, results)
    return replace(formula, coins=coins(parameters, agents))


def thresholds(parameters: DareTiesParameters, agents: Agents) -> Any:
    """Thresholds of what the coins leave."""
    return ties.thresholds(parameters, agents, coins(parameters, agents))


def statistics(parameters: DareTiesParameters, agents: Agents) -> tuple[Statistic, ...]:
    """Thresholds, if anything is trimmed."""
    found = thresholds(parameters, agents)
    return (found,) if found else ()


def prepare_ties(parameters: DareTiesParameters, agents: Agents, results: Results) -> Formula:
    """TIES behind coins."""
    return ties.formula(parameters, agents, results, coins(parameters, agents))


def throws(parameters: DroppingParameters) -> bool:
    """Whether anything is dropped."""
    rates = parameters.p.values() if isinstance(parameters.p, Mapping) else (parameters.p,)
    return any(rates)


_SOURCE = "Language Models are Super Mario, arXiv 2311.03099; RAM paper, appendix D"
_DIFFERS = "`dare_{}` drops other elements in each run, and rescales each tensor to its l1 norm, not by 1 / (1 - p)"

DARE = Method(
    name="dare",
    family="sparse",
    title="DARE with Task Arithmetic",
    source=_SOURCE,
    formula="drop elements of tau_t with probability p, others times 1 / (1 - p); then scale * sum_t w_t tau_t",
    differs=_DIFFERS.format("linear"),
    parameters=DareParameters,
    symmetric=True,
    noted=throws,
    prepare=prepare,
    merge=merge,
)
DARE_TIES = Method(
    name="dare_ties",
    family="sparse",
    title="DARE with TIES",
    source=f"{_SOURCE}; arXiv 2306.01708",
    formula="drop elements of tau_t with probability p, others times 1 / (1 - p); then TIES",
    differs=f"{_DIFFERS.format('ties')}; does not trim (here `density: 1`)",
    parameters=DareTiesParameters,
    statistics=statistics,
    reported=thresholds,
    report=ties.report,
    remarks=ties.remarks,
    noted=throws,
    columns=ties.COLUMNS,
    prepare=prepare_ties,
    merge=merge,
)
