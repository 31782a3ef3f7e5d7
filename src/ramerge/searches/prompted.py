"""A search by prompts: what it gathers from the agents, its default space, and the order in which points are scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ramerge import EvaluationError, Options, RamergeError, Recipe
from ramerge.calibration.agreement import ReplySet, refuse_other_tokens, replies_of
from ramerge.calibration.cache import with_inputs
from ramerge.calibration.calibrate import OtherCalibrationError, gather_agents, prompts_of
from ramerge.calibration.live_base import LiveBase, base_of
from ramerge.calibration.prompts import Prompt
from ramerge.calibration.record import CalibrationSettings
from ramerge.core.foundation.jsontext import RECORD
from ramerge.core.methods.base import conditions
from ramerge.core.methods.registry import complete
from ramerge.scoring.functions import function_state
from ramerge.scoring.scores import Objective, Scores, join
from ramerge.sdk.files import write_file
from ramerge.sdk.methods import METHODS
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document, models_only
from ramerge.sdk.text import dumped, read_object
from ramerge.searches.folder import Folder, search_folder
from ramerge.searches.mass import MassScorer, refuse_reserved_names
from ramerge.searches.own_replies import OwnReplies
from ramerge.searches.results import BY_AGREEMENT
from ramerge.searches.run import PlannedPoints
from ramerge.searches.settings import SearchSettings
from ramerge.searches.space import Point, Space

CALIBRATION = "calibration"
"""The folder of statistics and replies in the folder of a search."""
PROMPTS = "prompts.json"
"""The file in that folder with the path of each agent's prompts, for `handoff`."""
_ORDER = "order.json"
_SUM = "task_arithmetic"
_SCALES = (1.0, 0.8, 1.3, 1.6)
"""Scales of sums. None is larger, because mass favors sharp models: it would choose worse sums."""
_RIDGES = (0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class PromptMeasures:
    """Inputs of a search by prompts: replies, and the model.

    Attributes:
        replies: the replies to score merges on.
        live: the model.
        fingerprints: of each agent's calibration, by agent.
        notes: notes for the user.
    """

    replies: ReplySet
    live: LiveBase
    fingerprints: Mapping[str, str]
    notes: tuple[str, ...]

    def sorted_by_mass(self, space: Space, candidates: PlannedPoints, folder: Path) -> Space:
        """Sort the points of a space by mass, best first; points that cannot be merged come last.

        The order is stored in the folder of the search, so that it is the same when the search resumes.
        """
        path, points = folder / _ORDER, list(space.points())
        about = {
            **candidates.content(space),
            "right_at": self.replies.least,
            BY_AGREEMENT: dict(self.fingerprints),
        }
        try:
            content = read_object(path, RECORD)
        except (OSError, ValueError):
            content = {}
        masses = content.get("masses") if content.get("about") == about else None
        if not isinstance(masses, list) or len(masses) != len(points) or not all(map(_is_mass, masses)):
            masses = self._mean_masses(points, candidates)
            write_file(path, dumped({"about": about, "masses": masses}))
        gains = [-math.inf if mass is None else mass for mass in masses]
        order = sorted(range(len(points)), key=gains.__getitem__, reverse=True)
        return replace(space, order=tuple(points[place] for place in order))

    def _mean_masses(self, points: Sequence[Point], candidates: PlannedPoints) -> list[float | None]:
        """Return the mean mass of each point; None if it cannot be merged."""
        scorer = self.scorer()
        scores: list[Scores | None] = []
        for point in points:
            try:
                self.live.put(candidates.plan(point))
                scores.append(join(scorer.parts(Path(), "validation")))
            except RamergeError:
                scores.append(None)  # the search says why
        temper = scorer.temper([each for each in scores if each is not None])
        return [None if each is None else Objective().value(scorer.figures(each, temper)) for each in scores]

    def scorer(self) -> MassScorer:
        """Return a scorer of merges by mass."""
        return MassScorer(self.live, self.replies, self.fingerprints)

    def judge(self, prompts: AgentPrompts, folder: Folder, settings: SearchSettings) -> OwnReplies | None:
        """Return a judge that lets the best candidates reply themselves: by default only on a GPU or with a server;
        otherwise, stored replies count. None if no reward function tells right replies from wrong replies.
        """
        if not prompts.settings.reward or self.replies.least is None:
            return None
        is_fast = self.live.device.type != "cpu" or settings.server is not None
        return OwnReplies(
            self.live,
            prompts.prompts,
            prompts.settings,
            self.replies,
            True if settings.generate is None and is_fast else settings.generate,
            folder,
            settings.server,
            settings.concurrency,
        )

    def make_scorer(self, *_: object) -> MassScorer:
        """Like `scorer`, in the form that a search needs; the arguments are unused."""
        return self.scorer()


def _is_mass(value: object) -> bool:
    """Whether a value in `order.json` is a figure, or None, which stands for a point that cannot be merged."""
    return value is None or (isinstance(value, float) and math.isfinite(value))


def usual_space(recipe: Document, *, adapters: bool, by_prompts: bool) -> dict[str, object]:
    """Return the default space, if nothing varies explicitly: the sum first, then merges that are best for some agents.

    The recipe's own method is also tried, with its parameters; these do not affect other candidates.

    Args:
        recipe: the recipe to merge.
        adapters: whether all agents are adapters.
        by_prompts: whether the recipe has prompts, or inputs gathered on them.
    """
    spaces: dict[str, dict[str, Any]] = {
        _SUM: {"scale": list(_SCALES)},
        **({"regmean": {"ridge": list(_RIDGES)}} if by_prompts else {}),
        "ram+": {},
        "core+": {},
        ("ties" if adapters else "swudi"): {},
    }
    name, values = _own_parameters(recipe)
    space = spaces.setdefault(name, {})
    for key, value in values.items():
        axis_values = space.get(key, [])
        if isinstance(value, dict):
            space[key] = _space_of_value(value)
        elif value not in axis_values:
            space[key] = [*axis_values, value]
    return {"method": {name: {"parameters": inner} if inner else None for name, inner in spaces.items()}}


def _own_parameters(recipe: Document) -> tuple[str, dict[str, Any]]:
    """Return the method of a recipe, and its effective parameters, including those of its preset."""
    name = str(recipe.method)
    method = METHODS[name]
    own_parameters = dict(complete(method, recipe.stated("preset"), recipe.stated("parameters") or {}))
    fields = method.parameters.model_fields
    return name, {
        key: value
        for key, value in own_parameters.items()
        if all(
            own_parameters.get(on, fields[on].default) == condition
            for on, condition in conditions(method.parameters, key).items()
        )
    }


def _space_of_value(value: object) -> object:
    """Turn a parameter's value into a space that holds only this value."""
    return {key: _space_of_value(inner) for key, inner in value.items()} if isinstance(value, dict) else [value]


def _flatten(values: Mapping[str, object], place: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        yield from _flatten(value, f"{place}.{key}") if isinstance(value, dict) else [(f"{place}.{key}", value)]


def branches_after_sum(space: Space, recipe: Document) -> tuple[list[Point], list[Point]]:
    """Divide the points of the default space into two lists, which follow its first point, a sum.

    The first list has longer sums, to try if the first sum is good; the second list has all other points, to try if it
    is poor. The recipe's own method and parameters are in both lists.
    """
    _sum, *others = space.points()
    name, parameters = _own_parameters(recipe)
    values = (
        {"method": name, **dict(_flatten(parameters, "parameters"))} if recipe.stated("method") is not None else None
    )
    own = [point for point in others if values is not None and values.items() <= point.items()]
    longer = [point for point in others if point["method"] == _SUM and point["parameters.scale"] > 1]
    shorter = [point for point in others if point not in longer or point in own]
    return [*longer, *(point for point in own if point not in longer)], shorter


@dataclass(frozen=True)
class AgentPrompts:
    """The agents that reply for a search, and their prompts.

    Attributes:
        models: base and agents.
        prompts: the prompts of each agent.
        settings: the settings of the calibration; half of the prompts are held out for the score.
    """

    models: Recipe
    prompts: Mapping[str, Sequence[Prompt]]
    settings: CalibrationSettings

    @classmethod
    def from_recipe(cls, recipe: Document, settings: CalibrationSettings) -> AgentPrompts:
        """Read the prompts of a recipe.

        Raises:
            RecipeError: there is no base, or an agent has no prompts, or the name of an objective.
            InputError: prompts cannot be read, or are too few.
        """
        models = models_only(recipe)
        settings = replace(settings, hold_out=True, gather="inputs")
        base_of(models)
        refuse_reserved_names(models.agents)
        return cls(models, prompts_of(models.agents, models.prompts, settings), settings)

    def description(self) -> dict[str, object]:
        """Return the prompts, and the settings that affect what is gathered and which replies are right."""
        settings = self.settings.result_settings()
        if self.settings.reward:
            settings["reward"] = function_state(self.settings.reward)
        return {
            "prompts": {
                name: sha256(repr([each.content for each in prompts]).encode()).hexdigest()
                for name, prompts in self.prompts.items()
            },
            "settings": settings,
        }

    def with_inputs(self, recipe: Document, out: Path) -> Document:
        """Return a recipe whose agents have the inputs that are, or will be, gathered in the folder of a search."""
        return with_inputs(recipe, self.prompts, out / CALIBRATION)


def prompt_measures(
    prompts: AgentPrompts,
    out: Path,
    stack: ExitStack,
    options: Options,
    listen: Listener,
) -> PromptMeasures:
    """Gather what a search by prompts needs, in its folder; the model stays in memory until the stack closes.

    Args:
        prompts: the agents and their prompts.
        out: the folder of the search.
        stack: closes the model.
        options: how to read models.
        listen: called with the number of prompts done.

    Raises:
        RamergeError: as for `calibrate`.
    """
    folder, settings = out / CALIBRATION, prompts.settings
    refuse_other_tokens(prompts.models, options)
    with search_folder(out) as place:  # nothing is gathered where no search may be
        live = stack.enter_context(LiveBase(prompts.models, settings, options))
        try:
            writing = replace(options, overwrite=not place.has_scores)
            records = gather_agents(live, prompts.prompts, folder, settings, writing, listen)
        except OtherCalibrationError as error:
            raise EvaluationError(
                f"{out}: holds a search with another {error.agent}: its weights, or those of the base, have changed "
                "since; name another folder, or remove this one"
            ) from error
    write_file(folder / PROMPTS, dumped(prompts.models.prompts))
    fingerprints = {name: record.fingerprint for name, record in records.items()}
    replies = replies_of(folder, list(prompts.prompts), settings.right_at)
    notes = (*(note for record in records.values() for note in record.notes), *replies.notes)
    return PromptMeasures(replies, live, fingerprints, notes)
