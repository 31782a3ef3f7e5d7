"""Core coefficients: a weighted sum that preserves what each agent does in its leading directions.

    tau = scale * sum_j w_j tau_j        w between 0 and 1, separate for each matrix: see `linalg.core_coefficients`

`core+` continues from there with a short step of WUDI's flow in linear weights, as `swudi` does: see `methods.swudi`.

A vector counts as a matrix of one row. Tensors other than linear weights with more than `_ROWS` rows, such as
embeddings, get separate coefficients for each `_ROWS` rows, so memory is bounded and the inputs are read once. Not
published.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from pydantic import Field

from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.kernels.threefry import key_words
from ramerge.core.linalg import core_coefficients as kernel
from ramerge.core.linalg import curvature
from ramerge.core.linalg.arrays import Array
from ramerge.core.linalg.core_coefficients import coefficients, movers
from ramerge.core.linalg.solver import CPU
from ramerge.core.linalg.spectral import Triples
from ramerge.core.methods.base import Agents, Counts, Layer, Method, Results, ScaledParameters, seed_field
from ramerge.core.methods.matrices import WIDENING_BYTES, is_matrix, orient, oriented_bytes, scale_solution

_ROWS = 8192
"""How many rows of an embedding share their coefficients."""
_SMALLEST_OF_STACK = 16
"""A three-dimensional tensor counts as a stack of experts' matrices if both of their sides are at least this long."""


class CoreParameters(ScaledParameters):
    rank: int = Field(16, ge=1, le=256, description="how many leading directions of a task vector are its core")
    power: float = Field(0.75, ge=0, le=2, description="how much more the first directions count")
    iterations: int = Field(2, ge=0, le=16, description="subspace iterations of the randomized range finder")
    seed: int = seed_field()


class CorePlusParameters(CoreParameters):
    time: float = Field(1.0, ge=0, le=1e4, description="how long the flow runs from the core coefficients")


def matrix_of(layer: Layer) -> tuple[int, int]:
    """The shape of the matrices that `core` splits a tensor into; the last matrix may have fewer rows."""
    shape = layer.shape
    if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_OF_STACK:
        return shape[1], shape[2]
    rows = shape[0] if len(shape) > 1 else 1
    columns = math.prod(shape[1:] if len(shape) > 1 else shape)
    return (rows if is_matrix(layer) else min(rows, _ROWS)), columns


def solve(tensor: str, taus: Sequence[Array], parameters: CoreParameters, time: float = 0.0) -> Array:
    """Merge a matrix by core coefficients. Return its task vector before scaling.

    Args:
        taus: the agents' task vectors; at least one must not be 0.
        time: how long the flow runs afterwards.
    """
    factors = core_factors(tensor, taus, parameters)
    if time:
        return curvature.solve(taus, factors, curvature.Filter(time, None))
    total = 0 * taus[0]
    for factor, tau in zip(factors, taus, strict=True):
        if factor:
            total += factor * tau
    return total


def core_factors(tensor: str, taus: Sequence[Array], parameters: CoreParameters) -> list[float]:
    """The coefficient of each task vector of a matrix, from 0 to 1; 0 for a task vector that is 0. Also for `swudi`."""
    places = movers(taus)
    nonzero_taus = [taus[place] for place in places]
    factors = np.zeros(len(taus))
    factors[places] = coefficients(nonzero_taus, cores_of(tensor, nonzero_taus, parameters), parameters.power)
    return [float(factor) for factor in factors]


def cores_of(tensor: str, taus: Sequence[Array], parameters: CoreParameters) -> list[Triples]:
    """Compute the core of each task vector of a matrix: its `rank` leading singular triples (`u`, `s`, `v`).

    Task vectors have the shape (m, n), and none may be 0. The random draws of the range finder depend on the tensor's
    name.
    """
    key = key_words(hashlib.sha256(f"ramerge core\n{parameters.seed}\n{tensor}".encode()).digest())
    return [kernel.core(tau, parameters.rank, parameters.iterations, key) for tau in taus]


CoreP = TypeVar("CoreP", bound=CoreParameters)


class _CoreMethod(Method[CoreP, CoreParameters]):
    """Merge each matrix by core coefficients, then run the flow for the time in the parameters, if they have one."""

    family = "spectral"

    def prepare(self, parameters: CoreP, agents: Agents, results: Results) -> CoreParameters:
        return parameters

    def unit(self, layer: Layer, parameters: CoreP) -> int:
        """All elements of a matrix; at least 2, because 1 means an element-wise merge."""
        return max(math.prod(matrix_of(layer)), 2)

    def merge(
        self, piece: Piece, prepared: CoreParameters, counts: Counts | None, allow_nonfinite: bool
    ) -> PieceResult:
        layer = Layer(piece.tensor, piece.shape)
        rows, columns = matrix_of(layer)
        solver = piece.solver or CPU
        time = prepared.time if isinstance(prepared, CorePlusParameters) and is_matrix(layer) else 0.0

        def function(base: Array, *agents: Array) -> Array:
            result = np.empty_like(base)
            for start in range(0, len(base), rows):
                part = slice(start, start + rows)
                taus = [orient(one[part] - base[part], piece.transposed) for one in agents]
                tau = scale_solution(taus, (1.0,) * len(taus), prepared.scale, merge_taus, solver)
                result[part] = base[part] + orient(tau, piece.transposed)
            return result

        def merge_taus(taus: Sequence[Array]) -> Array:
            return solve(piece.tensor, taus, prepared, time)

        with np.errstate(over="ignore", invalid="ignore"):
            return piece.compute_numbers(function, (-1, columns))

    def scratch(self, layer: Layer, parameters: CoreP, agents: int) -> int:
        """Bytes that a matrix takes in addition to inputs and result."""
        extra, layer = oriented_bytes(layer), layer.oriented
        shape = matrix_of(layer)
        numbers = kernel.workspace(shape, agents, parameters.rank)
        if isinstance(parameters, CorePlusParameters) and is_matrix(layer):
            numbers += curvature.workspace(layer.shape, agents)
        return (agents + 2) * layer.itemsize * math.prod(shape) + 8 * numbers + extra + WIDENING_BYTES

    def solves(self, layer: Layer, parameters: CoreP) -> bool:
        return True


class Core(_CoreMethod[CoreParameters]):
    name = "core"
    is_transposable = True
    title = "Core coefficients"
    source = "not published; docs/methods/core.md derives it"
    formula = "scale * sum_j w_j tau_j, with coefficients that keep what each agent does in its leading directions"
    alone = "the result is the agent itself"
    parameters = CoreParameters


class CorePlus(_CoreMethod[CorePlusParameters]):
    name = "core+"
    title = "Core coefficients and a step of the flow"
    source = "not published; docs/methods/core.md derives it; the flow: SWUDI, arXiv 2606.07289"
    formula = "as core; in linear weights then WUDI's flow from there, for a short time"
    alone = "the result is nearly the agent itself"
    parameters = CorePlusParameters


CORE, CORE_PLUS = Core(), CorePlus()
