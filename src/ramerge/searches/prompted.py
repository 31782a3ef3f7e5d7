"""A search by prompts: its usual space, the order of its points, and the scorer by agreement, without labels."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ramerge import EvaluationError, Options, RamergeError, Recipe, plan
from ramerge.calibration.agreement import ReplySet, agreements_in, likelihoods, refuse_other_tokens, replies_of
from ramerge.calibration.cache import with_inputs
from ramerge.calibration.calibrate import OtherCalibrationError, gather_agents, prompts_of
from ramerge.calibration.live_base import LiveBase, base_of
from ramerge.calibration.prompts import Prompt
from ramerge.calibration.record import CalibrationSettings
from ramerge.sdk.files import write_file
from ramerge.sdk.methods import METHODS, complete, conditions
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document, models_only
from ramerge.sdk.text import RECORD, dumped, read_object
from ramerge.searches.folder import search_folder
from ramerge.searches.points import recipe_of
from ramerge.searches.results import BY_AGREEMENT
from ramerge.searches.run import Branches
from ramerge.searches.scores import ScoreFailedError, Scores, Split, of_items
from ramerge.searches.space import Space

CALIBRATION = "calibration"
"""The folder of statistics and replies within that of a search."""
_ORDER = "order.json"
LOWER = "mean=min"
"""The objective: the mean over agents, the lower the better."""
_PARTS = 4
_SUM = "task_arithmetic"
_RIDGES = (0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Prompted:
    """Inputs of a search by agreement: recipe, replies, and the model.

    Attributes:
        recipe: with the recorded inputs of every agent.
        replies: on which merges are scored.
        live: the model.
        fingerprints: of what was gathered, by agent.
        notes: what the user should know.
    """

    recipe: Document
    replies: ReplySet
    live: LiveBase
    fingerprints: Mapping[str, str]
    notes: tuple[str, ...]

    def ordered(self, space: Space, folder: Path) -> Space:
        """The space with its points in the order of their agreement, best first; those that cannot be merged last.

        What was found is kept in the folder of the search, so that it comes in the same order when it is resumed.
        """
        path, points = folder / _ORDER, list(space.listed())
        about = {"space": space.as_dict(), BY_AGREEMENT: dict(self.fingerprints)}
        try:
            kept = read_object(path, RECORD)
        except (OSError, ValueError):
            kept = {}
        means = kept.get("means") if kept.get("about") == about else None
        if not isinstance(means, list) or len(means) != len(points) or not all(map(_is_mean, means)):
            means = []
            for point in points:
                try:
                    self.live.put(recipe_of(self.recipe, point))
                    means.append(fmean(each.nll for each in agreements_in(self.live.live, self.replies).values()))
                except RamergeError:
                    means.append(None)  # the search says why
            write_file(path, dumped({"about": about, "means": means}))
        means = [math.inf if mean is None else mean for mean in means]
        return replace(space, order=tuple(points[place] for place in sorted(range(len(points)), key=means.__getitem__)))


def _is_mean(value: object) -> bool:
    """Whether a value in `order.json` is a figure, or None, which stands for a point that cannot be merged."""
    return value is None or (isinstance(value, float) and math.isfinite(value))


def usual_space(recipe: Document, found: Prompted | None, *, has_prompts: bool = False) -> dict[str, object]:
    """The space of a search for which nothing is said to vary: the sum first, then the best merges of some agents.

    Longer sums are tried only where labels or rewards are known: agreement with all replies cannot see what is better
    than the agents. The recipe's own method is tried, too, with its parameters; these do not change other candidates.

    Args:
        recipe: what is merged.
        found: what was gathered; None without prompts, or before.
        has_prompts: whether the recipe has prompts that nothing was gathered of yet.
    """
    details = plan(models_only(recipe).as_document().without("prompts")).details
    by_prompts = found is not None or has_prompts
    scales = [1.0, 0.8, *((1.3, 1.6) if not by_prompts or (found and found.replies.rewarded) else ())]
    spaces: dict[str, dict[str, Any]] = {
        _SUM: {"scale": scales},
        **({"regmean": {"ridge": list(_RIDGES)}} if by_prompts else {}),
        "ram+": {},
        "core+": {},
        ("ties" if details.inputs.adapters else "swudi"): {},
    }
    name, values = _own(recipe)
    space = spaces.setdefault(name, {})
    for key, value in values.items():
        listed = space.get(key, [])
        if isinstance(value, dict):
            space[key] = _each_alone(value)
        elif value not in listed:
            space[key] = [*listed, value]
    return {"method": {name: {"parameters": inner} if inner else None for name, inner in spaces.items()}}


def _own(recipe: Document) -> tuple[str, dict[str, Any]]:
    """The method of a recipe, and those of its parameters that count, with those of its preset."""
    name = str(recipe.method)
    method = METHODS[name]
    stated = dict(complete(method, recipe.stated("preset"), recipe.stated("parameters") or {}))
    fields = method.parameters.model_fields
    return name, {
        key: value
        for key, value in stated.items()
        if all(
            stated.get(on, fields[on].default) == needed for on, needed in conditions(method.parameters, key).items()
        )
    }


def _each_alone(value: object) -> object:
    """A parameter's value as a space that holds nothing else."""
    return {key: _each_alone(inner) for key, inner in value.items()} if isinstance(value, dict) else [value]


def _flat(values: Mapping[str, object], place: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        yield from _flat(value, f"{place}.{key}") if isinstance(value, dict) else [(f"{place}.{key}", value)]


def usual_branches(space: Space, recipe: Document) -> Branches:
    """Branches of the usual space: longer sums where the sum keeps what the agents have, else all other points.

    A method that the recipe names is in both, with its parameters.
    """
    _sum, *others = space.listed()
    name, parameters = _own(recipe)
    values = {"method": name, **dict(_flat(parameters, "parameters"))} if recipe.stated("method") is not None else None
    own = [point for point in others if values is not None and values.items() <= point.items()]
    longer = [point for point in others if point["method"] == _SUM and point["parameters.scale"] > 1]
    shorter = [point for point in others if point not in longer or point in own]
    return Branches(tuple(recipe.agents), (*longer, *(point for point in own if point not in longer)), tuple(shorter))


@dataclass(frozen=True)
class AgentPrompts:
    """The agents that are asked for a search, and their prompts.

    Attributes:
        models: base and agents.
        prompts: of each agent.
        settings: what is gathered; half of the prompts is held out for the score.
    """

    models: Recipe
    prompts: Mapping[str, Sequence[Prompt]]
    settings: CalibrationSettings

    @classmethod
    def of(cls, recipe: Document, settings: CalibrationSettings) -> AgentPrompts:
        """Read the prompts of a recipe.

        Raises:
            RecipeError: there is no base, or an agent has no prompts.
            InputError: prompts cannot be read, or are too few.
        """
        models = models_only(recipe)
        settings = replace(settings, hold_out=True, gather="inputs")
        base_of(models)
        return cls(models, prompts_of(models.agents, models.prompts, settings), settings)

    def with_inputs(self, recipe: Document, out: Path) -> Document:
        """A recipe whose agents have the inputs that are gathered in the folder of a search, also before they are."""
        return with_inputs(recipe, self.prompts, out / CALIBRATION)


def prompted(
    recipe: Document,
    prompts: AgentPrompts,
    out: Path,
    stack: ExitStack,
    options: Options,
    listen: Listener,
) -> Prompted:
    """Gather what a search by agreement needs, in its folder; the model stays in memory until the stack closes.

    Args:
        recipe: what points are made of, with the inputs that are gathered now.
        prompts: of the agents that are asked.
        out: the folder of the search.
        stack: what closes the model.
        options: how models are read.
        listen: gets the number of prompts done.

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
            text = f"{out}: holds a search with other agents, prompts or settings; name another folder, or remove it"
            raise EvaluationError(text) from error
    fingerprints = {name: record.fingerprint for name, record in records.items()}
    replies = replies_of(folder, list(prompts.prompts), settings.right_at)
    notes = (*(note for record in records.values() for note in record.notes), *replies.notes)
    return Prompted(recipe, replies, live, fingerprints, notes)


class AgreementScorer:
    """Scorer by agreement, some prompts of every agent at a time; it merges into the model in memory."""

    splits = True
    in_parts = True
    has_test = False

    def __init__(self, prompted: Prompted) -> None:
        self._prompted = prompted

    def merge(self, recipe: Recipe) -> None:
        """Put the merge of a point into the model in memory."""
        self._prompted.live.put(recipe)

    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        """Scores of the merge that was put in last, part by part, as for `Scorer`."""
        del model
        if split == "test":
            raise ScoreFailedError("agreement keeps no items for a test")
        for items in likelihoods(self._prompted.live.live, self._prompted.replies, _PARTS):
            yield {name: of_items(each) for name, each in items.items()}

    def about(self) -> Mapping[str, object]:
        """The fingerprints of the statistics that were gathered from the agents."""
        replies = self._prompted.replies
        counts = {name: list(counts) for name, counts in replies.counts.items()}
        return {
            BY_AGREEMENT: dict(self._prompted.fingerprints),
            "rewarded": replies.rewarded,
            "right": counts if replies.rewarded else {},
            "replies": {name: scored for name, (scored, _) in counts.items()},
        }

    def close(self) -> None:
        """Do nothing: the model is closed with the search."""
