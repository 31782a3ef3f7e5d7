"""Methods that combine models linearly, with coefficients that depend on their lengths and angles.

Such a method only needs the Gram matrix of a tensor or of each row: the dot products of all agents' task vectors, or of
the agents themselves if there is no base. Products and sums are float64. Chunks of `CHUNK` elements are summed, and
their sums are added as fixed-point integers, so the result does not depend on blocks and threads.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels.element_formats import uniform
from ramerge.core.kernels.elementwise import ZERO, Each, Inputs
from ramerge.core.kernels.piece import Numbers, Piece, PieceResult, arithmetic
from ramerge.core.kernels.sums import products, sums
from ramerge.core.methods.base import FEW, Agents, Counts, Layer, Method, P, Results, Statistic, row_of, row_unit
from ramerge.core.methods.formula import Formula, merge_many
from ramerge.core.methods.formula import merge as merge_formula
from ramerge.core.methods.sums import Floats, Summand, Sums
from ramerge.core.methods.trim import every

Per = Literal["tensor", "row", "column"]
# a function from Gram matrices of shape (..., N, N) to coefficients of shape (..., N)
Solve = Callable[[Floats], Floats]

_LEAST_SQUARE = 2.0**-260


@dataclass(frozen=True)
class Gram(Sums[Floats]):
    """The Gram matrix of a tensor: float64, shape (agents, agents)."""

    spoiled = True
    terms = staticmethod(products)

    def summands(self, required: object) -> list[Summand]:
        return [Summand(every)]

    def finish(self, total: NDArray[np.int64], elements: int, required: object) -> Floats:
        return _square_matrices(self.read(total))


def _square_matrices(rows: Floats) -> Floats:
    """Gram matrices of shape (..., agents, agents), from the products in their lower triangles, shape (..., terms).

    A vector shorter than 2^-130 counts as 0: its square would not be exact.
    """
    agents = math.isqrt(2 * rows.shape[-1])  # a triangle has n (n + 1) / 2 terms
    matrices = np.empty((*rows.shape[:-1], agents, agents))
    for index, (i, j) in enumerate(products(agents)):
        matrices[..., i, j] = matrices[..., j, i] = rows[..., index]
    tiny = np.diagonal(matrices, axis1=-2, axis2=-1) < _LEAST_SQUARE
    matrices[tiny[..., :, None] | tiny[..., None, :]] = 0
    return matrices


# --- combining ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Combination:
    """A linear combination of N agents' task vectors, or of the agents themselves if there is no base.

    `coefficients` are those of a tensor; if each row or column has its own, `solve` computes them instead.
    """

    agents: int
    per: Per
    coefficients: Each
    solve: Solve


class CombinationMethod(Method[P, Combination]):
    """A method that combines agents linearly, with coefficients computed from Gram matrices."""

    @abstractmethod
    def coefficients(self, parameters: P, agents: Agents, gram: Floats) -> Floats:
        """Return coefficients of shape (..., N) for Gram matrices of shape (..., N, N)."""

    def per(self, parameters: P) -> Per:
        """The parts of a tensor that have separate coefficients."""
        return "tensor"

    def statistics(self, parameters: P, agents: Agents) -> tuple[Statistic, ...]:
        return (Gram("tensor"),) if self.per(parameters) == "tensor" else ()

    def prepare(self, parameters: P, agents: Agents, results: Results) -> Combination:
        def solve(gram: Floats) -> Floats:
            return self.coefficients(parameters, agents, gram)

        per = self.per(parameters)
        coefficients = solve(results[Gram("tensor")]) if per == "tensor" else np.empty(0)
        return Combination(len(agents), per, tuple(coefficients.tolist()), solve)

    def merge(self, piece: Piece, prepared: Combination, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        has_base, coefficients, agents = piece.which.base, prepared.coefficients, prepared.agents
        if prepared.per == "row":
            shape = (-1, row_of(piece.shape))
            return piece.compute_numbers(lambda *rows: _combined_rows(rows, piece, prepared, has_base), shape)
        if prepared.per == "column":
            shape = (piece.shape[0] if piece.shape else 1, -1)

            def columns(*numbers: Numbers) -> Numbers:
                return _combined_rows([np.ascontiguousarray(each.T) for each in numbers], piece, prepared, has_base).T

            return piece.compute_numbers(columns, shape)
        nearest = 0 if has_base else int(np.argmax(np.abs(coefficients)))
        excess = 0.0 if has_base else math.fsum(coefficients) - 1
        if agents > FEW:  # the same arithmetic as the formulas of one element below

            def finish(origin: Numbers, total: Numbers) -> Numbers:
                return np.where(total == 0, origin, origin + total)

            return merge_many(piece, coefficients, finish, origin=nearest, start=excess)
        if has_base:
            return merge_formula(piece, Formula(_task_element, (coefficients,), Inputs(agents)))
        marks = tuple(float(t == nearest) for t in range(agents))
        return merge_formula(piece, Formula(_agent_element, (coefficients, marks, excess), Inputs(agents, base=False)))


class CombinationByPart(CombinationMethod[P]):
    """A linear combination with coefficients per tensor, row or column; its parameters choose which."""

    @abstractmethod
    def per(self, parameters: P) -> Per: ...

    def unit(self, layer: Layer, parameters: P) -> int:
        """At least 2 for rows and columns, so that memory to widen them is planned."""
        per = self.per(parameters)
        if per == "column":
            return max(math.prod(layer.shape), 2)
        return row_unit(layer) if per == "row" else 1

    def scratch(self, layer: Layer, parameters: P, agents: int) -> int:
        """Bytes for a whole tensor whose columns are transposed to rows: inputs, sums and result."""
        return math.prod(layer.shape) * 8 * (agents + 4) if self.per(parameters) == "column" else 0


def _combined_rows(rows: Sequence[Numbers], piece: Piece, combination: Combination, has_base: bool) -> Numbers:
    agents, length = combination.agents, rows[0].shape[1]
    loop, real = uniform(arithmetic(piece.formats), len(rows)), rows[0].dtype
    words = [row.reshape(-1).view(loop.out.word) for row in rows]
    products_of_rows, _ = sums(
        every, loop, words, Inputs(agents, base=has_base), products(agents), length, rows[0].size
    )
    with np.errstate(all="ignore"):
        coefficients = combination.solve(_square_matrices(products_of_rows))
        # without a base, use differences from the agent with the largest coefficient
        nearest = rows[0] if has_base else np.choose(np.argmax(np.abs(coefficients), -1)[:, None], rows)
        origin, *others = rows if has_base else (nearest, *rows)
        total = np.zeros_like(origin)
        if not has_base:
            total = (np.sum(coefficients, -1) - 1).astype(real)[:, None] * origin
        for t, agent in enumerate(others):
            total = total + coefficients[:, t, None].astype(real) * (agent - origin)
        return np.where(total == 0, origin, origin + total)


def _task_element(b: float, taus: Each, coefficients: Each) -> float:
    total = ZERO
    for t in range(len(taus)):
        total = total + coefficients[t] * taus[t]
    return b if total == ZERO else b + total


def _agent_element(_b: float, values: Each, coefficients: Each, nearest: Each, excess: float) -> float:
    """Combine the agents' values of one element as differences from one agent, which is exact if agents are close.

    `nearest` marks the agent with the largest coefficient. `excess` is the sum of the coefficients minus 1.
    """
    origin = values[0]
    for t in range(len(values)):
        origin = values[t] if nearest[t] > ZERO else origin
    total = excess * origin
    for t in range(len(values)):
        total = total + coefficients[t] * (values[t] - origin)
    return origin if total == ZERO else origin + total


# --- lengths and angles ----------------------------------------------------------------------------------------


def norms(gram: Floats) -> Floats:
    return np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))


def cosines(gram: Floats) -> Floats:
    """Cosines of the angles between vectors, shape (..., N, N); 0 if one of two vectors is 0."""
    lengths = norms(gram)
    scale = lengths[..., :, None] * lengths[..., None, :]
    with np.errstate(all="ignore"):
        return np.where(scale == 0, 0.0, np.clip(gram / scale, -1, 1))
