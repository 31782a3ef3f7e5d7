"""Which merge to try first, from what `analyze` counts, with the evidence of the lab (docs/findings.md).

The rule is deliberately small. Agents are in one of three situations, by their densities and angles; for each, the lab
says which method with fixed parameters was best on tiny agents of other seeds, and how often that was wrong.
`lab/advice.py` writes `advice.json` from kept results with the function `situation` below.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from ramerge.analysis.results import Analysis
from ramerge.foundation.errors import PlanError
from ramerge.foundation.jsontext import dumped

COPIES, DENSE, SPARSE = "copies", "dense", "sparse"
_COPIES_FROM = 0.9
"""Two task vectors of a greater cosine are counted as copies of one agent, or of one training."""
_DENSE_FROM = 0.5
_NEAR = 0.1
"""A density as near as this to the limit belongs to both sides."""
_ERASED_FROM = 0.2
_DEFAULT: dict[str, Any] = {"method": "ram+", "parameters": {}}

_WORDS = {
    COPIES: "two agents are nearly the same",
    DENSE: "most elements of the model moved",
    SPARSE: "most elements of the model did not move",
}


@dataclass(frozen=True)
class Recommendation:
    """What to try first, and why.

    Attributes:
        situation: `copies`, `dense` or `sparse`.
        method, parameters: as in a recipe.
        rounding: `stochastic` where rounding to nearest would erase much; None where the recipe's is as good.
        compare: methods to compare with.
        reasons: sentences, from the counts.
        evidence: sentences, from the lab.
        unknown: sentences about what the evidence does not say.
    """

    situation: str
    method: str
    parameters: dict[str, Any]
    rounding: str | None
    compare: tuple[str, ...]
    reasons: tuple[str, ...]
    evidence: tuple[str, ...]
    unknown: tuple[str, ...]

    def to_json(self) -> str:
        """The text of `--json`."""
        return dumped(asdict(self))


def situation(densities: Iterable[float], cosines: Iterable[float]) -> str:
    """Which of the three situations agents are in.

    Args:
        densities: of the agents' task vectors, 0 to 1.
        cosines: between pairs of them.
    """
    known = list(densities)
    if max(cosines, default=0.0) > _COPIES_FROM:
        return COPIES
    return DENSE if known and sum(known) / len(known) >= _DENSE_FROM else SPARSE


def recommend(analysis: Analysis) -> Recommendation:
    """What to try first with the agents of an analysis.

    Raises:
        PlanError: there is only one agent.
    """
    agents = analysis.model.agents
    if len(agents) < 2:
        raise PlanError(["recommend: there is one agent only, so there is nothing to merge; name at least two agents"])
    densities = {agent.name: agent.density for agent in agents}
    found = situation(densities.values(), [pair.cosine for pair in analysis.model.pairs])
    mean = sum(densities.values()) / len(densities)
    advice = json.loads(files("ramerge.analysis").joinpath("advice.json").read_text(encoding="utf-8"))
    known = advice["situations"].get(found)
    chosen = known or _DEFAULT
    rounding, why = _rounding(analysis)
    return Recommendation(
        situation=found,
        method=chosen["method"],
        parameters=dict(chosen["parameters"]),
        rounding=rounding,
        compare=tuple(name for name in ("ram+", "task_arithmetic", "ties") if name != chosen["method"]),
        reasons=(f"{_WORDS[found]}: {_told(densities, analysis, found)}", *why),
        evidence=_evidence(known, advice) if known else (),
        unknown=tuple(_unknown(analysis, found, mean, known, advice)),
    )


def _told(densities: dict[str, float], analysis: Analysis, found: str) -> str:
    if found == COPIES:
        pair = max(analysis.model.pairs, key=lambda one: one.cosine)
        return f"the cosine of {' and '.join(pair.agents)} is {pair.cosine:.2f}"
    return "densities " + ", ".join(f"{name} {value:.1%}" for name, value in densities.items())


def _rounding(analysis: Analysis) -> tuple[str | None, list[str]]:
    """How to round, and why."""
    erased = [float(values["erased_share"] or 0) for values in analysis.rounding.values()]
    if not erased or max(erased) < _ERASED_FROM:
        return None, []
    lost = f"rounding to {analysis.dtype} would erase up to {max(erased):.0%} of an agent's updates"
    return "stochastic", [f"in a {analysis.method} merge, {lost}: round stochastically, or write float32"]


def _evidence(known: dict[str, Any], advice: dict[str, Any]) -> tuple[str, ...]:
    seeds, margin = known["seeds"], advice["margin"]
    level = abs(known["mean"] - known["ram+"]) < margin and (known["method"], known["parameters"]) != ("ram+", {})
    counts = " and ".join(map(str, known["agents"]))
    return (
        f"in {seeds} trainings of tiny agents, merged {counts} at a time, it had the best mean score of "
        f"{known['candidates']} candidates: {known['mean']:.1f} %, RAM+ {known['ram+']:.1f} %"
        + (f"; less than {margin:g} point counts as no difference, so RAM+ without it is as good" if level else ""),
        f"when it was chosen without one of the trainings, it was more than {margin:g} point below the best candidate "
        f"of that one in {known['errors']} of {seeds} cases, and {known['regret']:.1f} points on average",
    )


def _unknown(
    analysis: Analysis, found: str, mean: float, known: dict[str, Any] | None, advice: dict[str, Any]
) -> Iterable[str]:
    if known is None:
        yield "the lab has no measurements of this situation; RAM+ is the default, and not a finding"
        return
    yield (
        f"the evidence is from models of {advice['parameters']:,} parameters on short tasks; whether it holds for "
        f"models of {analysis.model.elements:,} was not measured"
    )
    if found != COPIES and abs(mean - _DENSE_FROM) < _NEAR:
        yield f"a mean density of {mean:.0%} is near the limit of {_DENSE_FROM:.0%} between sparse and dense"
    if len(analysis.model.agents) not in known["agents"]:
        counts = " and ".join(map(str, known["agents"]))
        yield f"merges of {len(analysis.model.agents)} agents were not measured in this situation, only of {counts}"


def summary(found: Recommendation) -> list[str]:
    """Lines of text."""
    words = [f"--method {found.method}"]
    words += [f"--set parameters.{name}={value}" for name, value in found.parameters.items()]
    if found.rounding:
        words.append(f"--rounding {found.rounding}")
    return [
        f"try first: {' '.join(words)}",
        *(f"why: {reason}" for reason in found.reasons),
        *(f"evidence: {text}" for text in found.evidence),
        *(f"not known: {text}" for text in found.unknown),
        f"then compare with {' and '.join(found.compare)} on your own tasks: ramerge search",
    ]
