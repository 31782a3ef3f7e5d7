"""Which merge to try first, from what `analyze` counts, with the evidence of the lab (docs/findings.md).

The rule is deliberately small. Agents are in one of four situations, by their number, densities and angles; for each,
the lab says which method with fixed parameters to take, what it scored on tiny agents, how often that was wrong on
other seeds, and what real agents say. `lab/advice.py` states the rule, and writes `advice.json` from kept results with
the function `situation` below.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

from ramerge.analysis.results import Analysis
from ramerge.analysis.run import analyze
from ramerge.engine.warn import AboutMethod
from ramerge.foundation.errors import PlanError
from ramerge.foundation.jsontext import dumped
from ramerge.methods.moved import ORDERED
from ramerge.methods.table import METHODS
from ramerge.planning.inputs import tensors_of_base
from ramerge.recipe.document import Document
from ramerge.recipe.read import AnyRecipe, open_recipe

COPIES, DENSE, PAIR, SPARSE = "copies", "dense", "pair", "sparse"
PAGE = "docs/findings.md"
_COPIES_FROM = 0.9
"""Two task vectors of a greater cosine are counted as copies of one agent, or of one training."""
_DENSE_FROM = 0.5
_NEAR = 0.1
"""A density as near as this to the limit belongs to both sides."""
_UNALIKE = 0.1
"""The agents of the lab that are no copies of each other have cosines below this."""
_ERASED_FROM = 0.2
_DEFAULT: dict[str, Any] = {"method": "ram+", "parameters": {}}

_SECTION = '"What recommend says"'
_SECTIONS = f'{_SECTION} and "On the real agents"'
_TIMES = {1: "once", 2: "twice"}
_SPEAKS = {"for": "for it", "against": "against it", "neither": "neither for nor against it"}
_WORDS = {
    COPIES: "two agents are nearly the same",
    DENSE: "most elements of the model moved",
    PAIR: "there are two agents, and most elements of the model did not move",
    SPARSE: "most elements of the model did not move",
}


@dataclass(frozen=True)
class Recommendation:
    """What to try first, and why.

    Attributes:
        situation: `copies`, `dense`, `pair` (two sparse agents) or `sparse` (more of them).
        method, parameters: as in a recipe.
        rounding: `stochastic` where rounding to nearest would erase much; None where the recipe's is as good.
        compare: methods to compare with.
        reasons: sentences, from the counts.
        evidence: sentences, from the lab, about tiny agents.
        check: how often the choice was wrong there, on a training that it had not seen; None without evidence.
        real: a word, `for`, `against` or `neither`, and a sentence: what real agents say of it; None without any.
        tables: where the figures of the evidence stand; empty without evidence.
        unknown: sentences about what the evidence does not say.
    """

    situation: str
    method: str
    parameters: dict[str, Any]
    rounding: str | None
    compare: tuple[str, ...]
    reasons: tuple[str, ...]
    evidence: tuple[str, ...]
    check: str | None
    real: tuple[str, str] | None
    tables: str
    unknown: tuple[str, ...]

    def applied(self, recipe: AnyRecipe) -> Document:
        """A recipe with this method, parameters and rounding in place of its own, for `merge`, `plan` or `search`.

        Raises:
            RecipeError: the recipe cannot be read.
        """
        document = open_recipe(recipe, {}, tensors_of_base)
        own = {key: value for key, value in document.values.items() if key not in ("parameters", "preset")}
        kept = replace(document, values=own)
        return kept.with_values({"method": self.method, "parameters": self.parameters, "rounding": self.rounding})

    def to_json(self) -> str:
        """The text of `--json`."""
        return dumped(asdict(self))


def situation(densities: Iterable[float], cosines: Iterable[float]) -> str:
    """Which of the four situations agents are in.

    Args:
        densities: of the agents' task vectors, 0 to 1.
        cosines: between pairs of them.
    """
    known = list(densities)
    if max(cosines, default=0.0) > _COPIES_FROM:
        return COPIES
    if known and sum(known) / len(known) >= _DENSE_FROM:
        return DENSE
    return PAIR if len(known) == 2 else SPARSE


def recommend(analysis: Analysis | AnyRecipe) -> Recommendation:
    """What to try first with the agents of an analysis, or of a recipe, which is analysed first.

    Raises:
        PlanError: there is only one agent.
        RamergeError: the recipe cannot be analysed; see `analyze`.
    """
    if not isinstance(analysis, Analysis):
        analysis = analyze(analysis)
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
        check=_check(known, advice) if known else None,
        real=_real(known) if known and known["real"] else None,
        tables=f"{PAGE}, {_SECTIONS if known['real'] else _SECTION}" if known else "",
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
    return "stochastic", [f"in a {analysis.method} merge, {lost}: round stochastically, or write float32 ({ORDERED})"]


def warnings_for(analysis: Analysis, method: str) -> tuple[str, ...]:
    """The warnings of an analysis that concern a method; those about another method do not help who is to leave it."""
    return tuple(text for text in analysis.warnings if method == analysis.method or not isinstance(text, AboutMethod))


def _evidence(known: dict[str, Any], advice: dict[str, Any]) -> tuple[str, ...]:
    margin = advice["margin"]
    level = abs(known["mean"] - known["ram+"]) < margin and (known["method"], known["parameters"]) != ("ram+", {})
    return (
        *(_scored(one, known) for one in known["settings"]),
        *([f"less than {margin:g} point counts as no difference: on tiny agents RAM+ is as good"] if level else []),
    )


def _check(known: dict[str, Any], advice: dict[str, Any]) -> str:
    """How often the choice was wrong on a training that it had not seen."""
    margin, seeds = advice["margin"], known["seeds"]
    return (
        f"one training was left out and the choice made again, {seeds} times; in {known['errors']} of {seeds} it was "
        f"more than {margin:g} point behind the best ({known['regret']:.1f} points on average)"
    )


def _scored(setting: dict[str, Any], known: dict[str, Any]) -> str:
    """What one setting says."""
    own = " ".join((known["method"], *_assigned(known["parameters"])))
    best = "" if known["best"] == own else f", the best of all ({known['best']}) {setting['best']:.1f} %"
    return (
        f"{setting['agents']} tiny agents ({setting['kind']}), output in {setting['output']}, {known['seeds']} "
        f"trainings: this {setting['mean']:.1f} %, RAM+ {setting['ram+']:.1f} %{best}"
    )


def _real(known: dict[str, Any]) -> tuple[str, str]:
    """Whether real agents speak for or against it, and what they scored."""
    real = known["real"]
    scores = real["scores"]
    value, low, high = real["difference"]
    own = "this" if real["same"] else f"{real['advised']} with its defaults"
    others = [f"{name} {scores[name]:.1f} %" for name in dict.fromkeys((real["rival"], "ram+")) if name in scores]
    untold = "" if real["same"] else "; with the parameters above it was not measured there"
    return real["speaks"], (
        f"on {real['agents']} real agents ({real['model']}, RL, agents and output in {real['dtype']}) {own} scored "
        f"{scores[real['advised']]:.1f} %, {', '.join(others if real['advised'] != 'ram+' else others[:1])}: "
        f"{value:+.1f} points to {real['rival']}, from {low:+.1f} to {high:+.1f}{untold}. Each was trained "
        f"{_TIMES.get(real['trainings'], str(real['trainings']) + ' times')}, so this is little evidence"
    )


def _assigned(parameters: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in parameters.items()]


def _unknown(
    analysis: Analysis, found: str, mean: float, known: dict[str, Any] | None, advice: dict[str, Any]
) -> Iterable[str]:
    if known is None:
        yield "the lab has no measurements of this situation; RAM+ is the default, and not a finding"
        return
    yield (
        f"the tiny agents have {advice['parameters']:,} parameters and short tasks; whether what they say holds for "
        f"models of {analysis.model.elements:,} was not measured"
    )
    if found != COPIES and abs(mean - _DENSE_FROM) < _NEAR:
        yield f"a mean density of {mean:.0%} is near the limit of {_DENSE_FROM:.0%} between sparse and dense"
    cosine = max(pair.cosine for pair in analysis.model.pairs)
    if found != COPIES and cosine > _UNALIKE:
        yield f"two agents have a cosine of {cosine:.2f}; only agents with cosines near 0, and copies, were measured"
    measured = sorted({one["agents"] for one in known["settings"]})
    if len(analysis.model.agents) not in measured:
        counts = " and ".join(map(str, measured))
        yield f"merges of {len(analysis.model.agents)} agents were not measured in this situation, only of {counts}"


def summary(
    found: Recommendation, inputs: Sequence[str], left_out: Sequence[str] = (), recipe: str | None = None
) -> list[str]:
    """Lines of text.

    Args:
        found: the recommendation.
        inputs: the words of a command that name the recipe, or base and agents.
        left_out: keys of the recipe that these words leave out.
        recipe: the recipe's file, if a search can take it as it is.
    """
    words = [*inputs, "--method", found.method]
    for assigned in _assigned(found.parameters):
        words += ["--set", f"parameters.{assigned}"]
    if found.rounding:
        words += ["--rounding", found.rounding]
    return [
        f"try first: ramerge merge {shlex.join(words)} OUT",
        *([f"left out of the recipe: {', '.join(left_out)}"] if left_out else []),
        *(f"why: {reason}" for reason in found.reasons),
        *([f"{_SPEAKS[found.real[0]]}: {found.real[1]}"] if found.real else []),
        *(f"evidence: {text}" for text in found.evidence),
        *([f"check: {found.check}"] if found.check else []),
        *([f"tables: {found.tables}"] if found.tables else []),
        *(f"not known: {text}" for text in found.unknown),
        f"then compare with {' and '.join(found.compare)} on your own tasks: {_comparison(found, recipe)}",
    ]


def _comparison(found: Recommendation, recipe: str | None) -> str:
    """The search that compares what was found, with its parameters and without, with other methods."""
    if recipe is None:
        return "ramerge search needs a recipe file that names these agents (docs/guides/search.md shows one)"
    words = [recipe, "SEARCH", "--vary", f"method={','.join((found.method, *found.compare))}"]
    words += ["--vary", f"rounding={found.rounding}"] if found.rounding else []
    fields = METHODS[found.method].parameters.model_fields
    for name, value in found.parameters.items():
        words += ["--vary", f"parameters.{name}={value},{fields[name].default}"]
    return f"ramerge search {shlex.join(words)} --score FILE.py:FUNCTION"
