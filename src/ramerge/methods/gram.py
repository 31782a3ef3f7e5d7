"""Methods that combine models linearly, with coefficients that depend on their lengths and angles.

All that such a method must know of a tensor, or of a row of it, is the Gram matrix: the dot products of all agents'
task vectors, or of the agents themselves where there is no base. Products and sums are float64. Sums run over chunks of
`CHUNK` elements, and over chunks as fixed-point integers, so blocks and threads do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels.elementwise import ZERO, Inputs
from ramerge.kernels.fixed import CHUNK
from ramerge.kernels.formats import Loop, Words, uniform
from ramerge.kernels.piece import Piece, arithmetic
from ramerge.kernels.sums import products, sums
from ramerge.methods.base import Counts, Layer, Results, Statistic
from ramerge.methods.formula import Formula
from ramerge.methods.formula import merge as merge_formula
from ramerge.methods.sums import Floats, Sums
from ramerge.methods.trim import every

Per = Literal["tensor", "row", "column"]
# from Gram matrices, of shape (..., N, N), to coefficients, of shape (..., N)
Solve = Callable[[Floats], Floats]


_LEAST_SQUARE = 2.0**-260


@dataclass(frozen=True)
class Gram(Sums):
    """The Gram matrix of a tensor: float64, shape (agents, agents)."""

    spoiled = True
    agents: int = field(kw_only=True)

    def terms(self, agents: int) -> Sequence[tuple[int, int]]:
        """All pairs."""
        return products(agents)

    def count(self, piece: Piece, known: Any, counts: Counts) -> bool:
        """See `Statistic.count`."""
        which = Inputs(self.agents, base=has_base(piece, self.agents))

        def kernel(loop: Loop, inputs: list[Words]) -> bool:
            found, flagged = sums(every, loop, inputs, which, products(self.agents), CHUNK, piece.elements)
            self.enter(found, counts)
            return flagged

        return piece.observe(kernel)

    def finish(self, total: NDArray[np.int64], elements: int, known: Any) -> Floats:
        """See `Statistic.finish`."""
        return squared(self.read(total), self.agents)


def squared(rows: Floats, agents: int) -> Floats:
    """Gram matrices of shape (..., agents, agents) from their terms, of shape (..., terms).

    A vector shorter than 2^-130 counts as 0: its square would not be exact.
    """
    made = np.empty((*rows.shape[:-1], agents, agents))
    for index, (i, j) in enumerate(products(agents)):
        made[..., i, j] = made[..., j, i] = rows[..., index]
    gone = np.diagonal(made, axis1=-2, axis2=-1) < _LEAST_SQUARE
    made[gone[..., :, None] | gone[..., None, :]] = 0
    return made


def has_base(piece: Piece, agents: int) -> bool:
    """Whether a piece holds the base before its agents."""
    return len(piece.inputs) > agents


# --- combining ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Combination:
    """A linear combination of N agents' task vectors, or without a base of the agents themselves.

    Attributes:
        agents: how many.
        per: what has coefficients of its own.
        coefficients: those of the tensor, if it has its own.
        solve: gives coefficients to rows and columns.
    """

    agents: int
    per: Per
    coefficients: tuple[float, ...]
    solve: Solve


def statistics(agents: int, per: Per = "tensor") -> tuple[Statistic, ...]:
    """The Gram matrix of the tensor, unless rows or columns have their own."""
    return (Gram("tensor", agents=agents),) if per == "tensor" else ()


def unit(layer: Layer, per: Per) -> int:
    """The elements that are needed at once: more than 1 of rows and columns, for which there is room to widen them."""
    if per == "tensor":
        return 1
    return max(row_of(layer.shape) if per == "row" else math.prod(layer.shape), 2)


def scratch(layer: Layer, per: Per, agents: int) -> int:
    """Bytes for a whole tensor whose columns are turned to rows: the inputs, what is added up, and the result."""
    return math.prod(layer.shape) * 8 * (agents + 4) if per == "column" else 0


def row_of(shape: tuple[int, ...]) -> int:
    """Elements of a row: of the last axis."""
    return max(shape[-1], 1) if shape else 1


def prepare(agents: int, solve: Solve, results: Results, per: Per = "tensor") -> Combination:
    """Coefficients of a tensor."""
    coefficients = solve(results[statistics(agents)[0]]) if per == "tensor" else np.empty(0)
    return Combination(agents, per, tuple(coefficients.tolist()), solve)


def merge(piece: Piece, prepared: Combination, _counts: Counts | None, allow_nonfinite: bool) -> bool:
    """Merge a piece; see `Method.merge`."""
    based = has_base(piece, prepared.agents)
    if prepared.per == "tensor":
        coefficients = prepared.coefficients
        if based:
            return merge_formula(
                piece, Formula(task_element, (coefficients,), len(coefficients)), None, allow_nonfinite
            )
        nearest = int(np.argmax(np.abs(coefficients)))
        chosen = tuple(float(t == nearest) for t in range(prepared.agents))
        given = (coefficients, chosen, math.fsum(coefficients) - 1)
        formula = Formula(agent_element, given, prepared.agents, base=False)
        return merge_formula(piece, formula, None, allow_nonfinite)
    if prepared.per == "row":
        shape = (-1, row_of(piece.shape))
        return piece.compute_numbers(lambda *rows: _rows(rows, piece, prepared, based), shape)
    shape = (piece.shape[0] if piece.shape else 1, -1)

    def columns(*numbers: Any) -> Any:
        return _rows([np.ascontiguousarray(each.T) for each in numbers], piece, prepared, based).T

    return piece.compute_numbers(columns, shape)


def _rows(rows: Sequence[NDArray[Any]], piece: Piece, prepared: Combination, based: bool) -> NDArray[Any]:
    """The combination of arrays whose rows have coefficients of their own."""
    agents, length = prepared.agents, rows[0].shape[1]
    loop, real = uniform(arithmetic(piece.formats), len(rows)), rows[0].dtype
    words = [row.reshape(-1).view(loop.out.word) for row in rows]
    found, _ = sums(every, loop, words, Inputs(agents, base=based), products(agents), length, rows[0].size)
    with np.errstate(all="ignore"):
        coefficients = prepared.solve(squared(found, agents))
        origin, *others = rows if based else (_nearest(rows, coefficients), *rows)
        total = np.zeros_like(origin)
        if not based:
            total = (np.sum(coefficients, -1) - 1).astype(real)[:, None] * origin
        for t, agent in enumerate(others):
            total = total + coefficients[:, t, None].astype(real) * (agent - origin)
        return np.where(total == 0, origin, origin + total)


def _nearest(rows: Sequence[NDArray[Any]], coefficients: Floats) -> NDArray[Any]:
    """Of each row that of the agent with the largest coefficient."""
    found: NDArray[Any] = np.choose(np.argmax(np.abs(coefficients), -1)[:, None], rows)
    return found


def task_element(b: Any, taus: Any, coefficients: Any) -> Any:
    """One element of a combination of task vectors."""
    total = ZERO
    for t in range(len(taus)):
        total = total + coefficients[t] * taus[t]
    return b if total == ZERO else b + total


def agent_element(_b: Any, values: Any, coefficients: Any, nearest: Any, excess: Any) -> Any:
    """One element of a combination of agents, as differences from one of them: exact where agents are close.

    `nearest` marks the agent of the largest coefficient, and `excess` is the sum of the coefficients less 1.
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
    """Lengths, of shape (..., N)."""
    return np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))


def cosines(gram: Floats) -> Floats:
    """Cosines of angles, of shape (..., N, N); 0 where a vector is 0."""
    lengths = norms(gram)
    scale = lengths[..., :, None] * lengths[..., None, :]
    with np.errstate(all="ignore"):
        return np.where(scale == 0, 0.0, np.clip(gram / scale, -1, 1))
