"""Methods that work on linear weights as whole matrices, and take the mean task vector of all other tensors.

Linear weights are the matrices named `....weight` inside the numbered layers of a model, and those of experts that one
tensor stacks, which plans call `NAME[expert]`. They are solved for as (out, in), however they are stored.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ramerge.core.kernels.elementwise import Each
from ramerge.core.kernels.piece import Numbers, Piece, PieceResult
from ramerge.core.linalg.arrays import Array
from ramerge.core.linalg.solver import CPU, Solver
from ramerge.core.methods.base import (
    Agents,
    Counts,
    Layer,
    Method,
    P,
    Results,
    ScaledParameters,
    WeightedParameters,
    for_each,
)
from ramerge.core.methods.formula import Formula
from ramerge.core.methods.formula import merge as merge_formula
from ramerge.core.methods.task_arithmetic import weighted_sum

WIDENING_BYTES = 1 << 24  # blocks that are widened, and small things
_LINEAR = re.compile(r"(^|\.)\d+\.(?!.*(norm|embed|wte|wpe|conv))(.*\.?(weight|in_proj_weight)|.+\[\d+\])$")

Shape = tuple[int, ...]
ScaledP = TypeVar("ScaledP", bound=ScaledParameters)
# tensor, task vectors of shape (out, in), where to solve if not here -> the merged one
Solve = Callable[..., Numbers]


@dataclass(frozen=True)
class PreparedMatrices:
    """Arguments of merging: for linear weights, and for all others."""

    solve: Solve
    formula: Formula


def is_matrix(layer: Layer) -> bool:
    """Whether a tensor is a linear weight."""
    return len(layer.shape) == 2 and min(layer.shape) > 0 and _LINEAR.search(layer.name) is not None


def orient(matrix: Numbers, transposed: bool) -> Numbers:
    """A linear weight as (out, in), from its stored orientation; or the stored orientation, from (out, in)."""
    return np.ascontiguousarray(matrix.T) if transposed else matrix


def oriented_bytes(layer: Layer) -> int:
    """Bytes that `oriented` holds at once: a task vector or the result, next to its copy."""
    return 2 * layer.itemsize * math.prod(layer.shape) if layer.transposed else 0


class MatrixMethod(Method[P, PreparedMatrices]):
    """A method that solves for linear weights as whole matrices."""

    @abstractmethod
    def solve(self, tensor: str, taus: Sequence[Array], parameters: P) -> Array:
        """The merged task vector of a linear weight, from task vectors of shape (out, in)."""

    @abstractmethod
    def memory(self, layer: Layer, parameters: P, agents: int) -> int:
        """Bytes that solving for a linear weight takes, besides inputs and result."""

    @abstractmethod
    def others(self, parameters: P, agents: Agents) -> Formula:
        """Formula of all other tensors."""

    def merged(self, tensor: str, taus: list[Numbers], parameters: P, agents: Agents, solver: Solver = CPU) -> Numbers:
        """The result of `solve`, computed by a solver; task vectors may be overwritten."""
        return solver.solve(lambda ones: self.solve(tensor, ones, parameters), taus)

    def prepare(self, parameters: P, agents: Agents, results: Results) -> PreparedMatrices:
        def solve(tensor: str, taus: list[Numbers], solver: Solver = CPU) -> Numbers:
            return self.merged(tensor, taus, parameters, agents, solver)

        return PreparedMatrices(solve, self.others(parameters, agents))

    def unit(self, layer: Layer, parameters: P) -> int:
        """All of a linear weight; more than one element, so that it is not taken for an element-wise merge."""
        return max(math.prod(layer.shape), 2) if is_matrix(layer) else 1

    def scratch(self, layer: Layer, parameters: P, agents: int) -> int:
        return self.memory(layer.oriented, parameters, agents) + oriented_bytes(layer) if is_matrix(layer) else 0

    def solves(self, layer: Layer, parameters: P) -> bool:
        return is_matrix(layer)

    def merge(
        self, piece: Piece, prepared: PreparedMatrices, counts: Counts | None, allow_nonfinite: bool
    ) -> PieceResult:
        """Merge a piece: a whole linear weight, or elements of another tensor."""
        if not is_matrix(Layer(piece.tensor, piece.shape)):
            return merge_formula(piece, prepared.formula)

        def merge_numbers(base: Numbers, *agents: Numbers) -> Numbers:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite shows in the result
                solver = piece.solver or CPU
                taus = [orient(agent - base, piece.transposed) for agent in agents]
                tau = orient(prepared.solve(piece.tensor, taus, solver), piece.transposed)
                tau += base
            return tau

        return piece.compute_numbers(merge_numbers)


class SpectralMethod(MatrixMethod[ScaledP]):
    """A method that decomposes matrices, and takes the mean of the weighted task vectors of other tensors.

    Of the task vectors that `solve` gets, which are weighted, at least one is not 0, and the largest element lies
    between 1/2 and 1; its result is not scaled yet.
    """

    family = "spectral"
    differs = "has no such method"

    @abstractmethod
    def workspace(self, shape: Shape, parameters: ScaledP, agents: int) -> int:
        """The float64 numbers that solving holds besides the task vectors and the result."""

    def others(self, parameters: ScaledP, agents: Agents) -> Formula:
        return weighted_sum(_weights(parameters, agents), parameters.scale, float(len(agents)))

    def merged(
        self, tensor: str, taus: list[Numbers], parameters: ScaledP, agents: Agents, solver: Solver = CPU
    ) -> Numbers:
        return scale_solution(
            taus,
            _weights(parameters, agents),
            parameters.scale,
            lambda ones: self.solve(tensor, ones, parameters),
            solver,
        )

    def memory(self, layer: Layer, parameters: ScaledP, agents: int) -> int:
        vectors = ((agents + 1) * layer.itemsize + 16) * math.prod(layer.shape)
        return vectors + 8 * self.workspace(layer.shape, parameters, agents) + WIDENING_BYTES


def _weights(parameters: ScaledParameters, agents: Agents) -> Each:
    return for_each(parameters.weights if isinstance(parameters, WeightedParameters) else 1.0, agents)


def scale_solution(
    taus: list[Numbers], weights: Sequence[float], scale: float, solve: Callable[[list[Array]], Array], solver: Solver
) -> Numbers:
    """The result of `solve` by a solver, in the dtype of the task vectors, which are overwritten.

    Squares of numbers of any size neither overflow nor vanish, because what is solved has a largest element of about 1.
    Factors of powers of 2 change no digit.
    """
    real = taus[0].dtype
    for tau, weight in zip(taus, weights, strict=True):
        if weight != 1:
            tau *= real.type(weight)
    # the least and the largest element are NaN where any element is
    bounds = [abs(float(bound)) for tau in taus for bound in (tau.min(), tau.max())]
    if not any(bounds) or not all(map(math.isfinite, bounds)):
        return np.full_like(taus[0], math.nan if any(bounds) else -0.0)  # -0 added to any number leaves its bits
    exponent = math.frexp(max(bounds))[1]
    for tau in taus:
        _shift(tau, -exponent)
    result = np.ascontiguousarray(solver.solve(solve, taus), real)
    result *= real.type(scale)
    _shift(result, exponent)
    return result


def _shift(x: Numbers, exponent: int) -> None:
    if abs(exponent) < 120:
        x *= x.dtype.type(2.0**exponent)
    else:  # which is slow, but has no limits
        np.ldexp(x, exponent, out=x)
