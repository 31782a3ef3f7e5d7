"""Figures of a part of a model: shares, overlaps, angles and losses of agents, from a `Tally`; also `Finding`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from pydantic import BeforeValidator

from ramerge.analysis.survey import EXPONENT_BINS, FATES, LEAST_EXPONENT, LEAST_ULP, MERGES, ULP_BINS
from ramerge.analysis.task_vector_statistics import Tally
from ramerge.core.methods.ram import RESCALINGS, AgentCounts
from ramerge.sdk.text import Displayed

# Lower bounds of bins, as powers of two; the first bin is for 0.
EXPONENTS = (None, *range(LEAST_EXPONENT, LEAST_EXPONENT + EXPONENT_BINS - 1))
ULPS = (None, *range(LEAST_ULP, LEAST_ULP + ULP_BINS - 1))


# JSON has no infinity and no NaN, both are null there: of ratios infinity, of other figures NaN.
Figure: TypeAlias = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Ratio: TypeAlias = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]


@dataclass(frozen=True)
class AtEpsilon:
    """The figures of one agent at one threshold; see `AgentPart`."""

    epsilon: float
    active: int
    density: Figure
    unique: int
    unique_share: Figure
    rho: Ratio
    lambdas: Mapping[str, Figure]


@dataclass(frozen=True)
class Fate:
    """The fate in a merge of the elements that an agent moved. Counts are in elements.

    Attributes:
        kept: moved by at least 99 % of the agent's update, in its direction.
        diluted: moved by less, in its direction.
        flipped: moved in the opposite direction.
        lost: not moved after rounding to the output's dtype.
        retained: sum of tau * (merged - base) over sum of tau^2: how much of the agent's update the merge
            retains. 1 is all of it; averaging N agents that share nothing retains 1 / N.
    """

    kept: int
    diluted: int
    flipped: int
    lost: int
    retained: Figure


@dataclass(frozen=True, repr=False)
class AgentPart(Displayed):
    """The figures of one agent in one part of the model. Counts are in elements.

    Attributes:
        active: elements moved by more than epsilon (section 3.1).
        density: active / elements, which is 1 - sparsity.
        changed: elements whose value differs from the base's at all.
        changed_share: changed / elements.
        shared_with: active elements by the number of other agents that moved them too: 0 (unique), 1, ... (figure 2).
        unique_share: unique / active.
        rho: shared / unique (equation 2); infinite without unique elements.
        lambdas: the factor of unique elements under RAM+, under its preset `official`, and under RAM+s.
        norm: Euclidean length of the task vector.
        mean_magnitude: mean |tau| of changed elements.
        by_epsilon: the same figures at other thresholds, largest first.
        exponents: elements by |tau|; bins as `EXPONENTS`.
        ulps: elements by |tau| in units of the base's last place in the output's dtype; bins as `ULPS`.
        fates: what RAM (`ram`), the mean of all task vectors (`average`) and the requested merge (`merge`)
            keep of the agent.
    """

    _all_figures: ClassVar[str] = "to_dict()"

    name: str
    active: int
    density: Figure
    changed: int
    changed_share: Figure
    shared_with: tuple[int, ...]
    unique_share: Figure
    rho: Ratio
    lambdas: Mapping[str, Figure]
    norm: Figure
    mean_magnitude: Figure
    by_epsilon: tuple[AtEpsilon, ...]
    exponents: tuple[int, ...]
    ulps: tuple[int, ...]
    fates: Mapping[str, Fate]

    def _summary(self) -> Mapping[str, object]:
        figures = ("density", "unique_share", "rho", "norm")
        retained = {f"retained by {label}": fate.retained for label, fate in self.fates.items()}
        main_figures = {name: getattr(self, name) for name in figures}
        return {"agent": self.name, **main_figures, "lambda (ram+)": self.lambdas["ram+"], **retained}

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class AgentPair:
    """The figures of two agents in one part of the model.

    Attributes:
        agents: their names.
        both: elements that both moved.
        expected: the number expected by chance at their densities.
        jaccard: both / elements moved by either; 0 if there are none.
        cosine: of the task vectors; 0 if one of them is 0.
        sign_agreement: share of `both` that were moved in the same direction.
        magnitude_ratio: sum of |tau| of the first / sum of |tau| of the second, over `both`; NaN if there are none.
    """

    agents: tuple[str, str]
    both: int
    expected: Figure
    jaccard: Figure
    cosine: Figure
    sign_agreement: Figure
    magnitude_ratio: Figure


@dataclass(frozen=True, repr=False)
class AnalyzedPart(Displayed):
    """The figures of a part: the model, a layer, a role, or a tensor.

    Attributes:
        name: `model`, `layer 3`, a role, or the tensor's name.
        elements: the number of elements.
    """

    _all_figures: ClassVar[str] = "to_dict()"

    name: str
    tensors: int
    elements: int
    agents: tuple[AgentPart, ...]
    pairs: tuple[AgentPair, ...]

    def _summary(self) -> Mapping[str, object]:
        densities = {agent.name: agent.density for agent in self.agents}
        return {"name": self.name, "elements": self.elements, "densities": densities}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        return [agent._summary() for agent in self.agents]  # noqa: SLF001  # its own room

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return asdict(self)


@dataclass(frozen=True, repr=False)
class TensorPart(AnalyzedPart):
    """The figures of one tensor, with its layer (None outside of layers) and role."""

    shape: tuple[int, ...]
    dtype: str
    layer: int | None
    role: str


@dataclass(frozen=True)
class Finding:
    """A sentence that says what an analysis means for merging, and its reason."""

    text: str
    reason: str


def part_of(name: str, tensors: int, tally: Tally, agents: Sequence[str], epsilons: Sequence[float]) -> AnalyzedPart:
    """Compute the figures of a part of the model from its tally."""
    n = len(agents)
    return AnalyzedPart(
        name=name,
        tensors=tensors,
        elements=tally.elements,
        agents=tuple(_agent_part(agents[t], t, tally, epsilons) for t in range(n)),
        pairs=tuple(_agent_pair(s, t, tally, agents) for s in range(n) for t in range(s + 1, n)),
    )


def _agent_part(name: str, t: int, tally: Tally, epsilons: Sequence[float]) -> AgentPart:
    shared_counts = tuple(tally.shared[t].tolist())
    counts = AgentCounts(tally.elements, sum(shared_counts), shared_counts[0])
    changed_elements = tally.elements - int(tally.exponents[t, 0])
    sums = tally.sums
    return AgentPart(
        name=name,
        active=counts.active,
        density=counts.density,
        changed=changed_elements,
        changed_share=_share(changed_elements, tally.elements),
        shared_with=shared_counts,
        unique_share=_share(counts.unique, counts.active),
        rho=counts.rho,
        lambdas=_lambdas(counts),
        norm=math.sqrt(sums["dots"][t, t]),
        mean_magnitude=_share(sums["total"][t], changed_elements),
        by_epsilon=tuple(
            _figures_at_epsilon(epsilon, AgentCounts(tally.elements, int(active), int(unique)))
            for epsilon, (active, unique) in zip(epsilons, tally.by_epsilon[:, :, t].tolist(), strict=True)
        ),
        exponents=tuple(tally.exponents[t].tolist()),
        ulps=tuple(tally.ulps[t].tolist()),
        fates={
            merge: Fate(
                **dict(zip(FATES, tally.fates[index, t].tolist(), strict=True)),
                retained=_share(sums["left"][index, t], sums["active"][t]),
            )
            for index, merge in enumerate(MERGES)
        },
    )


def _figures_at_epsilon(epsilon: float, counts: AgentCounts) -> AtEpsilon:
    return AtEpsilon(
        epsilon=epsilon,
        active=counts.active,
        density=counts.density,
        unique=counts.unique,
        unique_share=_share(counts.unique, counts.active),
        rho=counts.rho,
        lambdas=_lambdas(counts),
    )


def _lambdas(counts: AgentCounts) -> dict[str, float]:
    return {label: parameters.rescaling(counts) for label, parameters in RESCALINGS.items()}


def _agent_pair(s: int, t: int, tally: Tally, agents: Sequence[str]) -> AgentPair:
    both, first, second = (int(tally.both[pair]) for pair in ((s, t), (s, s), (t, t)))
    sums = tally.sums
    norms = math.sqrt(sums["dots"][s, s]) * math.sqrt(sums["dots"][t, t])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = float(sums["moved"][s, t] / sums["moved"][t, s])
    return AgentPair(
        agents=(agents[s], agents[t]),
        both=both,
        expected=_share(first * second, tally.elements),
        jaccard=_share(both, first + second - both),
        cosine=_share(sums["dots"][s, t], norms),
        sign_agreement=_share(int(tally.agree[s, t]), both),
        magnitude_ratio=ratio,
    )


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
