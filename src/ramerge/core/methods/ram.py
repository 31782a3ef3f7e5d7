"""Reinforced Agent Merging: RAM, RAM+ and RAM+s (arXiv 2601.13572, section 4, appendix E).

tau = 0                              no agent moved the element
    = lambda_t * tau_t               only agent t moved it
    = mean of tau_t over the movers  several did                                            (equation 7)

The parameter `shared` replaces the mean in the last line:

    agree_max   the tau_t of largest magnitude where all movers agree in sign, else their mean
    sum         sum of tau_t over the movers
    rms         sum of tau_t over the movers / square root of their number
    ties        TIES within the shared region (the authors' script calls it arm-ties): each agent is trimmed to its
                largest entries there, the sign of their sum is elected, and the entries with that sign are averaged
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ramerge.core.kernels import ram as kernel
from ramerge.core.kernels.elementwise import ONE, ZERO, Each, Inputs
from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.methods.base import (
    Agents,
    Column,
    Counts,
    Figure,
    Method,
    Parameters,
    Presets,
    Results,
    Statistic,
    only,
    present,
)
from ramerge.core.methods.formula import Formula
from ramerge.core.methods.formula import merge as merge_formula
from ramerge.core.methods.moved import (
    COLUMN,
    EPSILON,
    Relative,
    epsilon_field,
    factor,
    measured,
    thresholds,
    thresholds_of,
)
from ramerge.core.methods.quantiles import RankStatistic
from ramerge.core.methods.trim import least_magnitudes, trimming

SOURCE = "Behavior Knowledge Merge in Reinforced Agentic Models, arXiv 2601.13572"

Scope = Literal["model", "layer", "tensor"]


@dataclass(frozen=True)
class AgentCounts:
    """How many of `total` elements an agent moved (`active`), and how many only this agent moved (`unique`).

    An element counts as moved if it moved by more than `epsilon`; None if epsilon differs between parts.
    """

    total: int
    active: int
    unique: int
    epsilon: float | None = None

    @property
    def shared(self) -> int:
        """How many elements other agents moved, too."""
        return self.active - self.unique

    @property
    def density(self) -> float:
        """The share of elements that the agent moved: 1 - sparsity (section 3.1); 0 if there are no elements."""
        return self.active / self.total if self.total else 0.0

    @property
    def rho(self) -> float:
        """Shared elements divided by unique elements (equation 2): infinite if none is unique, 0 if none is active."""
        if self.unique == 0:
            return math.inf if self.shared else 0.0
        return self.shared / self.unique

    def __add__(self, other: AgentCounts) -> AgentCounts:
        epsilon = self.epsilon if self.epsilon == other.epsilon else None
        return AgentCounts(self.total + other.total, self.active + other.active, self.unique + other.unique, epsilon)


class RamParameters(Parameters):
    rescales: ClassVar[bool] = False

    epsilon: EPSILON = epsilon_field()
    shared: Literal["mean", "agree_max", "sum", "rms", "ties"] = Field(
        "mean",
        description="the rule for elements that several agents moved: their mean (the paper); the largest where all "
        "agree in sign, else the mean; their sum; the sum over the square root of the count; or TIES among them",
    )
    density: float = Field(
        0.1,
        gt=0,
        le=1,
        json_schema_extra=only(shared="ties"),
        description="elements that each agent keeps, as a share of all shared elements, whether it moved them or not",
    )
    trim: Scope = Field(
        "tensor", json_schema_extra=only(shared="ties"), description="what the largest entries are chosen from"
    )

    @property
    def counted_over(self) -> str:
        return "model"

    def rescaling(self, counts: AgentCounts) -> float:
        return 1.0


class RescaledParameters(RamParameters):
    rescales: ClassVar[bool] = True

    r: float = Field(0.1, ge=0, le=10, allow_inf_nan=False, description="strength of the rescaling of unique elements")
    scope: Scope = Field(
        "model", description="what rho is counted over: the whole model (the paper), each layer, or each tensor"
    )

    @property
    def counted_over(self) -> str:
        return self.scope

    def rescaling(self, counts: AgentCounts) -> float:
        """Equation 8, in the form of equation 9: rho / (1 + rho) equals shared / active elements."""
        return 1.0 + self.r * (counts.shared / counts.active if counts.active else 0.0)


class ClippedParameters(RescaledParameters):
    alpha: float = Field(2.0, ge=0, allow_inf_nan=False, description="rho is clipped to at most alpha")

    def rescaling(self, counts: AgentCounts) -> float:
        """Equation 6."""
        return 1.0 + self.r * min(counts.rho, self.alpha)


@dataclass(frozen=True)
class Moved(Statistic[tuple[AgentCounts, ...]]):
    """Count each agent's moved and unique elements (equations 1 and 2). The result has `AgentCounts` for each agent.

    Attributes:
        epsilon: the threshold; if there is a statistic `after`, in units of its result for each agent.
    """

    epsilon: float = 1e-5

    def blank(self, agents: int) -> Counts:
        return np.zeros((2, agents), np.int64)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        return piece.observe(
            lambda loop, inputs: kernel.count(loop, inputs, thresholds(self.epsilon, required), counts)
        )

    @property
    def kept(self) -> str | None:
        return f"moved and unique, epsilon {self.epsilon!r}" if self.after is None else None

    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> tuple[AgentCounts, ...]:
        limits = thresholds(self.epsilon, required)
        epsilons = limits * (total.shape[1] // len(limits))
        return tuple(
            AgentCounts(elements, active, unique, epsilon)
            for (active, unique), epsilon in zip(total.T.tolist(), epsilons, strict=True)
        )


@dataclass(frozen=True)
class PreparedRam:
    """Arguments of `merge`, unless TIES merges the shared elements.

    Attributes:
        epsilons: thresholds, one per agent or one for all: an agent moved an element if |agent - base| > epsilon.
        lambdas: factors of unique elements, one per agent; None for plain RAM.
        combination: the rule for shared elements, a key of `kernels.ram.SHARED`.
    """

    epsilons: Each
    lambdas: Each | None
    combination: str


def _trim_statistic(parameters: RamParameters, agents: Agents) -> RankStatistic | None:
    """The statistic that finds the thresholds of `shared: ties`; None if nothing is trimmed."""
    if parameters.shared != "ties":
        return None
    return trimming(parameters.trim, (parameters.density,) * len(agents), shared_beyond=parameters.epsilon)


def _element(b: float, taus: Each, lambdas: Each, thresholds: Each, epsilons: Each) -> float:
    """Equation 7 with TIES in the shared region, for one element."""
    total, scale, movers, mass = ZERO, ONE, ZERO, ZERO
    for t in range(len(taus)):
        is_update = abs(taus[t]) > epsilons[t]
        movers = movers + (ONE if is_update else ZERO)
        total = total + (taus[t] if is_update else ZERO)
        scale = lambdas[t] if is_update else scale
        is_survivor = is_update and np.float32(abs(taus[t])) >= thresholds[t]
        mass = mass + (taus[t] if is_survivor else ZERO)
    agreement, voices = ZERO, ZERO
    for t in range(len(taus)):
        is_survivor = abs(taus[t]) > epsilons[t] and np.float32(abs(taus[t])) >= thresholds[t]
        in_agreement = is_survivor and ((taus[t] > ZERO and mass > ZERO) or (taus[t] < ZERO and mass < ZERO))
        agreement = agreement + (taus[t] if in_agreement else ZERO)
        voices = voices + (ONE if in_agreement else ZERO)
    alone = b + scale * total
    together = b + agreement / (voices if voices > ZERO else ONE)
    unmoved = movers == ZERO or (movers > ONE and voices == ZERO)
    return b if unmoved else (alone if movers == ONE else together)


RamP = TypeVar("RamP", bound=RamParameters)
_MEAN: dict[str, object] = {"epsilon": 1e-5, "shared": "mean"}


class _ReinforcedMethod(Method[RamP, PreparedRam | Formula]):
    """A method that merges by equation 7, with lambdas if the parameters rescale."""

    family = "RAM"
    for_sparse = True
    alone = "the result is the agent itself, and the base where the agent moved by at most epsilon"
    columns: tuple[Column, ...] = (
        COLUMN,
        Column("density", "density", ".1%", "share of parameters moved"),
        Column("unique_share", "unique", ".1%", "share of these that no other agent moved"),
        Column("rho", "rho", ".3f", "shared / unique"),
        Column("lambda", "lambda", ".4f", "factor of unique elements"),
    )

    def statistics(self, parameters: RamP, agents: Agents) -> tuple[Statistic, ...]:
        """Counts for lambdas, thresholds for `shared: ties`, and root mean squares for relative epsilons."""
        counts = self.reported(parameters, agents) if parameters.rescales or parameters.shared == "ties" else None
        return present(measured(parameters.epsilon), counts, _trim_statistic(parameters, agents))

    def prepare(self, parameters: RamP, agents: Agents, results: Results) -> PreparedRam | Formula:
        epsilons, lambdas = thresholds_of(parameters.epsilon, results), None
        if parameters.rescales:
            lambdas = tuple(parameters.rescaling(counts) for counts in results[self.reported(parameters, agents)])
        if parameters.shared != "ties":
            return PreparedRam(epsilons, lambdas, parameters.shared)
        n, least = len(agents), least_magnitudes(_trim_statistic(parameters, agents), agents, results)
        numbers = (lambdas or (1.0,) * n, least, epsilons * (n // len(epsilons)))
        return Formula(_element, numbers, Inputs(n), beyond=epsilons)

    def merge(
        self, piece: Piece, prepared: PreparedRam | Formula, counts: Counts | None, allow_nonfinite: bool
    ) -> PieceResult:
        if isinstance(prepared, Formula):
            return merge_formula(piece, prepared)
        epsilons, lambdas, combination = prepared.epsilons, prepared.lambdas, prepared.combination
        return piece.compute(
            lambda loop, inputs, out, rounding: kernel.merge(
                loop, inputs, epsilons, lambdas, out, counts, allow_nonfinite, rounding, combination
            ),
            beyond=epsilons,
        )

    def reported(self, parameters: RamP, agents: Agents) -> Moved:
        """The counts that lambdas need, and that the record shows."""
        return Moved(parameters.counted_over, measured(parameters.epsilon), epsilon=factor(parameters.epsilon))

    def report(
        self, parameters: RamP, parts: Sequence[tuple[AgentCounts, ...]], agents: Agents
    ) -> list[dict[str, Figure]]:
        """Each agent's counts, density and rho, and lambda; None for lambda if it differs between parts."""
        rows: list[dict[str, Figure]] = []
        for t in range(len(agents)):
            counts = sum((part[t] for part in parts[1:]), parts[0][t]) if parts else AgentCounts(0, 0, 0)
            own = {"epsilon": counts.epsilon} if isinstance(parameters.epsilon, Relative) else {}
            rows.append(
                own
                | {
                    "total": counts.total,
                    "active": counts.active,
                    "shared": counts.shared,
                    "unique": counts.unique,
                    "density": counts.density,
                    "unique_share": counts.unique / counts.active if counts.active else 0.0,
                    "rho": counts.rho,
                    "lambda": parameters.rescaling(counts) if len(parts) < 2 else None,
                }
            )
        return rows


class Ram(_ReinforcedMethod[RamParameters]):
    name = "ram"
    title = "Reinforced Agent Merging"
    source = f"{SOURCE}, equations 1 and 7"
    formula = "unique elements kept, shared elements averaged"
    differs = "`ram` subtracts in the files' dtype, and ramerge in float32"
    parameters = RamParameters
    presets: ClassVar[Presets] = {"paper": _MEAN}


class RamPlus(_ReinforcedMethod[ClippedParameters]):
    name = "ram+"
    title = "Reinforced Agent Merging with clipped rescaling"
    source = f"{SOURCE}, equations 1, 2, 6 and 7"
    formula = "unique elements times lambda = 1 + r * clip(rho, 0, alpha), shared elements averaged"
    differs = "`ramplus_tl` counts tensor by tensor, clips rho at 0.2, takes shared / epsilon without unique elements"
    parameters = ClippedParameters
    presets: ClassVar[Presets] = {
        "paper": {**_MEAN, "r": 0.1, "alpha": 2.0, "scope": "model"},
        # the authors' script clips rho at 1 and multiplies by a factor of 1.2, which is r = 0.2
        "official": {**_MEAN, "r": 0.2, "alpha": 1.0, "scope": "model"},
    }


class RamPlusS(_ReinforcedMethod[RescaledParameters]):
    name = "ram+s"
    title = "Reinforced Agent Merging with saturated rescaling"
    source = f"{SOURCE}, equations 1, 2, 7 and 8"
    formula = "unique elements times lambda = 1 + r * rho / (1 + rho), shared elements averaged"
    parameters = RescaledParameters
    presets: ClassVar[Presets] = {"paper": {**_MEAN, "r": 0.1, "scope": "model"}}


RAM, RAM_PLUS, RAM_PLUS_S = Ram(), RamPlus(), RamPlusS()

RESCALINGS: Mapping[str, RescaledParameters] = {
    "ram+": ClippedParameters(),
    "ram+ official": ClippedParameters.model_validate(RAM_PLUS.presets["official"]),
    "ram+s": RescaledParameters(),
}
"""The parameters of the rules for lambda that an analysis compares."""
