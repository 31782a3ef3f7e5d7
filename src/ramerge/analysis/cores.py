"""Forecast of what `core` would do: the coefficients of these agents, and the best factor of their sum.

Agents meet where their cores overlap (`linalg.core_coefficients`): there a sum does more than each of them did. With
the same w_j for all agents, the objective of `core` is a parabola. Its minimum is the factor at which the sum does in
each core what its agent does, as nearly as it can. Tensors count by the shares that they have in the agents' squared
norms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ramerge import Options, PlanError
from ramerge.analysis.tensor_roles import layers_and_roles
from ramerge.sdk.kernels import Piece, fixed
from ramerge.sdk.linalg import Array, acts, coefficients, movers, spectral
from ramerge.sdk.methods import CORE, Agents, Core, CoreParameters, Counts, Layer, Statistic, cores_of, matrix_of
from ramerge.sdk.passes import Executor, Passes
from ramerge.sdk.plans import TensorPlan, make_plan
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document, for_method, make_points

Sums = NDArray[np.float64]
_ROWS = 4


@dataclass(frozen=True)
class CoreSums(Statistic):
    """The statistic of the forecast: for each agent of a tensor n, n w, n b and n a, float64 of shape (4, agents).

    n is the squared norm of its task vector, w its coefficient, b what the plain sum does in its core along what it
    does itself, and a the square of what the sum does there. An agent by itself has b = a = 1.
    """

    parameters: CoreParameters = field(kw_only=True)

    def blank(self, agents: int) -> Counts:
        return np.zeros((_ROWS * agents, fixed.WIDE_LIMBS), np.int64)

    def count(self, piece: Piece, required: object, counts: Counts) -> bool:
        rows, columns = matrix_of(Layer(piece.tensor, piece.shape))
        base, *agents = piece.numbers((-1, columns))
        finite = True
        for start in range(0, len(base), rows):
            part = slice(start, start + rows)
            with np.errstate(over="ignore", invalid="ignore"):
                taus = [agent[part] - base[part] for agent in agents]
            if all(np.isfinite(tau).all() for tau in taus):
                fixed.encode(sums_of(piece.tensor, taus, self.parameters).ravel(), counts)
            else:
                finite = False
        return not finite

    def finish(self, total: NDArray[np.int64], elements: int, required: object) -> Sums:
        return fixed.decode(total).reshape(_ROWS, -1)


def sums_of(tensor: str, taus: Sequence[Array], parameters: CoreParameters) -> Sums:
    """The numbers of the statistic `CoreSums` for the task vectors of a matrix, each of shape (m, n)."""
    found = np.zeros((_ROWS, len(taus)))
    places = movers(taus) if any(tau.any() for tau in taus) else []
    if not places:
        return found
    moved = [taus[place] for place in places]
    cores = cores_of(tensor, moved, parameters)
    found[0, places] = [spectral.squares(tau) for tau in moved]
    found[1, places] = coefficients(moved, cores, parameters.power)
    for place, own, (metric, done) in zip(places, range(len(moved)), acts(moved, cores, parameters.power), strict=True):
        total = np.sum(done, axis=0)
        found[2:, place] = (metric * total * done[own]).sum(), (metric * total**2).sum()
    found[1:] *= found[0]
    return found


@dataclass(frozen=True)
class CorePart:
    """The forecast of `core` for a part of the model.

    Attributes:
        name: `model`, a layer, or a role.
        coefficients: of each agent, as `core` gives it, by the squared norms of the part's tensors; None where it moved
            nothing.
        factor: the factor of the plain sum that is forecast to be best; None where nothing moved, or all cancels out.
    """

    name: str
    coefficients: Mapping[str, float | None]
    factor: float | None


@dataclass(frozen=True)
class CoreForecast:
    """The forecast of `core` for the model and its parts.

    Attributes:
        model, layers, roles: the parts.
        sentence: what it means for the sum of these agents.
    """

    model: CorePart
    layers: tuple[CorePart, ...]
    roles: tuple[CorePart, ...]
    sentence: str


_TOO_LONG, _TOO_SHORT = 0.9, 1.1


_SUMS = CoreSums("tensor", parameters=CoreParameters())


class _CountedCore(Core):
    """The method `core`, for which the forecast's sums are counted first."""

    def statistics(self, parameters: CoreParameters, agents: Agents) -> tuple[CoreSums]:
        return (_SUMS,)


def forecast(document: Document, options: Options, executor: Executor, listen: Listener) -> CoreForecast:
    """Read the inputs once, and forecast what `core` would do. Takes about as long as a merge with `core`.

    Args:
        document: a recipe in ramerge's own form, with a base; its method does not matter.
        options, executor, listen: as for an analysis.

    Raises:
        PlanError: the inputs do not fit each other; all problems are listed.
        WeightsError, CheckpointError: as for a merge.
    """
    points = make_points(for_method(document, CORE.name))
    plan = make_plan([replace(point, method=_CountedCore()) for point in points], options=options)
    if plan.findings.problems:
        raise PlanError(plan.findings.problems)
    with closing(Passes(plan, executor, listen)) as passes:
        passes.count()
        results = dict(passes.results)
    tensors = [tensor for tensor in plan.tensors if tensor.merged]
    return _forecast_of(
        tensors, [results[_SUMS, tensor.part("tensor")] for tensor in tensors], tuple(plan.inputs.agents)
    )


def _forecast_of(tensors: Sequence[TensorPlan], sums: Sequence[Sums], agents: Sequence[str]) -> CoreForecast:
    """The forecast of `core`, from the sums of each tensor."""

    def part(name: str, members: Sequence[Sums]) -> CorePart:
        norms, weighted, along, square = np.sum(members, axis=0)
        moved = norms > 0
        if not moved.any():
            return CorePart(name, dict.fromkeys(agents), None)
        own = [float(w / n) if n > 0 else None for w, n in zip(weighted, norms, strict=True)]
        # each agent counts the same, whatever its norm
        along, square = (float((row[moved] / norms[moved]).sum()) for row in (along, square))
        return CorePart(name, dict(zip(agents, own, strict=True)), along / square if square > 0 else None)

    model = part("model", sums)
    layers, roles = (
        tuple(part(name, [sums[number] for number in numbers]) for name, numbers in groups.items())
        for groups in layers_and_roles([tensor.name for tensor in tensors])
    )
    return CoreForecast(model, layers, roles, _sentence(model.factor))


def _sentence(factor: float | None) -> str:
    if factor is None:
        return "no agent moved anything, or all of them cancel out: there is no best factor of their sum"
    if factor < _TOO_LONG:
        why = "these agents overlap in their cores, so their sum is too long"
    elif factor > _TOO_SHORT:
        why = "these agents undo each other in their cores, so their sum is too short"
    else:
        why = "these agents hardly meet in their cores, so their plain sum is about right"
    return f"{why}: of the plain sum (task_arithmetic), parameters.scale={factor:.2f} is forecast to be best"
