"""A search by agreement: what is tried where nothing is said to vary, and the score, from prompts without labels."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramerge.api import plan
from ramerge.calibration.agreement import ReplySet, likelihoods, replies_of
from ramerge.calibration.calibrate import LiveBase, gather, prompts_of, require_extras, reward_of
from ramerge.calibration.record import CalibrationSettings
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.progress import Listener
from ramerge.methods.base import INPUTS
from ramerge.options import Options
from ramerge.recipe.checks import models_of
from ramerge.recipe.document import Document
from ramerge.selection.folder import search_folder
from ramerge.selection.results import BY_AGREEMENT
from ramerge.selection.scores import ScoreFailedError, Scores, Split, of_items

CALIBRATION = "calibration"
"""The folder of statistics and replies within that of a search."""
LOWER = "mean=min"
"""The objective: the mean over agents, the lower the better."""
_PARTS = 4
_RIDGES = (0.01, 0.1, 1.0, 10.0)
_METHOD = "regmean"


@dataclass(frozen=True, kw_only=True)
class PromptScore:
    """Scores merges by how likely they find what the agents have replied to prompts; see `ramerge.agreement`.

    Attributes:
        prompts: for each agent a file or folder of prompts, or of rollouts.
        settings: what is gathered of the agents; half of the prompts is held out for the score.

    Example:
        >>> score = ramerge.PromptScore(prompts={"code": "code.jsonl", "tool": "tool.jsonl"})
        >>> score.settings.count
        32
    """

    prompts: Mapping[str, str | Path]
    settings: CalibrationSettings = field(default_factory=CalibrationSettings)


@dataclass(frozen=True)
class Prompted:
    """What a search by agreement needs.

    Attributes:
        recipe: with the recorded inputs of every agent.
        replies: on which merges are scored.
        live: the model.
        fingerprints: of what was gathered, by agent.
    """

    recipe: Document
    replies: ReplySet
    live: LiveBase
    fingerprints: Mapping[str, str]

    def space(self) -> dict[str, Any]:
        """What is tried where nothing is said to vary: the sum first, and what may be better for these agents.

        Longer sums are tried only where rewards are known: agreement cannot see what is better than the agents.
        """
        details = plan(self.recipe).details
        scales = [1.0, 0.8, *((1.3, 1.6) if self.replies.rewarded else ())]
        return {
            "method": {
                "task_arithmetic": {"parameters": {"scale": scales}},
                _METHOD: {"parameters": {"ridge": list(_RIDGES)}},
                "ram+": None,
                "core+": None,
                ("ties" if details.adapters else "swudi"): None,
            }
        }


def prompted(
    recipe: Document, out: Path, score: PromptScore, stack: ExitStack, options: Options, listen: Listener
) -> Prompted:
    """Gather what a search by agreement needs, in its folder; the model stays in memory until the stack closes.

    Raises:
        RecipeError: there is no base, an agent has no prompts, or torch or transformers is missing.
        RamergeError: as for `calibrate`.
    """
    require_extras()
    models = models_of(recipe)
    if models.base is None:
        raise RecipeError("prompts: need a base, whose model gets the weights of agents and merges; give --base")
    agents = {name: agent.plain for name, agent in models.agents.items()}
    settings = replace(score.settings, hold_out=True)
    if problems := settings.problems():
        raise RecipeError(problems)
    reward_of(settings.reward)  # a wrong one shows before anything is loaded
    asked = prompts_of(agents, score.prompts, settings)
    folder = out / CALIBRATION
    with search_folder(out):  # nothing is gathered where no search may be
        live = stack.enter_context(LiveBase(models.base, settings, options))
        records = gather(live, agents, asked, folder, settings, replace(options, overwrite=True), listen)
    values = {key: value for key, value in recipe.values.items() if key not in ("parameters", "preset", "rules")}
    inputs = {name: {INPUTS.key: str((folder / name).absolute())} for name in agents}
    made = replace(recipe, values={**values, "method": _METHOD, "agents": _joined(recipe.values["agents"], inputs)})
    fingerprints = {name: record.fingerprint for name, record in records.items()}
    return Prompted(made, replies_of(folder, list(agents), settings.right_at), live, fingerprints)


def _joined(agents: Mapping[str, Any], more: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The agents of a recipe with further keys."""
    return {
        name: {**(agent if isinstance(agent, dict) else {"model": agent}), **more[name]}
        for name, agent in agents.items()
    }


class AgreementScorer:
    """Scores the merge of a point by agreement, some prompts of every agent at a time."""

    splits = True
    in_parts = True
    has_test = False

    def __init__(self, prompted: Prompted) -> None:
        self._prompted = prompted

    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        """See `Scorer`."""
        if split == "test":
            raise ScoreFailedError("agreement keeps no items for a test")
        self._prompted.live.put_model(str(model))
        for items in likelihoods(self._prompted.live.live, self._prompted.replies, _PARTS):
            yield {name: of_items(each) for name, each in items.items()}

    def about(self) -> Mapping[str, Any]:
        """What was gathered of the agents."""
        return {BY_AGREEMENT: dict(self._prompted.fingerprints), "rewarded": self._prompted.replies.rewarded}

    def close(self) -> None:
        """The model is closed with the search."""
