"""DARE: drop elements of task vectors at random, rescale the others (Yu et al. 2024, arXiv 2311.03099).

Every element of tau_t is dropped with probability p, and multiplied by 1 / (1 - p) otherwise. Task Arithmetic (`dare`)
or TIES (`dare_ties`) then merges what is left. `drop_mask` says which elements are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from ramerge.core.methods import ties
from ramerge.core.methods.base import (
    Agents,
    Method,
    Parameters,
    Results,
    WeightedParameters,
    for_each,
    per_agent,
    present,
    seed_field,
)
from ramerge.core.methods.drop_mask import DropMask
from ramerge.core.methods.formula import Formula, merge
from ramerge.core.methods.task_arithmetic import task_arithmetic

RATE: Any = per_agent(0.0, 1.0, below=True)


class DroppingParameters(Parameters):
    """Parameters of both methods."""

    p: RATE = Field(0.5, description="drop rate")
    seed: int = seed_field()
    rescale: bool = Field(True, description="multiply what is not dropped by 1 / (1 - p)")


class DareParameters(WeightedParameters, DroppingParameters):
    """Parameters of `dare`: those of Task Arithmetic after those of the drop."""

    normalize: bool = Field(False, description="divide by the sum of the weights, unless that is 0")


class DareTiesParameters(DroppingParameters, ties.TiesParameters):
    """Parameters of `dare_ties`."""


def drop_mask(parameters: DroppingParameters, agents: Agents) -> DropMask:
    return DropMask(parameters.seed, agents, for_each(parameters.p, agents), parameters.rescale)


def prepare(parameters: DareParameters, agents: Agents, results: Results) -> Formula:
    formula: Formula = task_arithmetic.prepare(parameters, agents, results)
    return replace(formula, drop_mask=drop_mask(parameters, agents))


def thresholds(parameters: DareTiesParameters, agents: Agents) -> Any:
    return ties.thresholds(parameters, agents, drop_mask(parameters, agents))


def prepare_ties(parameters: DareTiesParameters, agents: Agents, results: Results) -> Formula:
    return ties.formula(parameters, agents, results, drop_mask(parameters, agents))


def drops(parameters: DroppingParameters) -> bool:
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
    noted=drops,
    prepare=prepare,
    merge=merge,
)
DARE_TIES = replace(
    ties.TIES,
    name="dare_ties",
    compared=False,
    title="DARE with TIES",
    source=f"{_SOURCE}; arXiv 2306.01708",
    formula="drop elements of tau_t with probability p, others times 1 / (1 - p); then TIES",
    differs=f"{_DIFFERS.format('ties')}; does not trim (here `density: 1`)",
    noted=drops,
    parameters=DareTiesParameters,
    statistics=lambda parameters, agents: present(thresholds(parameters, agents)),
    reported=thresholds,
    prepare=prepare_ties,
)
