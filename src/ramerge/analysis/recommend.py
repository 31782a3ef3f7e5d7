"""Recommends the merge to try first, RAM+ or what fits the kind of agents, and the search that chooses with prompts.

No method that looks only at weights is best everywhere: the best method on agents of one base was the worst on those of
another, and nothing in the weights told which (docs/findings.md). So there are four kinds of agents, each with one
method and one reason; if the recipe has prompts, they choose among a few merges.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from ramerge import Options, PlanError, Recipe
from ramerge.analysis.analyze import analyze
from ramerge.analysis.results import Analysis
from ramerge.core.engine.warn import AboutMethod
from ramerge.core.foundation.text import decimals
from ramerge.core.methods.moved import GUIDE
from ramerge.core.recipe.checks import note_unused
from ramerge.core.recipe.model import AUTO
from ramerge.core.recipe.other_method import for_method
from ramerge.sdk.methods import METHODS
from ramerge.sdk.options import check_options
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import AnyRecipe, Document, check, open_recipe, words_of
from ramerge.sdk.registry import FEATURES
from ramerge.sdk.text import Displayed, dumped, enumerated

ADAPTERS, COPIES, DENSE, SPARSE = "adapters", "copies", "dense", "sparse"
_METHODS = {
    ADAPTERS: (
        "ram+",
        "adapters move all elements of the matrices they share, which RAM+ averages: sums go far astray",
    ),
    COPIES: ("ram+", "RAM+ averages what near-copies have both moved, which a sum would count twice"),
    DENSE: ("core+", "RAM+ would average nearly all elements, and core+ gives each agent's update a weight of its own"),
    SPARSE: ("ram+", "RAM+ keeps what only one agent moved, a little enlarged, and averages what several moved"),
}
"""The method for each kind of agents, and why."""
_CHOICE = (
    "no method on weights is best everywhere: a few prompts of each agent's task choose better, and need no labels"
)
_COPIES_FROM = 0.9
"""Two task vectors with a greater cosine are near-copies: of one agent, or of one training run."""
_DENSE_FROM = 0.5
_ERASED_FROM = 0.2
_OPTIONS = Options()
_UNUSED = ("rounding_seed", "companions", "shard_size", "importance", "inputs")
_BY_PROMPTS = ("task_arithmetic", "ram+", "regmean")
"""The methods that prompts compare with the method that the weights suggest."""


@dataclass(frozen=True, repr=False)
class Recommendation(Displayed):
    """The merge to try first, why, and the search that chooses with prompts.

    Attributes:
        situation: `copies`, `adapters`, `dense` or `sparse`.
        densities: the share of all elements that each agent moved, from 0 to 1.
        dtypes: each agent's dtype of weights, by its full name.
        adapters: the agents that are LoRA adapters.
        cosine: the greatest cosine between two task vectors.
        method, parameters: as in a recipe.
        rounding: `stochastic` if rounding to nearest would erase much; None if the recipe's rounding is as good.
        rounding_loss: how much rounding would erase, and what to do; None if it is little.
        why: sentences that give the reasons for the method.
        merge: the command that merges.
        search: the command that chooses with prompts.
        masses: the mean mass of each merge that was compared on the recipe's prompts, best first: how likely it is to
            give the agents' right replies, from 0 to 1. Empty without prompts.
        behind: the 95 % interval of the difference between each other merge and the best, as in `Ranking`.
        notes: remarks on prompts and replies.

    Example:
        >>> advice = ramerge.recommend("recipe.yaml")
        >>> ramerge.merge(advice.applied("recipe.yaml"), "merged").method == advice.method
        True
    """

    situation: str
    densities: Mapping[str, float]
    dtypes: Mapping[str, str]
    adapters: tuple[str, ...]
    cosine: float
    method: str
    parameters: dict[str, Any]
    rounding: str | None
    rounding_loss: str | None
    why: tuple[str, ...]
    merge: str
    search: str
    masses: Mapping[str, float] = field(default_factory=dict)
    behind: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The lines that `recommend` prints: agents, the merge to try first, why, the rounding loss, and the search."""
        agents = (
            f"{name} moved {density:.1%} ({'LoRA, ' if name in self.adapters else ''}{self.dtypes[name]})"
            for name, density in self.densities.items()
        )
        rows = {
            "agents": (
                f"{self.situation}: {', '.join(agents)}; greatest cosine between two updates: "
                f"{decimals(self.cosine, 2)}"
            ),
            "try first": self.merge,
            "why": "; ".join(self.why),
            "rounding": self.rounding_loss,
            "search": self.search,
        }
        return [f"{name}: {text}" for name, text in rows.items() if text]

    def _summary(self) -> Mapping[str, object]:
        figures = {"method": self.method, "parameters": self.parameters, "rounding": self.rounding}
        why = {"why": self.why[0]} if self.why else {}
        return {**{name: value for name, value in figures.items() if value}, **why, "situation": self.situation}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        if self.masses:
            return [{"merge": name, "mean": mean} for name, mean in self.masses.items()]
        return [dict(zip(("what", "text"), line.split(": ", 1), strict=True)) for line in self.lines]

    def applied(self, recipe: AnyRecipe) -> Recipe:
        """Return a recipe with this method, parameters and rounding in place of its own, for `merge`, `plan` or
        `search`.

        Raises:
            RecipeError: the recipe cannot be read.
        """
        document = open_recipe(recipe)
        return check(
            for_method(document, self.method).with_values({"rounding": self.rounding, "parameters": self.parameters})
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the recommendation as plain values."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the recommendation as `recommend --json` prints it."""
        return dumped(self.to_dict())


def situation(densities: Iterable[float], cosine: float, *, adapters: bool = False) -> str:
    """Classify agents by their weights.

    Args:
        cosine: the greatest cosine between two task vectors.
    """
    shares = list(densities)
    if cosine > _COPIES_FROM:
        return COPIES
    if adapters:
        return ADAPTERS
    return DENSE if sum(shares) / len(shares) >= _DENSE_FROM else SPARSE


@overload
def recommend(source: Analysis) -> Recommendation: ...
@overload
def recommend(
    source: AnyRecipe, *, options: Options = _OPTIONS, on_progress: Listener | None = None
) -> Recommendation: ...
def recommend(
    source: Analysis | AnyRecipe, *, options: Options = _OPTIONS, on_progress: Listener | None = None
) -> Recommendation:
    """Recommend the merge to try first for the agents of an analysis, or of a recipe, which is then analyzed.

    If the recipe has prompts, they choose between the method that the weights suggest, the plain sum, RAM+ and
    `regmean`; see `rank`.

    Args:
        source: an analysis, or a recipe as for `analyze`.
        options, on_progress: as for `analyze`.

    Raises:
        PlanError: there is only one agent, or none moved anything.
        RamergeError: the recipe cannot be analyzed; see `analyze`.

    Example:
        >>> ramerge.recommend({"base": "base", "agents": {"code": "coder", "tool": "tool"}}).situation
        'sparse'
    """
    check_options(options)
    if isinstance(source, Analysis):
        return recommend_by_weights(source, open_recipe(source.recipe))
    document = open_recipe(source, options)
    check_prompts(document, options)
    advice = recommend_for_recipe(
        analyze(source, options=options, on_progress=on_progress), document, options, on_progress
    )
    is_choosing = document.method == AUTO  # the merge heeds these keys
    return advice if is_choosing else replace(advice, notes=(*notes_on_keys(document), *advice.notes))


def recommend_for_recipe(
    analysis: Analysis, document: Document, options: Options, on_progress: Listener | None
) -> Recommendation:
    """Recommend for the agents of an analyzed recipe, by its prompts if it has any."""
    advice = recommend_by_weights(analysis, document)
    return recommend_by_prompts(advice, document, options, on_progress) if document.stated("prompts") else advice


def notes_on_keys(document: Document) -> list[str]:
    """Return notes on the keys that the recipe states and a merge uses, but a recommendation ignores."""
    return note_unused(document, _UNUSED, "a recommendation")


def recommend_by_weights(analysis: Analysis, document: Document, start: Path | None = None) -> Recommendation:
    """Recommend a merge by the weights alone.

    Args:
        start: commands give paths inside this folder relative to it; default: the current folder.
    """
    densities = {agent.name: agent.density for agent in analysis.model.agents}
    if len(densities) < 2:
        raise PlanError(["recommend: there is one agent only, so there is nothing to merge; name at least two agents"])
    if not any(densities.values()):
        raise PlanError(["recommend: no agent moved any element of the base, so there is nothing to merge"])
    closest = max(analysis.model.pairs, key=lambda pair: pair.cosine)
    kind = situation(densities.values(), closest.cosine, adapters=set(analysis.adapters) >= densities.keys())
    method, reason = _METHODS[kind]
    if kind == COPIES:
        reason = f"{enumerated(closest.agents)} are nearly the same; {reason}"
    rounding, loss = _rounding_advice(analysis)
    return Recommendation(
        situation=kind,
        densities=densities,
        dtypes={name: analysis.input_dtypes.get(name, "") for name in densities},
        adapters=tuple(analysis.adapters),
        cosine=closest.cosine,
        method=method,
        parameters={},
        rounding=rounding,
        rounding_loss=loss,
        why=(reason, _CHOICE),
        merge=_merge_command(document, method, rounding, start),
        search=_search_command(document, start),
    )


def _rounding_advice(analysis: Analysis) -> tuple[str | None, str | None]:
    """Return the rounding to use if rounding to nearest would erase much, and a sentence about it."""
    largest_erasure = max((float(values["erased_share"] or 0) for values in analysis.rounding.values()), default=0.0)
    if largest_erasure < _ERASED_FROM:
        return None, None
    can_draw = analysis.recipe.get("dtype") != "like base"  # codes are rounded to nearest only
    cure = "round stochastically, or write float32" if can_draw else "write float32"
    of_whom = f"of an agent's updates in a {analysis.method} merge"
    loss = f"rounding to {analysis.dtype} would erase up to {largest_erasure:.0%} {of_whom}: {cure} ({GUIDE})"
    return "stochastic" if can_draw else None, loss


def _merge_command(document: Document, method: str, rounding: str | None, start: Path | None) -> str:
    needs_prompts = METHODS[method].side is not None
    whole = document.with_values({"rounding": rounding})
    words = words_of(whole, method=False, prompts=needs_prompts, start=start or Path.cwd())
    return f"ramerge merge {shlex.join([*words, '--method', method])} OUT"


def _search_command(document: Document, start: Path | None) -> str:
    """Return the search command with the recipe's prompts, or with a placeholder file for each agent."""
    words = words_of(document, method=False, prompts=True, start=start or Path.cwd())
    if not document.stated("prompts"):
        words += [word for name in document.agents for word in ("--prompts", f"{name}=FILE")]
    return f"ramerge search {shlex.join(words)} SEARCH"


def check_prompts(recipe: Document, options: Options = _OPTIONS) -> None:
    """Check a recipe's prompts, if it has any, before the weights are read, which takes long."""
    if recipe.stated("prompts"):
        FEATURES["rank"](recipe, {}, options=options)


def recommend_by_prompts(
    by_weights: Recommendation, recipe: Document, options: Options = _OPTIONS, on_progress: Listener | None = None
) -> Recommendation:
    """Recommend the best of a few merges by mass on the recipe's prompts, instead of the recommendation by weights."""
    candidates = {name: {"method": name, "parameters": {}} for name in (by_weights.method, *_BY_PROMPTS)}
    ranking = FEATURES["rank"](recipe, candidates, options=options, on_progress=on_progress)
    (best, value), *others = ranking.means.items()
    count = sum(ranking.replies.values())
    apart = {  # from the best
        name: "" if interval is None else f" ({interval[0]:+.3f} to {interval[1]:+.3f} apart, 95 %)"
        for name, interval in ranking.behind.items()
    }
    against = " and ".join(f"{other:.3f}{apart[name]} for `{name}`" for name, other in others)
    level = [f"`{name}`" for name, interval in ranking.behind.items() if interval is None or interval[1] >= 0]
    ties = f"{enumerated(level)} {'is' if len(level) == 1 else 'are'} statistically tied with it"
    which = "right replies" if ranking.rewarded else "replies"
    return replace(
        by_weights,
        method=best,
        why=(
            f"its mass, how likely it is to give the agents' {count:,} {which} to your prompts, is {value:.3f}, "
            f"against {against}{f'; {ties}, and more prompts may separate them' if level else ''}",
            f"by weights alone it would be `{by_weights.method}`",
        ),
        merge=_merge_command(recipe, best, by_weights.rounding, None),
        masses=ranking.means,
        behind=ranking.behind,
        notes=ranking.notes,
    )


def warnings_for(analysis: Analysis, method: str) -> tuple[str, ...]:
    """Return the warnings of an analysis that concern the recommended method.

    Warnings about another method, which the user is advised to leave, do not help, nor do warnings on where to begin.
    """
    return tuple(
        text
        for text in analysis.warnings
        if not isinstance(text, AboutMethod) or (method == analysis.method and not text.says_where_to_begin)
    )
