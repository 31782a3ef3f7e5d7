"""DELLA: drop small entries of task vectors more often than large ones (Deep et al. 2024, arXiv 2406.11617).

In each row of a tensor (its last axis), the n entries are ranked by magnitude, and equal entries by column. The entry
of a rank (1 for the smallest) is kept with the probability

p = density - epsilon + 2 epsilon (rank - 1) / (n - 1)        p = density in a row of one entry

according to the random draws of `drop_mask`: it is kept if its word is at least floor((1 - p) 2^32). Kept entries are
multiplied so that each tensor keeps its sum of magnitudes (`rescale: l1`, as in mergekit), or by 1 / p (as in the
paper). Task Arithmetic (`della_linear`) or TIES's election (`della`) then merges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ramerge.core.kernels.elementwise import Each
from ramerge.core.kernels.piece import Numbers, Piece
from ramerge.core.kernels.sums import totals
from ramerge.core.kernels.threefry import words
from ramerge.core.methods.base import (
    FRACTIONS,
    Agents,
    Counts,
    PerAgentNumber,
    Results,
    RowMethod,
    WeightedParameters,
    for_each,
    row_of,
    seed_field,
)
from ramerge.core.methods.breadcrumbs import ratios
from ramerge.core.methods.drop_mask import key
from ramerge.core.methods.sums import Floats, Summand, Sums
from ramerge.core.methods.task_arithmetic import divisor_of

# Rows are processed in groups of about this many elements, so that intermediate arrays are small.
_GROUP = 1 << 16

Rescale = Literal["l1", "probability", "none"]


class DellaLinearParameters(WeightedParameters):
    normalize: bool = Field(False, description="divide by the sum of the weights (with election: of those that agree)")
    density: FRACTIONS = Field(0.5, description="mean probability that an entry is kept; 1 keeps all, 0 nothing")
    epsilon: FRACTIONS = Field(0.15, description="how far the probabilities of a row lie from density, up and down")
    rescale: Rescale = Field(
        "l1", description="what is kept keeps each tensor's sum of magnitudes, is divided by its probability, or stays"
    )
    seed: int = seed_field()

    @model_validator(mode="after")
    def _are_probabilities(self) -> DellaLinearParameters:
        names = [*{**_mapping_or_empty(self.density), **_mapping_or_empty(self.epsilon)}] or [""]
        for name in names:
            density, epsilon = _value_for_agent(self.density, name), _value_for_agent(self.epsilon, name)
            if density is None or epsilon is None or density in (0, 1):
                continue
            if density - epsilon <= 0 or density + epsilon >= 1:
                raise ValueError(
                    f"density {density:g} and epsilon {epsilon:g} make probabilities from {density - epsilon:g} to "
                    f"{density + epsilon:g}, which must lie between 0 and 1"
                )
        return self


class DellaParameters(DellaLinearParameters):
    normalize: bool = Field(True, description="divide by the sum of the weights of the agents that agree")


def _mapping_or_empty(value: PerAgentNumber) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {}


def _value_for_agent(value: PerAgentNumber, agent: str) -> float | None:
    return value.get(agent) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Dropping:
    """Drops elements of each agent at random. `by_chance`: divide kept elements by their probability."""

    seed: int
    agents: Agents
    densities: Each
    epsilons: Each
    by_chance: bool

    def groups(self, piece: Piece) -> Iterator[tuple[slice, Numbers, list[Numbers], list[Numbers]]]:
        """Yield groups of whole rows in order: slice of rows, base, task vectors, and task vectors after dropping."""
        width = row_of(piece.shape)
        base, *agents = piece.numbers((-1, width))
        step = max(_GROUP // width, 1)
        for first in range(0, len(base), step):
            rows = slice(first, first + step)
            with np.errstate(all="ignore"):
                taus = [agent[rows] - base[rows] for agent in agents]
                rescaled_taus = [
                    self._survivors(t, tau, piece, piece.start + first * width) for t, tau in enumerate(taus)
                ]
            yield rows, base[rows], taus, rescaled_taus

    def _survivors(self, t: int, tau: Numbers, piece: Piece, start: int) -> Numbers:
        """Rows of a task vector, with 0 for dropped elements."""
        if self.densities[t] >= 1:
            return tau
        if self.densities[t] <= 0:
            return np.where(np.isfinite(tau), tau.dtype.type(0), tau)
        chances = _keep_probabilities(tau.shape[-1], self.densities[t], self.epsilons[t])
        order = _ascending_columns(tau)
        draws = words(key(self.seed, self.agents[t], piece.tensor), start, tau.size)
        stays = draws.reshape(tau.shape) >= _move_to_columns(np.floor((1 - chances) * 2.0**32).astype(np.uint32), order)
        rescaled_tau = tau * _move_to_columns((1 / chances).astype(tau.dtype), order) if self.by_chance else tau
        # non-finite numbers are never dropped, so that they are noticed
        return np.where(stays | ~np.isfinite(tau), rescaled_tau, tau.dtype.type(0))


def _keep_probabilities(n: int, density: float, epsilon: float) -> Floats:
    """The probability that an entry is kept, for each rank in a row of n, from the smallest entry to the largest."""
    if n == 1:
        return np.full(1, density)
    probabilities: Floats = density - epsilon + 2 * epsilon * (np.arange(n) / (n - 1))
    return probabilities


def _ascending_columns(rows: Numbers) -> NDArray[np.intp]:
    """The columns of each row's entries, sorted from the smallest magnitude to the largest; ties in column order."""
    if rows.dtype != np.float32:
        return np.asarray(np.argsort(np.abs(rows), axis=-1, kind="stable"), np.intp)
    # sorting integers that hold magnitude and column is several times faster
    keys = np.abs(rows).view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(rows.shape[-1], dtype=np.uint64)
    keys.sort(axis=-1)
    order: NDArray[np.intp] = (keys & np.uint64(0xFFFFFFFF)).astype(np.intp)
    return order


def _move_to_columns(by_rank: Numbers, order: NDArray[np.intp]) -> Numbers:
    """Move values sorted by rank to the columns of the entries with these ranks."""
    result = np.empty(order.shape, by_rank.dtype)
    np.put_along_axis(result, order, np.broadcast_to(by_rank, order.shape), -1)
    return result


@dataclass(frozen=True)
class RowMagnitudes(Sums[Floats]):
    """Each agent's sum of magnitudes over all elements, and over the kept elements: float64, shape (2, agents)."""

    dropping: Dropping = field(kw_only=True)
    chunk = 1  # whole rows are summed, and blocks hold whole rows
    spoiled = True
    terms = staticmethod(totals)
    kinds = 2

    def summands(self, required: object) -> list[Summand]:
        return []

    def count(self, piece: Piece, required: object, counts: Counts) -> bool:
        is_nonfinite = False
        for _, _, taus, survivors in self.dropping.groups(piece):
            # row by row: the order in which NumPy adds a row's entries depends only on its length
            magnitudes = np.stack([np.abs(each).sum(-1, dtype=np.float64) for each in (*taus, *survivors)], 1)
            self.enter(magnitudes, counts)
            is_nonfinite |= not bool(np.isfinite(magnitudes).all())
        return is_nonfinite

    def finish(self, total: NDArray[np.int64], elements: int, required: object) -> Floats:
        return self.read(total).reshape(2, -1)


@dataclass(frozen=True)
class PreparedDella:
    """Arguments of `merge`: which elements to drop, agents' weights, factors after dropping, and parameters."""

    dropping: Dropping
    weights: Each
    factors: Each
    parameters: DellaLinearParameters


def _prepare_dropping(parameters: DellaLinearParameters, agents: Agents) -> Dropping:
    densities, epsilons = for_each(parameters.density, agents), for_each(parameters.epsilon, agents)
    return Dropping(parameters.seed, agents, densities, epsilons, parameters.rescale == "probability")


def _sum_survivors(b: Numbers, survivors: Sequence[Numbers], prepared: PreparedDella) -> Numbers:
    real, parameters = b.dtype.type, prepared.parameters
    pairs = zip(prepared.weights, prepared.factors, survivors, strict=True)
    terms = [real(weight) * (real(factor) * tau) for weight, factor, tau in pairs]
    total, below = _sum_of(terms), real(divisor_of(prepared.weights) if parameters.normalize else 1)
    if isinstance(parameters, DellaParameters):
        agree = [((term > 0) & (total > 0)) | ((term < 0) & (total < 0)) for term in terms]
        voices = _sum_of([np.where(yes, real(one), real(0)) for yes, one in zip(agree, prepared.weights, strict=True)])
        undefined = np.isnan(total)  # NaN has no sign, and must not turn into 0
        total = _sum_of([np.where(yes | undefined, term, real(0)) for yes, term in zip(agree, terms, strict=True)])
        below = np.where(parameters.normalize & (voices != 0), voices, real(1))
    return np.where(total == 0, b, b + real(parameters.scale) * (total / below))


def _sum_of(terms: Sequence[Numbers]) -> Numbers:
    total: Numbers = np.zeros_like(terms[0])
    for term in terms:
        total = total + term
    return total


DellaP = TypeVar("DellaP", bound=DellaLinearParameters)


class _RowDropping(RowMethod[DellaP, PreparedDella]):
    """A method that drops elements of task vectors at random, by their rank in the row."""

    family = "sparse"
    source = "DELLA-Merging: Reducing Interference by Magnitude-Based Sampling, arXiv 2406.11617"

    def statistics(self, parameters: DellaP, agents: Agents) -> tuple[RowMagnitudes, ...]:
        """The sums of magnitudes, if they are restored."""
        if parameters.rescale != "l1":
            return ()
        return (RowMagnitudes("tensor", dropping=_prepare_dropping(parameters, agents)),)

    def prepare(self, parameters: DellaP, agents: Agents, results: Results) -> PreparedDella:
        factors = (1.0,) * len(agents)
        for statistic in self.statistics(parameters, agents):
            factors = ratios(*results[statistic])
        return PreparedDella(
            _prepare_dropping(parameters, agents), for_each(parameters.weights, agents), factors, parameters
        )

    def rows(self, piece: Piece, prepared: PreparedDella, base: Numbers, *agents: Numbers) -> Numbers:
        result = np.empty_like(base)
        for rows, b, _, survivors in prepared.dropping.groups(piece):
            with np.errstate(all="ignore"):
                result[rows] = _sum_survivors(b, survivors, prepared)
        return result


_DIFFERENCE = "`{}` drops other elements in each run, and ranks tensors of three axes along the middle one"


class Della(_RowDropping[DellaParameters]):
    name = "della"
    title = "DELLA with TIES's election"
    formula = "drop elements with probabilities by rank in their row; then the mean of those that agree in sign"
    differs = _DIFFERENCE.format("della")
    parameters = DellaParameters


class DellaLinear(_RowDropping[DellaLinearParameters]):
    name = "della_linear"
    title = "DELLA with Task Arithmetic"
    formula = "drop elements with probabilities by rank in their row; then scale * sum_t w_t tau_t"
    differs = _DIFFERENCE.format("della_linear")
    parameters = DellaLinearParameters


DELLA = Della()
DELLA_LINEAR = DellaLinear()
