"""`ramerge.rank`: a contest of a few merges of agents by mass on their prompts; writes only to the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import ramerge
from ramerge import EvaluationError, Options, Plan, Recipe
from ramerge.calibration.agreement import refuse_other_tokens, replies_of
from ramerge.calibration.cache import CachedCalibration, with_inputs
from ramerge.calibration.live_base import require_extras
from ramerge.calibration.record import CalibrationSettings
from ramerge.core.recipe.other_method import for_method
from ramerge.core.recipe.paths import portable
from ramerge.scoring.scores import Objective
from ramerge.sdk.options import check_options, check_settings
from ramerge.sdk.progress import Listener, silence
from ramerge.sdk.recipes import AnyRecipe, check, models_only, open_recipe
from ramerge.sdk.text import Displayed, brief
from ramerge.searches import evidence
from ramerge.searches.contest import Contest
from ramerge.searches.mass import MassScorer, nll_of, refuse_reserved_names
from ramerge.searches.space import Point
from ramerge.searches.strategies import ListedPoints

_SETTINGS, _OPTIONS = CalibrationSettings(), Options()
_MERGE = "merge"


@dataclass(frozen=True, repr=False)
class Ranking(Displayed):
    """Merges ranked by how likely they are to give the agents' right replies, best first.

    Attributes:
        masses: the mass of each merge by agent, from 0 to 1: the expected share of the agent's right replies.
        nll: the negative log-likelihood per token of each merge, in nats, averaged over agents.
        replies: the number of scored replies, by agent.
        rewarded: whether only right replies count.
        notes: notes for the user.
        behind: for each merge but the best, the 95 % interval over prompts of its mean mass minus the best's, on
            the same prompts; None if an agent has fewer than two prompts.

    Example:
        >>> ramerge.Ranking({}, {}, {}, False, ()).rewarded
        False
    """

    masses: Mapping[str, Mapping[str, float]]
    nll: Mapping[str, float]
    replies: Mapping[str, int]
    rewarded: bool
    notes: tuple[str, ...]
    behind: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)

    def _summary(self) -> Mapping[str, object]:
        return {"means": self.means, "rewarded": self.rewarded}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        return [
            {"merge": name, "mean": self.means[name], **masses, "nll": self.nll[name]}
            for name, masses in self.masses.items()
        ]

    @property
    def means(self) -> dict[str, float]:
        """The mean mass of each merge over agents."""
        return {name: fmean(masses.values()) for name, masses in self.masses.items()}


@dataclass(frozen=True)
class _NamedMerges:
    """Candidates given as recipes by name."""

    recipes: Mapping[str, Recipe]
    options: Options

    def plan(self, point: Point) -> Plan:
        return ramerge.plan(self.recipes[point[_MERGE]], options=self.options)


def rank(
    recipe: AnyRecipe,
    merges: Mapping[str, Mapping[str, Any]],
    *,
    settings: CalibrationSettings = _SETTINGS,
    options: Options = _OPTIONS,
    on_progress: Listener | None = None,
) -> Ranking:
    """Rank some merges of a recipe's agents by mass on its prompts; only the cache is written to.

    Args:
        recipe: a recipe with a base, agents and prompts, as for `plan`.
        merges: by any name, the values that differ from the recipe, such as `{"method": "ties"}`. Rules, dtype and so
            on come from the recipe, but not its method and the method's own keys. Methods that need recorded inputs get
            them. If empty, no agent replies: only extras, prompts and headers of the models are checked.
        settings: as for `calibrate`.
        options: how to gather on prompts and carry out merges.
        on_progress: called with the number of prompts done, as by `calibrate`.

    Raises:
        RecipeError: the recipe has no base, an agent has no prompts or the name of an objective, or there is no cache.
        EvaluationError: no merge got a score; the first reasons are given.
        RamergeError: as for `calibrate`.

    Example:
        >>> recipe = {"base": "base", "agents": {"code": "coder"}, "prompts": {"code": "code.jsonl"}}
        >>> merges = {"sum": {"method": "task_arithmetic"}, "regmean": {"method": "regmean"}}
        >>> list(ramerge.rank(recipe, merges).means)  # doctest: +SKIP
        ['regmean', 'sum']
    """
    check_options(options)
    check_settings("settings", settings, CalibrationSettings)
    require_extras()
    document = open_recipe(recipe, options)
    models = models_only(document)
    names = list(models.agents)
    refuse_reserved_names(names)
    calibration = CachedCalibration.from_recipe(models, names, replace(settings, gather="inputs"), options)
    refuse_other_tokens(models, options)
    whole = for_method(with_inputs(document, names, calibration.folder), "regmean")
    start = portable(check(whole), None)  # rules, dtype and so on are those of every merge
    recipes = {name: start.with_(**values) for name, values in merges.items()}
    for one in recipes.values():
        check(one.as_document())
    if not merges:
        return Ranking({}, {}, {}, rewarded=False, notes=())
    objective = Objective()
    with calibration.gather(options, on_progress or silence) as (live, notes):
        replies = replies_of(calibration.folder, names, settings.right_at)
        scorer = MassScorer(live, replies, {})
        contest = Contest(_NamedMerges(recipes, live.options), scorer, [objective], prune=False, most_failures=0)
        contest.run(ListedPoints([{_MERGE: name} for name in recipes]))
    failures = [f"{trial.point[_MERGE]}: {trial.failure}" for trial in contest.trials if trial.failure is not None]
    by_gain = sorted(contest.complete(), key=contest.gains, reverse=True)
    if not by_gain:
        raise EvaluationError(failures)
    best = contest.figures(by_gain[0])
    behind = {
        trial.point[_MERGE]: evidence.difference(objective, contest.figures(trial), best) for trial in by_gain[1:]
    }
    return Ranking(
        {
            trial.point[_MERGE]: {name: figure.value for name, figure in contest.figures(trial).items()}
            for trial in by_gain
        },
        {trial.point[_MERGE]: nll_of(trial.scores) for trial in by_gain},
        {name: len(exchanges) for name, exchanges in replies.exchanges.items()},
        replies.rewarded,
        (*notes, *replies.notes, *(f"could not be merged, and is left out: {brief(text, 300)}" for text in failures)),
        {
            name: None if each.low is None or each.high is None else (each.low, each.high)
            for name, each in behind.items()
        },
    )
