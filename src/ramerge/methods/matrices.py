"""Methods that work on linear weights as whole matrices, and take the mean task vector of all other tensors.

Linear weights are the matrices named `....weight` inside the numbered layers of a model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramerge.kernels.piece import Piece
from ramerge.kernels.spectral import Array
from ramerge.methods.base import (
    WEIGHTS,
    Agents,
    Counts,
    Layer,
    Method,
    Parameters,
    Results,
    Work,
    for_each,
    scale_field,
    weights_field,
)
from ramerge.methods.formula import Formula
from ramerge.methods.formula import merge as merge_formula
from ramerge.methods.task_arithmetic import weighted_sum

_WIDENED = 1 << 24  # blocks that are widened, and small things
_PASSES = 100  # operations of products in the time in which an element is widened, scaled and rounded
_LINEAR = re.compile(r"(^|\.)\d+\.(?!.*(norm|embed|wte|wpe|conv)).*\.?(weight|in_proj_weight)$")

Shape = tuple[int, ...]
# tensor, task vectors of shape (out, in) -> the merged one
Solve = Callable[[str, list[Array]], Array]


@dataclass(frozen=True)
class Cost:
    """What a matrix takes.

    Attributes:
        products: see `Work`.
        decompositions: see `Work`.
        numbers: float64 numbers that are held beside the task vectors and the result.
    """

    products: float
    decompositions: float
    numbers: float


class ScaledParameters(Parameters):
    """What all spectral methods have in common."""

    scale: float = scale_field()


class WeightedParameters(ScaledParameters):
    """Parameters of a method in which agents have weights."""

    weights: WEIGHTS = weights_field()


@dataclass(frozen=True)
class PreparedMatrices:
    """What merging takes: for linear weights, and for all others."""

    solve: Solve
    formula: Formula


def is_matrix(layer: Layer) -> bool:
    """Whether a tensor is a linear weight."""
    return len(layer.shape) == 2 and min(layer.shape) > 0 and _LINEAR.search(layer.name) is not None


def unit(layer: Layer, _parameters: Any) -> int:
    """All of a linear weight; more than one element, so that it is not taken for an element-wise merge."""
    return max(math.prod(layer.shape), 2) if is_matrix(layer) else 1


def merge(piece: Piece, prepared: PreparedMatrices, counts: Counts | None, allow_nonfinite: bool) -> bool:
    """Merge a piece: a whole linear weight, or elements of another tensor."""
    if not is_matrix(Layer(piece.tensor, piece.shape)):
        return merge_formula(piece, prepared.formula, counts, allow_nonfinite)

    def function(base: Array, *agents: Array) -> Array:
        return _merged(piece.tensor, base, agents, prepared.solve)

    return piece.compute_numbers(function)


def _merged(tensor: str, base: Array, agents: Sequence[Array], solve: Solve) -> Array:
    """The merged linear weight; not finite if an input is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        tau = solve(tensor, [agent - base for agent in agents])
        tau += base
    return tau


def mean(parameters: Any, agents: Agents) -> Formula:
    """The mean of the weighted task vectors, times the scale."""
    weights = for_each(getattr(parameters, "weights", 1.0), agents)
    return weighted_sum(weights, parameters.scale, float(len(agents)))


def spectral_method(
    *,
    name: str,
    title: str,
    source: str,
    formula: str,
    parameters: type[Any],
    solve: Callable[[str, Sequence[Array], Any], Array],
    cost: Callable[[Shape, int, Any], Cost],
    differs: str = "has no such method",
    for_adapters: Mapping[str, object] | None = None,
    harms_adapters: Callable[[Any], str] = lambda _parameters: "",
) -> Method:
    """A method that takes matrices apart.

    Args:
        name: see `Method`, also of what is not said here.
        title: see there.
        source: see there.
        formula: see there.
        parameters: see there.
        solve: `solve(tensor, taus, parameters)` merges task vectors of shape (out, in), of which at least one is not
            0, and the largest element lies between 1/2 and 1; the result is not scaled yet.
        cost: `cost(shape, agents, parameters)`.
        differs: see `Method`.
        for_adapters: see `Method`.
        harms_adapters: see `Method`.
    """

    def prepare(given: Any, agents: Agents, _results: Results) -> PreparedMatrices:
        weights = for_each(getattr(given, "weights", 1.0), agents)
        return PreparedMatrices(
            lambda tensor, taus: scaled(taus, weights, given.scale, lambda ones: solve(tensor, ones, given)),
            mean(given, agents),
        )

    def scratch(layer: Layer, given: Any, agents: int) -> int:
        if not is_matrix(layer):
            return 0
        held = ((agents + 1) * layer.itemsize + 16) * math.prod(layer.shape)
        return held + int(cost(layer.shape, agents, given).numbers) * 8 + _WIDENED

    def work(layer: Layer, given: Any, agents: int) -> Work:
        if not is_matrix(layer):
            return Work()
        taken = cost(layer.shape, agents, given)
        return Work(taken.products + _PASSES * (agents + 2) * math.prod(layer.shape), taken.decompositions)

    return Method(
        name=name,
        family="spectral",
        title=title,
        source=source,
        formula=formula,
        differs=differs,
        for_adapters=for_adapters or {},
        harms_adapters=harms_adapters,
        parameters=parameters,
        unit=unit,
        scratch=scratch,
        work=work,
        prepare=prepare,
        merge=merge,
    )


def scaled(taus: list[Array], weights: Sequence[float], scale: float, solve: Callable[[list[Array]], Array]) -> Array:
    """The result of `solve`, in the dtype of the task vectors, which are overwritten.

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
    result = np.ascontiguousarray(solve(taus), real)
    result *= real.type(scale)
    _shift(result, exponent)
    return result


def _shift(x: Array, exponent: int) -> None:
    """Multiply by a power of 2, in place."""
    if abs(exponent) < 120:
        x *= x.dtype.type(2.0**exponent)
    else:  # which is slow, but has no limits
        np.ldexp(x, exponent, out=x)
