"""What an analysis found: shares, overlaps, angles and losses, for the model and every part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BeforeValidator

from ramerge.analysis.anatomy import Tally
from ramerge.analysis.roles import ROLES
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.jsontext import Limits, dumped
from ramerge.foundation.typedjson import read_model
from ramerge.kernels.anatomy import EXPONENT_BINS, FATES, LEAST_EXPONENT, LEAST_ULP, MERGES, ULP_BINS
from ramerge.methods.ram import AgentCounts
from ramerge.methods.table import METHODS, complete

SCHEMA = "ramerge.analysis/1"
"""Name and version of the JSON; the version grows when a key changes its meaning or goes away."""

_LIMITS = Limits(size=64_000_000, signs=3_000_000)

# lambda under these: method, preset.
RESCALINGS = {"ram+": ("ram+", "paper"), "ram+ official": ("ram+", "official"), "ram+s": ("ram+s", "paper")}

# Lower bounds of bins, as powers of two; the first bin is for 0.
EXPONENTS = (None, *range(LEAST_EXPONENT, LEAST_EXPONENT + EXPONENT_BINS - 1))
ULPS = (None, *range(LEAST_ULP, LEAST_ULP + ULP_BINS - 1))


# JSON knows no infinity and no NaN, both are null there: of ratios infinity, of other figures NaN.
Figure: TypeAlias = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Ratio: TypeAlias = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]


@dataclass(frozen=True)
class AtEpsilon:
    """One agent at one threshold; see `AgentPart`."""

    epsilon: float
    active: int
    density: Figure
    unique: int
    unique_share: Figure
    rho: Ratio
    lambdas: Mapping[str, Figure]


@dataclass(frozen=True)
class Fate:
    """What a merge leaves of an agent's moved elements, in elements.

    Attributes:
        kept: at least 99 % of what the agent moved them by, in its direction.
        diluted: less, in its direction.
        flipped: something in the other direction.
        lost: nothing, once rounded to the output's dtype.
        retained: sum of tau * (merged - base) over sum of tau^2: how much of the agent's update lies in the merge. 1
            is all of it; averaging N agents that share nothing leaves 1 / N.
    """

    kept: int
    diluted: int
    flipped: int
    lost: int
    retained: Figure


@dataclass(frozen=True)
class AgentPart:
    """One agent in one part of the model. Counts are in elements.

    Attributes:
        active: moved by more than epsilon (section 3.1).
        density: active / elements, 1 - sparsity.
        changed: elements whose value differs from the base's by anything.
        changed_share: changed / elements.
        shared_with: active, by how many other agents moved them too: unique ones, with one other, ... (figure 2).
        unique_share: unique / active.
        rho: shared / unique (equation 2); infinite without unique elements.
        lambdas: factor of unique elements under RAM+, its preset `official`, and RAM+s.
        norm: Euclidean length of the task vector.
        mean_magnitude: mean |tau| of changed elements.
        by_epsilon: the same at other thresholds, from the largest.
        exponents: elements by |tau|; bins as `EXPONENTS`.
        ulps: elements by |tau| in units of the base's last place in the output's dtype; bins as `ULPS`.
        fates: what is left of it by RAM (`ram`), by the mean of all task vectors (`average`), and by the merge that was
            asked for (`merge`).
    """

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


@dataclass(frozen=True)
class Pair:
    """Two agents in one part of the model.

    Attributes:
        agents: their names.
        both: elements that both moved.
        expected: what chance would give at their densities.
        jaccard: both / moved by either; 0 for nothing.
        cosine: of the task vectors; 0 where one is 0.
        sign_agreement: share of `both` that were moved in the same direction.
        magnitude_ratio: sum of |tau| of the first over that of the second, over `both`; NaN for nothing.
    """

    agents: tuple[str, str]
    both: int
    expected: Figure
    jaccard: Figure
    cosine: Figure
    sign_agreement: Figure
    magnitude_ratio: Figure


@dataclass(frozen=True)
class Part:
    """The model, a layer, a role, or a tensor.

    Attributes:
        name: `model`, `layer 3`, a role, or the tensor's name.
        tensors: how many.
        elements: of these.
        agents: in the recipe's order.
        pairs: of agents.
    """

    name: str
    tensors: int
    elements: int
    agents: tuple[AgentPart, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class TensorPart:
    """One tensor: `part`, and where it stands; layer None outside of layers."""

    part: Part
    shape: tuple[int, ...]
    dtype: str
    layer: int | None
    role: str


def _tensor(values: Any) -> Any:
    """A tensor's plain values, with the figures of its part apart."""
    if not isinstance(values, Mapping):
        return values
    own = {key: values[key] for key in ("shape", "dtype", "layer", "role") if key in values}
    return own | {"part": {key: value for key, value in values.items() if key not in own}}


@dataclass(frozen=True)
class Finding:
    """A sentence on what an analysis means for merging, and why."""

    text: str
    reason: str


@dataclass(frozen=True)
class Analysis:
    """What RL changed, in all agents of one base.

    Attributes:
        base: folder or hub id.
        models: of the agents, by name.
        epsilon: an element has moved where |agent - base| > epsilon.
        epsilons: the thresholds of `by_epsilon`.
        method: of the merge that `fates` have under `merge`: the recipe's, or `ram` where that cannot be measured on
            the way.
        input_dtypes: of the floating-point tensors of `base` and agents.
        dtype: of the output of a merge, full name, or `mixed`. All that is said of merges is of merges in this dtype.
        rounding: for each agent `updates`, `erased` and `erased_share` of that merge, as its record would have them;
            empty where rounding loses nothing.
        model, layers, roles, tensors: the same figures of the whole and of its parts.
        findings: three sentences.
        notes: what the plan noted.
        warnings: what probably is not what was wanted.
        recipe: what was analysed, as plain values.
        bytes_read: bytes of weights read.
        seconds: wall time.
        peak_memory_bytes: the process's largest resident memory.
    """

    ramerge_version: str
    base: str
    models: Mapping[str, str]
    epsilon: float
    epsilons: tuple[float, ...]
    method: str
    input_dtypes: Mapping[str, str]
    dtype: str
    rounding: Mapping[str, Mapping[str, int | float]]
    model: Part
    layers: tuple[Part, ...]
    roles: tuple[Part, ...]
    tensors: tuple[Annotated[TensorPart, BeforeValidator(_tensor)], ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    recipe: Mapping[str, Any]
    bytes_read: int
    seconds: float
    peak_memory_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in `--json`. What is infinite or no number is null."""
        values = {"schema": SCHEMA, "bins": {"exponents": list(EXPONENTS), "ulps": list(ULPS)}, **asdict(self)}
        values["tensors"] = [
            {"shape": tensor.shape, "dtype": tensor.dtype, "layer": tensor.layer, "role": tensor.role}
            | asdict(tensor.part)
            for tensor in self.tensors
        ]
        plain: dict[str, Any] = _finite(values)
        return plain

    def to_json(self) -> str:
        """The text of `--json`."""
        return dumped(self.as_dict(), indent=None)

    def frames(self) -> dict[str, Any]:
        """The tables of `--csv` as pandas data frames, by name.

        Raises:
            RecipeError: pandas is not installed.
        """
        from ramerge.analysis.tables import rows

        try:
            import pandas as pd
        except ImportError as error:
            raise RecipeError("data frames need pandas: pip install pandas") from error
        return {name: pd.DataFrame(table) for name, table in rows(self).items()}


def read_analysis(path: Path) -> Analysis:
    """The analysis in a file that `--json` wrote.

    Raises:
        RecipeError: it cannot be read, is something else, or of another version.
    """
    return read_model(path, Analysis, _LIMITS, "analysis", _checked)


_ERASED = {"updates", "erased", "erased_share"}


def _checked(values: Any) -> Any:
    """Plain values whose lists are as long as they must be, whatever is in them."""
    if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    try:
        names = [agent["name"] for agent in values["model"]["agents"]]
        parts = [values["model"], *values["layers"], *values["roles"], *values["tensors"]]
        fits = all(_fits(part, names, len(values["epsilons"])) for part in parts)
        fits = fits and list(values["rounding"]) in ([], names)
        fits = fits and all(set(figures) == _ERASED for figures in values["rounding"].values())
        fits = fits and list(values["models"]) == names and all(tensor["role"] in ROLES for tensor in values["tensors"])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"something is missing in it or of another kind ({error})") from error
    if not fits:
        raise ValueError("its parts are not of the same agents, figures and bins")
    return values


def _fits(part: Mapping[str, Any], names: Sequence[str], epsilons: int) -> bool:
    pairs = [[first, second] for index, first in enumerate(names) for second in names[index + 1 :]]
    return (
        [agent["name"] for agent in part["agents"]] == list(names)
        and [pair["agents"] for pair in part["pairs"]] == pairs
        and all(
            len(agent["shared_with"]) == len(names)
            and len(agent["by_epsilon"]) == epsilons
            and (len(agent["exponents"]), len(agent["ulps"])) == (EXPONENT_BINS, ULP_BINS)
            and tuple(agent["fates"]) == MERGES
            and all(tuple(figures["lambdas"]) == tuple(RESCALINGS) for figures in (agent, *agent["by_epsilon"]))
            for agent in part["agents"]
        )
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


# --- from counts ------------------------------------------------------------------------------------------------------


def part_of(name: str, tensors: int, tally: Tally, agents: Sequence[str], epsilons: Sequence[float]) -> Part:
    """The figures of a tally."""
    n = len(agents)
    return Part(
        name=name,
        tensors=tensors,
        elements=tally.elements,
        agents=tuple(_agent(agents[t], t, tally, epsilons) for t in range(n)),
        pairs=tuple(_pair(s, t, tally, agents) for s in range(n) for t in range(s + 1, n)),
    )


def _agent(name: str, t: int, tally: Tally, epsilons: Sequence[float]) -> AgentPart:
    shared = tuple(tally.shared[t].tolist())
    counts = AgentCounts(tally.elements, sum(shared), shared[0])
    changed = tally.elements - int(tally.exponents[t, 0])
    sums = tally.sums
    return AgentPart(
        name=name,
        active=counts.active,
        density=counts.density,
        changed=changed,
        changed_share=_share(changed, tally.elements),
        shared_with=shared,
        unique_share=_share(counts.unique, counts.active),
        rho=counts.rho,
        lambdas=_lambdas(counts),
        norm=math.sqrt(sums["dots"][t, t]),
        mean_magnitude=_share(sums["total"][t], changed),
        by_epsilon=tuple(
            _at(epsilon, AgentCounts(tally.elements, int(active), int(unique)))
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


def _at(epsilon: float, counts: AgentCounts) -> AtEpsilon:
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
    return {
        label: METHODS[method].parameters(**complete(METHODS[method], preset, {})).rescaling(counts)
        for label, (method, preset) in RESCALINGS.items()
    }


def _pair(s: int, t: int, tally: Tally, agents: Sequence[str]) -> Pair:
    both, first, second = (int(tally.both[pair]) for pair in ((s, t), (s, s), (t, t)))
    sums = tally.sums
    norms = math.sqrt(sums["dots"][s, s]) * math.sqrt(sums["dots"][t, t])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = float(sums["moved"][s, t] / sums["moved"][t, s])
    return Pair(
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
