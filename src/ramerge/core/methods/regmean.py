"""RegMean towards a prior: match each agent's layer on its inputs (Jin et al. 2023, arXiv 2212.09849).

For a linear weight, with task vectors tau_t, a prior S, and G_t = X_t' X_t, where X_t are the recorded inputs of agent
t, one row per token, weighted so that an agent's weights add up to 1,

    tau = argmin sum_t ||(tau - tau_t) X_t'||^2 + mu ||tau - S||^2        mu = ridge * N * mean ||x||^2 / d
        = (sum_t tau_t G_t + mu S) (sum_t G_t + mu I)^-1
        = S + [(tau_t - S) X_t']_t (X X' + mu I)^-1 X                     X: all X_t, stacked

The second form inverts a d x d matrix for inputs of width d; the third inverts an n x n matrix for n rows, and is a
correction of rank n at most. N is the number of agents, and x is a row of X. An expert sees only some tokens, and its
rows are weighted by their share of all tokens: the fewer they are, the more the prior dominates. All other tensors, and
weights without recorded inputs, take the prior. RegMean itself has no prior, shrinks the off-diagonal elements of each
G_t, and averages all other tensors, as the preset `paper` does. The prior is not published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import (
    INPUTS,
    Agents,
    Counts,
    Layer,
    Method,
    Parameters,
    Presets,
    RecordedRows,
    Results,
    SideInput,
    Statistic,
)
from ramerge.core.methods.matrices import WIDENING_BYTES
from ramerge.core.methods.other_result import OtherName, OtherResult, Start, fits, name_field, parameters_field

_GROUP = 128
"""Rows of a weight that are multiplied at once; fixed, so that the products do not depend on the size of blocks."""
_LEAST = 1e-10
"""The least ridge, which is used instead of 0, so that the equations are never singular."""


class RegMeanParameters(Parameters):
    towards: OtherName = name_field("the prior: the sum or the mean of the task vectors, zero, or a method's result")
    prior: Annotated[dict[str, Any], fits("towards")] = parameters_field("towards")
    share: float = Field(1.0, allow_inf_nan=False, description="factor of the prior")
    ridge: float = Field(
        0.01, ge=0, le=1e9, description="how strongly the prior holds, in units of the inputs' mean square"
    )
    shrink: float = Field(
        1.0, ge=0, le=1, description="factor of what lies off the diagonal of each agent's second moments"
    )

    @property
    def other_result(self) -> OtherResult:
        """The merge that is the prior."""
        return OtherResult(self.towards, self.prior)


@dataclass(frozen=True)
class Operator:
    """Maps the task vectors of some rows of a weight, shape (rows, d), to the correction that is added to the prior.

    Attributes:
        maps: for each agent, factors whose product is G_t A, with A = (sum_t G_t + mu I)^-1: the product itself, shape
            (d, d), or two factors of shapes (d, n) and (n, d) if the agent has few recorded inputs.
        transposed: whether the weight is stored as (d, rows).
    """

    maps: Sequence[Sequence[Array]]
    transposed: bool

    def correction(self, prior: Array, taus: Sequence[Array]) -> Array:
        total = np.zeros_like(prior)
        for tau, factors in zip(taus, self.maps, strict=True):
            total += reduce(np.matmul, factors, tau - prior)
        return total


def _is_factoring_smaller(rows: int, layer: Layer, parameters: RegMeanParameters) -> bool:
    """Whether to use two factors, because they are smaller than their product; shrinking needs the product."""
    return parameters.shrink == 1 and 2 * rows < layer.width


def _gram_factors(
    rows: Sequence[Array], mu: float, layer: Layer, parameters: RegMeanParameters
) -> Iterator[tuple[Array, ...]]:
    """Yield the factors of G_t A for each agent, in float64."""
    few = [_is_factoring_smaller(len(x), layer, parameters) for x in rows]
    together = np.concatenate(rows)
    if all(few) and len(together) < layer.width:  # X_t A = (X X' + mu I)^-1_t X
        gram = together @ together.T
        inverse = np.linalg.inv(gram + mu * np.eye(len(gram)))
        ends = np.cumsum([len(x) for x in rows])
        for x, end in zip(rows, ends, strict=True):
            part = slice(end - len(x), end)
            lower = _lower_factor(gram[part, part])
            yield (np.linalg.inv(lower) @ x).T, lower.T @ inverse[part] @ together
        return
    moments = [
        None if small else _shrink_off_diagonal(x.T @ x, parameters.shrink) for x, small in zip(rows, few, strict=True)
    ]
    total = mu * np.eye(layer.width)
    for x, moment in zip(rows, moments, strict=True):
        total += x.T @ x if moment is None else moment
    inverse = np.linalg.inv(total)
    for x, moment in zip(rows, moments, strict=True):
        if moment is None:
            lower = _lower_factor(x @ x.T)
            yield (np.linalg.inv(lower) @ x).T, lower.T @ x @ inverse
        else:
            yield (moment @ inverse,)


def _lower_factor(gram: Array) -> Array:
    """A lower triangular L with L L' close to X X': then L^-1 X and L' X A have no large elements and fit into float32.

    (L^-1 X)' (L' X A) = X' X A for any invertible L, so a ridge that keeps L far from singular does no harm.
    """
    least = max(_LEAST * gram.trace(), np.finfo(np.float64).tiny)
    return np.linalg.cholesky(gram + least * np.eye(len(gram)))


def _shrink_off_diagonal(moments: Array, factor: float) -> Array:
    if factor == 1:
        return moments
    diagonal = moments.diagonal().copy()
    moments *= factor
    np.fill_diagonal(moments, diagonal)
    return moments


class RegMean(Method[RegMeanParameters, Start]):
    name = "regmean"
    family = "prompts"
    title = "RegMean towards a prior"
    source = (
        "Dataless Knowledge Fusion by Merging Weights of Language Models, arXiv 2212.09849; towards a prior: not "
        "published"
    )
    formula = "linear weights: (sum_t tau_t G_t + mu S) (sum_t G_t + mu I)^-1; others: S, by default the sum of tau_t"
    differs = "has no such method"
    alone = "the result is the agent itself"
    parameters = RegMeanParameters
    presets: ClassVar[Presets] = {"paper": {"towards": "mean", "ridge": 0.0, "shrink": 0.9}}
    side: SideInput | None = INPUTS

    def statistics(self, parameters: RegMeanParameters, agents: Agents) -> tuple[Statistic, ...]:
        return parameters.other_result.statistics(agents)

    def operator(self, layer: Layer, records: Sequence[RecordedRows], parameters: RegMeanParameters) -> Operator | None:
        """Compute the operator from the recorded inputs of a weight; None if all inputs are 0."""
        weighted_inputs = [each.inputs * np.sqrt(each.weights)[:, None] for each in records]
        power = sum(float(np.vdot(x, x)) for x in weighted_inputs)
        if not power:
            return None
        share = sum(float(each.weights.sum()) for each in records) / len(records)
        mu = max(parameters.ridge, _LEAST) * power / share / layer.width
        real = np.float32 if layer.itemsize == 4 else np.float64
        factors = _gram_factors(weighted_inputs, mu, layer, parameters)
        maps = [tuple(each.astype(real) for each in product) for product in factors]
        return Operator(maps, layer.transposed)

    def prepare(self, parameters: RegMeanParameters, agents: Agents, results: Results) -> Start:
        return parameters.other_result.start(parameters.share, agents, results)

    def merge(self, piece: Piece, prepared: Start, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        operator: Operator | None = piece.operator
        if operator is None:
            return prepared.merge(piece, counts, allow_nonfinite)
        shape = (-1, piece.shape[1])
        start = prepared.task_vector(piece, allow_nonfinite, shape)

        def merge_numbers(base: Array, *agents: Array) -> Array:
            if operator.transposed:
                base, agents = base.T, tuple(agent.T for agent in agents)
            others = start.T if start is not None and operator.transposed else start
            result = np.empty_like(base)
            for row in range(0, len(base), _GROUP):
                part = slice(row, row + _GROUP)
                taus = [agent[part] - base[part] for agent in agents]
                towards = prepared(taus) if others is None else others[part]
                result[part] = base[part] + (towards + operator.correction(towards, taus))
            return result.T if operator.transposed else result

        with np.errstate(over="ignore", invalid="ignore"):  # non-finite values show in the result
            return piece.compute_numbers(merge_numbers, shape)

    def unit(self, layer: Layer, parameters: RegMeanParameters) -> int:
        """Whole groups of rows if inputs were recorded; at least 2, because 1 means an element-wise merge."""
        prior = parameters.other_result.unit(parameters.share, layer)
        if not layer.rows:
            return prior
        rows = layer.shape[0] if layer.transposed else min(_GROUP, layer.shape[0])
        whole = math.prod(layer.shape)
        return whole if prior >= whole > 1 else max(math.lcm(rows * layer.shape[1], prior), 2)

    def scratch(self, layer: Layer, parameters: RegMeanParameters, agents: int) -> int:
        """Bytes for an operator, its factors, and a group of rows."""
        prior = parameters.other_result.scratch(layer, agents)
        if not layer.rows:
            return prior
        n, d = sum(layer.rows), layer.width
        few = all(_is_factoring_smaller(rows, layer, parameters) for rows in layer.rows)
        operator_numbers = 5 * n * d + (4 * n * n if few and n < d else 3 * d * d if few else (2 * agents + 3) * d * d)
        result = math.prod(layer.shape) if layer.transposed else 0
        return 8 * (operator_numbers + result + _GROUP * ((agents + 4) * d + n)) + WIDENING_BYTES + prior

    def solves(self, layer: Layer, parameters: RegMeanParameters) -> bool:
        return parameters.other_result.solves(layer)


REGMEAN = RegMean()
