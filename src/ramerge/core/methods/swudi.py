"""SWUDI and ASWUDI: WUDI's objective, solved in its leading directions only (arXiv 2606.07289).

With g_t = 1 / ||tau_t||_F^2, or 0 where tau_t is 0, WUDI's objective has the curvature C and the target D,

    C = sum_t g_t tau_t^T tau_t = V diag(lambda) V^T        D = sum_t g_t tau_t tau_t^T tau_t
    tau = scale * [theta_0 + (D - theta_0 C) V diag(f(lambda) / lambda) V^T]

With f = 1 - exp(-time lambda), tau is where gradient descent from theta_0 arrives after that time; with f = 1, it is
the minimum. f is 0 outside of the K leading directions: K is a fixed share of all directions for `swudi`, and depends
on the spectrum for `aswudi`. The trace of C is the number of agents whose task vector is not 0, so times and spectra
mean the same for small and large task vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ramerge.core.linalg import curvature
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import ScaledParameters, only
from ramerge.core.methods.core import CoreParameters, core_factors
from ramerge.core.methods.matrices import ScaledP, Shape, SpectralMethod

_TIME = 1.0
"""A safe time for LoRA adapters; docs/methods/spectral.md shows the effect of longer times."""
_LONG = 10.0
_RULE = "stable_rank"
_AMPLIFIES = "amplifies directions that adapters have almost in common"


class FilteredParameters(ScaledParameters):
    """Parameters of `swudi` and `aswudi`."""

    init_mode: Literal["sum", "mean", "zero", "core"] = Field(
        "sum", description="theta_0: the sum or the mean of the task vectors, zero, or the sum that core takes"
    )


class SwudiParameters(FilteredParameters):
    filter_type: Literal["exponential", "none"] = Field(
        "exponential", description="f: what gradient descent reaches in a time, or the minimum"
    )
    exp_time: float = Field(
        300.0,
        ge=0,
        le=1e12,
        json_schema_extra=only(filter_type="exponential"),
        description=f"the time; {_TIME:g} by default where several agents are LoRA adapters",
    )
    truncate_rank_ratio: float = Field(0.65, gt=0, le=1, description="share of the directions that are solved")


class AswudiParameters(FilteredParameters):
    auto_rank_method: Literal[
        "participation_sqrt",
        "participation",
        "entropy",
        "stable_rank",
        "gavish_donoho",
        "cumvar_0.9",
        "cumvar_0.95",
        "cumvar_0.99",
    ] = Field(
        "participation_sqrt",
        description="how many directions are solved, from the spectrum of the curvature; "
        f"{_RULE} by default where several agents are LoRA adapters",
    )
    rank_scale: float = Field(1.0, gt=0, le=1e6, description="factor of that number")


def _start_coefficients(tensor: str, taus: Sequence[Array], parameters: FilteredParameters) -> Sequence[float]:
    if parameters.init_mode == "core":
        return core_factors(tensor, taus, CoreParameters())
    return [{"sum": 1.0, "mean": 1 / len(taus), "zero": 0.0}[parameters.init_mode]] * len(taus)


def _make_filter(shape: Shape, agents: int, parameters: SwudiParameters) -> tuple[curvature.Filter, int]:
    # 1e-9: 0.65 * 20 is a little more than 13
    k = max(1, math.ceil(shape[1] * parameters.truncate_rank_ratio - 1e-9))
    time = parameters.exp_time if parameters.filter_type == "exponential" else math.inf
    return curvature.Filter(time, (lambda _values: k) if k < min(shape[1], agents * shape[0]) else None), k


def _chosen_rank(method: str, values: Array, shape: Shape) -> int:
    """The number of leading directions that `aswudi` solves for by the rule `method`; at least 1.

    Args:
        values: eigenvalues of C, descending; negligible ones are 0, and so are the last if fewer than n are passed.
    """
    if not values.size or not values[0]:
        return 1
    if method.startswith("cumvar_"):
        share = float(method.removeprefix("cumvar_"))
        return int(np.count_nonzero(np.cumsum(values) < share * values.sum())) + 1
    return max(1, _RULES[method](values, shape))


def _participation_rank(values: Array) -> int:
    return _round_up(values.sum() ** 2 / np.square(values).sum())


def _entropy_rank(values: Array) -> int:
    shares = values[values > 0] / values.sum()
    return _round_up(math.exp(-float((shares * np.log(shares)).sum())))


def _gavish_donoho(values: Array, shape: Shape) -> int:
    """How many singular values exceed the optimal hard threshold for unknown noise, approximated as by the authors."""
    beta = min(shape) / max(shape)
    roots = np.sqrt(np.concatenate([values, np.zeros(shape[1] - values.size)]))
    median = roots[shape[1] // 2]  # the lower one of two: values descend
    upper = 2 * (beta + 1) + 8 * beta / (beta + 1 + math.sqrt(beta * beta + 14 * beta + 1))
    lower = 2 + math.sqrt(3) if beta >= 0.9999 else max((1 - beta) ** 2 + beta, 1e-3)
    return int(np.count_nonzero(roots > math.sqrt(upper / lower) * median))


def _round_up(number: float) -> int:
    """Round up to a whole number, but ignore an excess that is mere rounding error."""
    return math.ceil(number * (1 - 1e-12))


_RULES: dict[str, Callable[[Array, Shape], int]] = {
    "participation_sqrt": lambda values, _shape: _participation_rank(np.sqrt(values)),
    "participation": lambda values, _shape: _participation_rank(values),
    "entropy": lambda values, _shape: _entropy_rank(values),
    "stable_rank": lambda values, _shape: _round_up(np.square(values / values[0]).sum()),
    "gavish_donoho": _gavish_donoho,
}


_FORMULA = "matrices: scale * WUDI's minimum from theta_0 in the leading directions of its curvature{}; {}"
_OTHERS = "others: scale * mean of tau_t"


class _CurvatureMethod(SpectralMethod[ScaledP]):
    """A method that solves WUDI's objective in the leading directions of its curvature."""

    source = "SWUDI, arXiv 2606.07289; WalkerWorldPeace/MLLMerging at 5f8a458"

    def workspace_floats(self, shape: Shape, parameters: ScaledP, agents: int) -> int:
        return curvature.workspace(shape, agents)


class Swudi(_CurvatureMethod[SwudiParameters]):
    name = "swudi"
    title = "SWUDI"
    formula = _FORMULA.format(", for a time", _OTHERS)
    parameters = SwudiParameters
    for_adapters: ClassVar[Mapping[str, object]] = {"exp_time": _TIME}

    def solve(self, tensor: str, taus: Sequence[Array], parameters: SwudiParameters) -> Array:
        filter, _ = _make_filter(taus[0].shape, len(taus), parameters)
        return curvature.solve(taus, _start_coefficients(tensor, taus, parameters), filter)

    def harms_adapters(self, parameters: SwudiParameters) -> str:
        if parameters.filter_type == "exponential" and parameters.exp_time <= _LONG:
            return ""
        return f"{_AMPLIFIES} if it solves for so long; set exp_time to {_TIME:g}, its default for adapters"


SWUDI = Swudi()


class Aswudi(_CurvatureMethod[AswudiParameters]):
    name = "aswudi"
    title = "ASWUDI"
    formula = _FORMULA.format(", as many as its spectrum says", _OTHERS)
    parameters = AswudiParameters
    for_adapters: ClassVar[Mapping[str, object]] = {"auto_rank_method": _RULE}

    def solve(self, tensor: str, taus: Sequence[Array], parameters: AswudiParameters) -> Array:
        shape: Shape = taus[0].shape

        def choose(values: Array) -> int:
            k = _chosen_rank(parameters.auto_rank_method, values, shape)
            return max(1, min(shape[1], round(k * parameters.rank_scale)))

        return curvature.solve(taus, _start_coefficients(tensor, taus, parameters), curvature.Filter(math.inf, choose))

    def harms_adapters(self, parameters: AswudiParameters) -> str:
        if parameters.auto_rank_method == _RULE and parameters.rank_scale <= 1:
            return ""
        return f"{_AMPLIFIES} if it solves in so many; set auto_rank_method to {_RULE}, its default for adapters"


ASWUDI = Aswudi()
