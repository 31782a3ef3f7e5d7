"""Which merge to try first, from what `analyze` counts, with the evidence of the lab (docs/findings-recommend.md).

The rule is deliberately small. Agents are in one of five situations, by their kind, number, densities and angles; for
each, the lab says which method with fixed parameters to take, what it scored on real and on tiny agents, and how often
that was wrong on another training. Sparse agents trained by RL and by SFT want different methods: RL is assumed, and
users may say otherwise. Where tiny agents prefer another one, that is named, too. `lab/advice.py` states the rule, and
writes `advice.json` from kept results with the function `situation` below.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, overload

from ramerge import Options, PlanError, Recipe, RecipeError
from ramerge.analysis.analyze import analyze
from ramerge.analysis.results import Analysis
from ramerge.sdk.flags import words_of
from ramerge.sdk.machine import check_options
from ramerge.sdk.methods import GUIDE, METHODS, listed
from ramerge.sdk.passes import AboutMethod
from ramerge.sdk.plans import FEATURES
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import AUTO, DEFAULT_METHOD, AnyRecipe, Document, check, for_method, note_unused, open_recipe
from ramerge.sdk.text import Displayed, dumped, enumerated

ADAPTERS, COPIES, DENSE, PAIR, SPARSE = "adapters", "copies", "dense", "pair", "sparse"
TRAINED_BY = {"rl": "RL", "sft": "SFT"}
"""How agents can have been trained, as users say it."""
TrainedBy = Literal["rl", "sft"]
DEFAULT_TRAINING: TrainedBy = "rl"
PAGE, REAL = "docs/findings-recommend.md", "docs/findings-real-agents.md"
_COPIES_FROM = 0.9
"""Two task vectors of a greater cosine are counted as copies of one agent, or of one training."""
_DENSE_FROM = 0.5
_NEAR = 0.1
"""A density as near as this to the limit belongs to both sides."""
_UNALIKE = 0.8
"""The agents of the lab that are no copies of each other have cosines below this."""
_ERASED_FROM = 0.2
_OPTIONS = Options()
_UNUSED = ("method", "parameters", "preset", "rounding_seed", "companions", "shard_size", "importance", "inputs")
_DEFAULT: dict[str, Any] = {"method": DEFAULT_METHOD, "parameters": {}}
_BY_PROMPTS: tuple[dict[str, Any], ...] = (
    {"method": "task_arithmetic", "parameters": {}},
    {"method": DEFAULT_METHOD, "parameters": {}},
    {"method": "regmean", "parameters": {}},
)
"""The merges that prompts compare with the one that the weights suggest."""

_MEASURED_BY = {ADAPTERS: "sft", COPIES: "rl", PAIR: "rl"}
"""Situations in which agents of one training only were measured."""
_IN_BFLOAT16 = (PAIR, SPARSE)
"""Situations in which agents in bfloat16 only were measured."""
_SPEAKS = {"for": "Better", "against": "Worse", "neither": "Inconclusive"}
LOW, MEDIUM, HIGH = "low", "medium", "high"
_WORDS = {
    ADAPTERS: "all agents are LoRA adapters",
    COPIES: "two agents are nearly the same",
    DENSE: "the agents are dense",
    PAIR: "there are two agents, and they are sparse",
    SPARSE: "the agents are sparse",
}


@dataclass(frozen=True, repr=False)
class Recommendation(Displayed):
    """The merge to try first, and why.

    Attributes:
        situation: `copies`, `adapters`, `dense`, `pair` (two sparse agents) or `sparse` (more of them).
        method, parameters: as in a recipe.
        rounding: `stochastic` where rounding to nearest would erase much; None where the recipe's is as good.
        compare: methods to compare with.
        also: further merges to compare with, each a method and parameters: what tiny agents prefer, and what would be
            named for agents that were trained in another way.
        confidence: `low`, `medium` or `high`.
        check: how often the choice held on a training that it had not seen, or that nothing was measured.
        reasons: from the counts, and what else would be named.
        evidence: sentences, from the lab, about real agents and tiny ones.
        unknown: sentences about what the evidence does not say.
        masses: of each merge that was compared on the recipe's prompts, the best first, its mean mass (how likely it is
            to give the agents' right replies, from 0 to 1); empty without prompts.
        behind: the 95 % intervals of the others' differences to the best, as in `Ranking`.
        notes: what is to be known of prompts and replies.

    Example:
        >>> found = ramerge.recommend("recipe.yaml")
        >>> ramerge.merge(found.applied("recipe.yaml"), "merged").method == found.method
        True
    """

    situation: str
    method: str
    parameters: dict[str, Any]
    rounding: str | None
    compare: tuple[str, ...]
    also: tuple[dict[str, Any], ...]
    confidence: str
    check: str
    reasons: tuple[str, ...]
    evidence: tuple[str, ...]
    unknown: tuple[str, ...]
    masses: Mapping[str, float] = field(default_factory=dict)
    behind: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _summary(self) -> Mapping[str, object]:
        figures = {"method": self.method, "parameters": self.parameters, "rounding": self.rounding}
        stated = {name: value for name, value in figures.items() if value}
        return {**stated, "situation": self.situation, "confidence": self.confidence}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        return [{"merge": name, "mean": mean} for name, mean in self.masses.items()] or [self._summary()]

    def applied(self, recipe: AnyRecipe) -> Recipe:
        """A recipe with this method, parameters and rounding in place of its own, for `merge`, `plan` or `search`.

        Raises:
            RecipeError: the recipe cannot be read.
        """
        document = open_recipe(recipe)
        return check(
            for_method(document, self.method).with_values({"rounding": self.rounding, "parameters": self.parameters})
        )

    def to_dict(self) -> dict[str, Any]:
        """The recommendation as plain values."""
        return asdict(self)

    def to_json(self) -> str:
        """The recommendation as `recommend --json` prints it."""
        return dumped(self.to_dict())


def situation(densities: Iterable[float], cosines: Iterable[float], *, adapters: bool = False) -> str:
    """Which of the five situations of the lab agents are in; `adapters` is whether all are LoRA adapters."""
    shares = list(densities)
    if max(cosines, default=0.0) > _COPIES_FROM:
        return COPIES
    if adapters:
        return ADAPTERS
    if shares and sum(shares) / len(shares) >= _DENSE_FROM:
        return DENSE
    return PAIR if len(shares) == 2 else SPARSE


def when_trained(situation: str, trained_by: str) -> str:
    """The name in `advice.json` of a situation of agents that were trained in one way."""
    return f"{situation}, {trained_by}"


@overload
def recommend(source: Analysis, *, trained_by: TrainedBy = DEFAULT_TRAINING) -> Recommendation: ...
@overload
def recommend(
    source: AnyRecipe,
    *,
    trained_by: TrainedBy = DEFAULT_TRAINING,
    options: Options = _OPTIONS,
    on_progress: Listener | None = None,
) -> Recommendation: ...
def recommend(
    source: Analysis | AnyRecipe,
    *,
    trained_by: TrainedBy = DEFAULT_TRAINING,
    options: Options = _OPTIONS,
    on_progress: Listener | None = None,
) -> Recommendation:
    """Recommend what to try first with the agents of an analysis, or of a recipe, which is analyzed first.

    Where the recipe has prompts, they choose between what the weights suggest, the plain sum and `regmean`; see `rank`.

    Args:
        source: an analysis, or a recipe as for `analyze`.
        trained_by: how all agents were trained, `rl` or `sft`, which the weights do not tell. It makes a difference for
            three or more sparse agents.
        options, on_progress: of the analysis, as for `analyze`.

    Raises:
        PlanError: there is only one agent, or none moved anything.
        RecipeError: `trained_by` is something else.
        RamergeError: the recipe cannot be analyzed; see `analyze`.

    Example:
        >>> ramerge.recommend({"base": "base", "agents": {"code": "coder", "tool": "tool"}}).situation
        'pair'
    """
    check_options(options)
    if trained_by not in TRAINED_BY:
        raise RecipeError(f"trained_by {trained_by!r}: must be one of {', '.join(TRAINED_BY)}")
    if isinstance(source, Analysis):
        return _by_weights(source, trained_by)
    document = open_recipe(source, options)
    check_prompts(document, options)
    analysis = analyze(source, options=options, on_progress=on_progress)
    return of_recipe(analysis, document, trained_by, options, on_progress)


def of_recipe(
    analysis: Analysis, document: Document, trained_by: TrainedBy, options: Options, on_progress: Listener | None
) -> Recommendation:
    """The recommendation for the agents of a recipe that was analyzed, by its prompts if it has any."""
    found = _by_weights(analysis, trained_by)
    if document.stated("prompts"):
        found = by_prompts(found, document, options, on_progress)
    stated = document.without("method") if document.method == AUTO else document
    return replace(found, notes=(*note_unused(stated, _UNUSED, "recommend"), *found.notes))


def _by_weights(analysis: Analysis, trained_by: TrainedBy) -> Recommendation:
    agents = analysis.model.agents
    if len(agents) < 2:
        raise PlanError(["recommend: there is one agent only, so there is nothing to merge; name at least two agents"])
    densities = {agent.name: agent.density for agent in agents}
    if not any(densities.values()):
        raise PlanError(["recommend: no agent moved any element of the base, so there is nothing to merge"])
    cosines = [pair.cosine for pair in analysis.model.pairs]
    found = situation(densities.values(), cosines, adapters=set(analysis.adapters) >= densities.keys())
    mean = sum(densities.values()) / len(densities)
    advice = json.loads(files("ramerge.analysis").joinpath("advice.json").read_text(encoding="utf-8"))
    by_training = {way: advice["situations"].get(when_trained(found, way)) for way in TRAINED_BY}
    known = by_training[trained_by] or advice["situations"].get(found)
    chosen = known or _DEFAULT
    also = _also(known, by_training) if known else ()
    usual = [name for name, method in listed().items() if method.compared]
    compare = tuple(
        name for name in dict.fromkeys([*usual, *(one["method"] for one in also)]) if name != chosen["method"]
    )
    grounds = "densities " + ", ".join(f"{name} {value:.1%}" for name, value in densities.items())
    if found == COPIES:
        pair = max(analysis.model.pairs, key=lambda one: one.cosine)
        grounds = f"the cosine of {' and '.join(pair.agents)} is {pair.cosine:.2f}"
    check = "not measured"
    if known and known["trainings"]:
        held = known["trainings"] - known["errors"]
        near = f"within {advice['margin']:g} point of the best in {held} of {known['trainings']} trainings"
        check = f"leave-one-out check on {known['deciding']} agents: the choice was {near}"
    erased = max((float(values["erased_share"] or 0) for values in analysis.rounding.values()), default=0.0)
    lost = f"rounding to {analysis.dtype} would erase up to {erased:.0%} of an agent's updates"
    can_draw = analysis.recipe.get("dtype") != "like base"  # codes are rounded to nearest only
    cure = "round stochastically, or write float32" if can_draw else "write float32"
    why = f"in a {analysis.method} merge, {lost}: {cure} ({GUIDE})"
    # agents of another kind than whole checkpoints in bfloat16
    kinds = {name: analysis.input_dtypes.get(name, "") for name in analysis.agents}
    kinds |= dict.fromkeys(analysis.adapters, "a LoRA adapter")
    others = [f"{name} is {kind}" for name, kind in kinds.items() if kind.startswith(("a LoRA", "float32", "float64"))]
    unlike = others if found in _IN_BFLOAT16 else []
    return Recommendation(
        situation=found,
        method=chosen["method"],
        parameters=dict(chosen["parameters"]),
        rounding="stochastic" if erased >= _ERASED_FROM and can_draw else None,
        compare=compare,
        also=also,
        confidence=LOW if unlike else _confidence(known),
        check=check,
        reasons=(
            f"{_WORDS[found]} ({grounds})",
            *([f"what was measured are agents in bfloat16, and {enumerated(unlike)}"] if unlike else []),
            *_if_trained_otherwise(trained_by, by_training),
            *([why] if erased >= _ERASED_FROM else []),
        ),
        evidence=tuple(_evidence(known, advice)) if known else (),
        unknown=tuple(_unknown(analysis, found, trained_by, mean, known, advice)),
    )


def check_prompts(recipe: Document, options: Options = _OPTIONS) -> None:
    """Check a recipe's prompts, if it has any, before weights are read, which takes long.

    Raises:
        RamergeError: as for `rank`, as far as headers, configuration and prompts show.
    """
    if recipe.stated("prompts"):
        FEATURES["rank"](recipe, {}, options=options)


def by_prompts(
    by_weights: Recommendation, recipe: Document, options: Options = _OPTIONS, on_progress: Listener | None = None
) -> Recommendation:
    """The best of a few merges by mass on the recipe's prompts, in place of what the weights suggest.

    Raises:
        RamergeError: as for `rank`.
    """
    suggested = {"method": by_weights.method, "parameters": by_weights.parameters}
    candidates = {_merge(one): one for one in (suggested, *_BY_PROMPTS)}
    ranking = FEATURES["rank"](recipe, candidates, options=options, on_progress=on_progress)
    (best, value), *others = ranking.means.items()
    count = sum(ranking.replies.values())
    apart = {  # from the best
        name: "" if interval is None else f" ({interval[0]:+.3f} to {interval[1]:+.3f} apart, 95 %)"
        for name, interval in ranking.behind.items()
    }
    against = " and ".join(f"{other:.3f}{apart[name]} for `{name}`" for name, other in others)
    level = [name for name, interval in ranking.behind.items() if interval is None or interval[1] >= 0]
    named = enumerated([f"`{name}`" for name in level])
    unsure = (
        f"; {named} {'is' if len(level) == 1 else 'are'} statistically tied with it; more prompts may separate them"
        if level
        else ""
    )
    which = "right replies" if ranking.rewarded else "replies"
    return replace(
        by_weights,
        method=candidates[best]["method"],
        parameters=dict(candidates[best]["parameters"]),
        confidence=MEDIUM,
        check="mass compares with the agents, and there were few candidates",
        reasons=(
            f"its mass is {value:.3f}, against {against}: how likely it is to give the agents' {count:,} {which} to "
            f"your prompts{unsure}",
            f"by weights alone: `{_merge(suggested)}`",
        ),
        masses=ranking.means,
        behind=ranking.behind,
        notes=ranking.notes,
    )


def _also(known: dict[str, Any], by_training: Mapping[str, dict[str, Any] | None]) -> tuple[dict[str, Any], ...]:
    """Preferences of tiny agents, and the advice for either training, where that is another merge."""
    others = [*([known["best"]] if known["divided"] else []), *filter(None, by_training.values())]
    merges = [{"method": one["method"], "parameters": one["parameters"]} for one in others]
    return tuple({_merge(one): one for one in merges if _merge(one) != _merge(known)}.values())


def _if_trained_otherwise(trained_by: str, by_training: Mapping[str, dict[str, object] | None]) -> Iterable[str]:
    """How the agents were trained, where that makes a difference, and what is named if that is wrong."""
    if by_training[trained_by] is not None:
        others = {way: known for way, known in by_training.items() if known and way != trained_by}
        named = ", ".join(f"--trained-by {way} names `{_merge(known)}`" for way, known in others.items())
        yield f"trained by {TRAINED_BY[trained_by]}{f' ({named})' if named else ''}"


def _merge(known: Mapping[str, Any]) -> str:
    """A recommended method with its parameters, in a sentence."""
    return " ".join((known["method"], *_assigned(known["parameters"])))


def warnings_for(analysis: Analysis, method: str) -> tuple[str, ...]:
    """The warnings of an analysis that concern the method that is recommended.

    Those about another method do not help who is to leave it, and where to begin is what the recommendation says.
    """
    return tuple(
        text
        for text in analysis.warnings
        if not isinstance(text, AboutMethod) or (method == analysis.method and not text.says_where_to_begin)
    )


def _confidence(known: dict[str, Any] | None) -> str:
    """The confidence: low without real agents, or if over a third of trainings failed; high with nothing against it."""
    if known is None or known["real"] is None or 3 * known["errors"] > known["trainings"]:
        return LOW
    return HIGH if known["real"]["speaks"] == "for" and not known["divided"] and not known["errors"] else MEDIUM


def _evidence(known: dict[str, Any], advice: dict[str, Any]) -> Iterable[str]:
    own, best = _merge(known), _merge(known["best"])
    if real := known["real"]:
        scores, rival = real["scores"], real["rival"]
        speaks = _SPEAKS[real["speaks"]]
        yield f"{speaks} on real agents: {scores[own]:.1f} %, against {scores[rival]:.1f} % for `{rival}`."
        value, low, high = real["difference"]
        yield f"On the trainings that have both, the difference is {value:+.1f} points ({low:+.1f} to {high:+.1f})."
        weakest, winner, behind = real["weakest"]
        if winner != own:
            yield f"Its weakest real agents: {weakest}, {-behind:.1f} points behind `{winner}`."
        agents = f"{real['model']}: {'; '.join(real['agents'])}; {real['trainings']} trainings"
        yield f"Real agents: {agents}, which is little."
    if known["divided"]:
        points = known["highest"] - known["mean"]
        text = f"Evidence conflicts: `{best}` scored {points:.1f} points higher on tiny agents."
        yield f"{text} Include it in your comparison."
    others = {"ram+": known["ram+"], best: known["highest"]}
    scores = " and ".join(f"{score:.1f} % for `{name}`" for name, score in others.items() if name != own)
    yield f"On tiny agents: {known['mean']:.1f} %{f', against {scores}' if scores else ''}."
    weakest, behind = known["weakest"]
    if behind < -advice["margin"]:
        yield f"Its weakest tiny agents: {weakest}, {-behind:.1f} points behind the best."
    yield f"Tiny agents: {'; '.join(known['agents'])}; {known['seeds']} trainings of each."
    yield f"Tables: {PAGE}{f', {REAL}' if known['real'] else ''}"


def _assigned(parameters: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in parameters.items()]


def _unknown(
    analysis: Analysis,
    found: str,
    trained_by: str,
    mean: float,
    known: dict[str, Any] | None,
    advice: dict[str, Any],
) -> Iterable[str]:
    if known is None:
        yield "the lab has no measurements of this situation; RAM+ is the default, and not a finding"
        return
    yield (
        f"the tiny agents have {advice['parameters']:,} parameters and short tasks; whether what they say holds for "
        f"models of {analysis.model.elements:,} was not measured"
    )
    if (measured := _MEASURED_BY.get(found, trained_by)) != trained_by:
        yield (
            f"only agents trained by {TRAINED_BY[measured]} were measured in this situation, so nothing is known of "
            f"those trained by {TRAINED_BY[trained_by]}"
        )
    if found != COPIES and abs(mean - _DENSE_FROM) < _NEAR:
        yield f"a mean density of {mean:.0%} is near the limit of {_DENSE_FROM:.0%} between sparse and dense"
    cosine = max(pair.cosine for pair in analysis.model.pairs)
    if found != COPIES and cosine > _UNALIKE:
        yield f"two agents have a cosine of {cosine:.2f}; only lower ones, and copies, were measured"
    most = max(known["counts"])
    if len(analysis.model.agents) > most:
        yield f"merges of {len(analysis.model.agents)} agents were not measured in this situation, only of up to {most}"
    if found == DENSE and not analysis.adapters:
        yield (
            "if these agents are LoRA adapters that were merged into the base, name the adapters: for them other rules "
            "were the best"
        )


def summary(
    found: Recommendation,
    recipe: Document,
    more: Sequence[str] = (),
    *,
    start: Path,
    evidence: bool = False,
) -> list[str]:
    """The lines of a recommendation: command, reason, how sure it is, what to compare with; if asked, the evidence.

    Args:
        found: what is recommended.
        recipe: its agents, in ramerge's own form; commands say what it says, but for what may fit no other method.
        more: words of all commands.
        start: paths in this folder are given relative to it.
        evidence: whether the evidence, and what is not known, follows.
    """
    rounded, needs_prompts = recipe.with_values({"rounding": found.rounding}), METHODS[found.method].side is not None
    words = [*words_of(rounded, method=False, prompts=needs_prompts, start=start), *more, "--method", found.method]
    words += [word for one in _assigned(found.parameters) for word in ("--set", f"parameters.{one}")]
    plain, inputs = ([*words_of(recipe, method=False, prompts=each, start=start), *more] for each in (False, True))
    lines = [
        f"try first: ramerge merge {shlex.join(words)} OUT",
        f"why: {'; '.join(found.reasons)}",
        f"confidence: {found.confidence}; {found.check}",
    ]
    if found.masses:
        lines.append(f"compare: ramerge search {shlex.join(inputs)} SEARCH")
    else:
        prompts = " ".join(f"--prompts {shlex.quote(f'{name}=FILE')}" for name in recipe.agents)
        better = "a few prompts of each agent's task choose better than weights, and need no labels"
        lines.append(f"better: ramerge search {shlex.join(plain)} {prompts} SEARCH ({better})")
        lines.append(f"compare: {_comparison(found, plain)}")
    if evidence:
        lines += [f"evidence: {text}" for text in found.evidence]
        lines += [f"not known: {text}" for text in found.unknown]
    return lines


def _comparison(found: Recommendation, inputs: Sequence[str]) -> str:
    """The search that compares the recommendation with other values of its parameters and with other methods."""
    words = [*inputs, "SEARCH", "--vary", f"method={','.join((found.method, *found.compare))}"]
    words += ["--vary", f"rounding={found.rounding}"] if found.rounding else []
    varied: dict[str, dict[str, None]] = {}
    for merge in ({"method": found.method, "parameters": found.parameters}, *found.also):
        fields = METHODS[merge["method"]].parameters.model_fields
        for name, value in merge["parameters"].items():
            varied[name] = dict.fromkeys(map(str, (*varied.get(name, {}), value, fields[name].default)))
    for name, values in varied.items():
        words += ["--vary", f"parameters.{name}={','.join(values)}"]
    return f"ramerge search {shlex.join(words)} --score FILE.py:FUNCTION"
