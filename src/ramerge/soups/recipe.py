"""The request of `ramerge soup`: makes a recipe that names every checkpoint and its step, from arguments and a
strategy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramerge import RecipeError
from ramerge.cli.flags.read import absolute_model
from ramerge.cli.words import pairs
from ramerge.sdk.commands import parse_scalar
from ramerge.sdk.methods import METHODS
from ramerge.sdk.recipes import Document
from ramerge.soups import scores
from ramerge.soups.checkpoints import RunCheckpoint, agents_of, checkpoints_of, choose

GREEDY = "greedy"
"""The strategy that scores soups; its result is a uniform soup."""


@dataclass(frozen=True)
class SoupRequest:
    """The request of a soup: its recipe, and the checkpoints of the run.

    Attributes:
        recipe: the soup's recipe; for a greedy soup, the uniform soup of all candidates.
    """

    recipe: Document
    run: tuple[RunCheckpoint, ...]
    checkpoints: tuple[RunCheckpoint, ...]


def read_request(run: Sequence[str], flags: Mapping[str, Any]) -> SoupRequest:
    """Read the request of a soup from command-line arguments.

    Args:
        flags: the command's flags by name: `strategy`, `settings`, `last`, `steps`, `scores`, `choose`, `base` etc.
    """
    # options without effect, and missing options of a strategy
    strategy = flags["strategy"]
    for name in ("score", "reward", "serve"):
        if strategy != GREEDY and flags.get(name) is not None:
            raise RecipeError(f"--{name}: is for --strategy {GREEDY}, and this is {strategy}")
    if strategy == "scored" and flags["scores"] is None and not any("scores" in word for word in flags["settings"]):
        raise RecipeError("scored: weights checkpoints by scores; give the logs of `ramerge eval` with --scores LOGS")
    if strategy == "relex" and flags["base"] is None:
        raise RecipeError("relex: needs the model that the run began with; give it with --base MODEL")
    run_checkpoints = checkpoints_of(run)
    first, colon, last = (":" if flags["steps"] is None else flags["steps"]).partition(":")
    if not colon or any(part and not re.fullmatch(r"[0-9]{1,18}", part) for part in (first, last)):
        raise RecipeError(f"--steps {flags['steps']}: must be A:B, such as 100:200, 100: or :200")
    checkpoints = choose(run_checkpoints, flags["last"], int(first) if first else None, int(last) if last else None)
    score_table = scores.scores_in(flags["scores"], checkpoints) if flags["scores"] is not None else None
    if flags["choose"] is not None:
        if score_table is None:
            raise RecipeError("--choose: chooses by scores; give the logs of `ramerge eval` with --scores LOGS")
        names = scores.most_relevant(score_table, flags["choose"])
        checkpoints = [one for one in checkpoints if one.name in names]
    base = absolute_model(flags["base"]) if flags["base"] is not None else None
    method = "uniform" if strategy == GREEDY else strategy
    document = Document({"method": method, "agents": agents_of(checkpoints, run_checkpoints, base)})
    for key in ("base", "dtype", "rounding", "shard_size"):
        if flags[key] is not None:
            document.set((key,), base if key == "base" else flags[key], f"--{key.replace('_', '-')}")
    if "steps" in METHODS[method].parameters.model_fields:
        document.set(("parameters",), {"steps": {one.name: one.step for one in checkpoints}}, "the run")
    for key, value in pairs("--set", flags["settings"], "KEY=VALUE, such as --set half_life=50"):
        home = () if key.startswith("allow.") else ("parameters",)
        path = (*home, *key.removeprefix("parameters.").split("."))
        document.set(path, parse_scalar(value, f"--set {key}"), f"--set {key}={value}")
    if score_table is not None and strategy == "scored":
        by_name = scores.means(score_table)
        document.set(("parameters", "scores"), {one.name: by_name[one.name] for one in checkpoints}, "--scores")
    return SoupRequest(document, tuple(run_checkpoints), tuple(checkpoints))
