"""Methods that work on linear weights as whole matrices, and merge all other tensors by a formula of one element.

Linear weights are the matrices named `....weight` inside the numbered layers of a model, and experts' matrices that are
stacked in one tensor, which plans call `NAME[expert]`. They are merged in the orientation (out, in), however they are
stored.
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

WIDENING_BYTES = 1 << 24  # for blocks that are widened, and small arrays
_LINEAR = re.compile(r"(^|\.)\d+\.(?!.*(norm|embed|wte|wpe|conv))(.*\.?(weight|in_proj_weight)|.+\[\d+\])$")

Shape = tuple[int, ...]
ScaledP = TypeVar("ScaledP", bound=ScaledParameters)
# (tensor name, task vectors of shape (out, in), optional solver) -> merged task vector
Solve = Callable[..., Numbers]


@dataclass(frozen=True)
class PreparedMatrices:
    """Arguments of `merge`: `solve` for linear weights, and `formula` for all other tensors."""

    solve: Solve
    formula: Formula


def is_matrix(layer: Layer) -> bool:
    """Whether a tensor is a linear weight."""
    return len(layer.shape) == 2 and min(layer.shape) > 0 and _LINEAR.search(layer.name) is not None


def orient(matrix: Numbers, transposed: bool) -> Numbers:
    """Convert a linear weight from its stored orientation to (out, in), or back."""
    return np.ascontiguousarray(matrix.T) if transposed else matrix


def oriented_bytes(layer: Layer) -> int:
    """Bytes that `orient` takes at once: a transposed task vector or result, and its copy."""
    return 2 * layer.itemsize * math.prod(layer.shape) if layer.transposed else 0


class MatrixMethod(Method[P, PreparedMatrices]):
    """A method that solves for linear weights as whole matrices."""

    @abstractmethod
    def solve(self, tensor: str, taus: Sequence[Array], parameters: P) -> Array:
        """Return the merged task vector of a linear weight, given task vectors of shape (out, in)."""

    @abstractmethod
    def memory(self, layer: Layer, parameters: P, agents: int) -> int:
        """Bytes of memory that solving for a linear weight takes, besides inputs and result."""

    @abstractmethod
    def others(self, parameters: P, agents: Agents) -> Formula:
        """Return the formula that merges all other tensors."""

    def merged(self, tensor: str, taus: list[Numbers], parameters: P, agents: Agents, solver: Solver = CPU) -> Numbers:
        """Compute the result of `solve` with a solver; it may overwrite the task vectors."""
        return solver.solve(lambda ones: self.solve(tensor, ones, parameters), taus)

    def prepare(self, parameters: P, agents: Agents, results: Results) -> PreparedMatrices:
        def solve(tensor: str, taus: list[Numbers], solver: Solver = CPU) -> Numbers:
            return self.merged(tensor, taus, parameters, agents, solver)

        return PreparedMatrices(solve, self.others(parameters, agents))

    def unit(self, layer: Layer, parameters: P) -> int:
        """All elements of a linear weight; at least 2, because 1 means an element-wise merge."""
        return max(math.prod(layer.shape), 2) if is_matrix(layer) else 1

    def scratch(self, layer: Layer, parameters: P, agents: int) -> int:
        return self.memory(layer.oriented, parameters, agents) + oriented_bytes(layer) if is_matrix(layer) else 0

    def solves(self, layer: Layer, parameters: P) -> bool:
        return is_matrix(layer)

    def merge(
        self, piece: Piece, prepared: PreparedMatrices, counts: Counts | None, allow_nonfinite: bool
    ) -> PieceResult:
        """Merge a piece, which is a whole linear weight, or consecutive elements of another tensor."""
        if not is_matrix(Layer(piece.tensor, piece.shape)):
            return merge_formula(piece, prepared.formula)

        def merge_numbers(base: Numbers, *agents: Numbers) -> Numbers:
            with np.errstate(over="ignore", invalid="ignore"):  # non-finite values show in the result
                solver = piece.solver or CPU
                taus = [orient(agent - base, piece.transposed) for agent in agents]
                tau = orient(prepared.solve(piece.tensor, taus, solver), piece.transposed)
                tau += base
            return tau

        return piece.compute_numbers(merge_numbers)


class SpectralMethod(MatrixMethod[ScaledP]):
    """A method that decomposes linear weights, and takes the mean of the weighted task vectors for other tensors.

    `solve` gets weighted task vectors, at least one of which is not 0. Their largest magnitude lies between 1/2 and 1.
    Its result is multiplied by `scale` afterwards.
    """

    family = "spectral"
    differs = "has no such method"

    @abstractmethod
    def workspace_floats(self, shape: Shape, parameters: ScaledP, agents: int) -> int:
        """How many float64 numbers `solve` holds besides the task vectors and the result."""

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
        return vectors + 8 * self.workspace_floats(layer.shape, parameters, agents) + WIDENING_BYTES


def _weights(parameters: ScaledParameters, agents: Agents) -> Each:
    return for_each(parameters.weights if isinstance(parameters, WeightedParameters) else 1.0, agents)


def scale_solution(
    taus: list[Numbers], weights: Sequence[float], scale: float, solve: Callable[[list[Array]], Array], solver: Solver
) -> Numbers:
    """Run `solve` on the weighted task vectors, and multiply its result by `scale`.

    The result has the dtype of the task vectors, which are overwritten. Before solving, they are multiplied by a power
    of 2, which is exact, so that their largest magnitude is between 1/2 and 1: then squares neither overflow nor
    underflow.
    """
    real = taus[0].dtype
    for tau, weight in zip(taus, weights, strict=True):
        if weight != 1:
            tau *= real.type(weight)
    # the smallest and the largest element are NaN if any element is
    bounds = [abs(float(bound)) for tau in taus for bound in (tau.min(), tau.max())]
    if not any(bounds) or not all(map(math.isfinite, bounds)):
        return np.full_like(taus[0], math.nan if any(bounds) else -0.0)  # -0 added to any number leaves its bits
    exponent = math.frexp(max(bounds))[1]
    for tau in taus:
        _multiply_by_power_of_two(tau, -exponent)
    result = np.ascontiguousarray(solver.solve(solve, taus), real)
    result *= real.type(scale)
    _multiply_by_power_of_two(result, exponent)
    return result


def _multiply_by_power_of_two(x: Numbers, exponent: int) -> None:
    if abs(exponent) < 120:
        x *= x.dtype.type(2.0**exponent)
    else:  # slow, but works for all exponents
        np.ldexp(x, exponent, out=x)
