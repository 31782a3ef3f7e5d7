"""Finds the checkpoints of a run and their training steps, and chooses those that become agents.

A run is a folder of checkpoints in any format (`global_step_10`, `checkpoint-10`, `iter_0000010`, `step_10`), a list of
checkpoints, a repository of the hub with a branch for each step, or a folder of deltas: each on the base, or each on
the checkpoint before it (a chain).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ramerge import CheckpointError, RecipeError
from ramerge.cli.flags.read import absolute_model
from ramerge.core.formats.registry import by_priority
from ramerge.core.foundation.errors import OutputWarning
from ramerge.core.storage.own_files import DELTA_INDEX, RECORDS
from ramerge.core.storage.resolve import not_found
from ramerge.core.storage.schemes import on_hub
from ramerge.sdk.files import no_such_folder
from ramerge.sdk.methods import MANY, METHODS
from ramerge.sdk.storage import is_hub_id, is_remote
from ramerge.sdk.text import JsonLimits, quantity, read_object, reason

_LABEL = re.compile(r"[A-Za-z_][\w-]*")
_NUMBER = re.compile(r"\d+")
# Files of trainers that name the step, and the key; looked at where the folder's name has none.
_STATES = (("trainer_state.json", "global_step"), ("training_info.json", "step"), ("state.json", "step"))
_INDEX_LIMITS = JsonLimits(size=64_000_000, signs=3_000_000)
_STATE_LIMITS = JsonLimits(size=64_000_000, signs=10_000_000)


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a training run.

    Attributes:
        model: its folder, or its hub id with a branch.
        below: digest of the model that a delta changes; empty for a whole model.
        result: digest of the checkpoint that a delta results in; empty for a whole model.
        label: its name, if the name holds no step; empty for `step-N`.
    """

    step: int
    model: str
    is_delta: bool = False
    below: str = ""
    result: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        """The name of the checkpoint as an agent."""
        return self.label or f"step-{self.step}"


def checkpoints_of(words: Sequence[str]) -> list[RunCheckpoint]:
    """Find the checkpoints of a run from command-line arguments; return them ordered by step.

    Args:
        words: one run's folder or hub repository; or at least two checkpoints.
    """
    checkpoints = _checkpoints_in_run(words[0]) if len(words) == 1 else _listed_checkpoints(words)
    if not checkpoints:
        raise RecipeError(
            f"{words[0]}: holds no checkpoints with a step in their names, such as global_step_10, checkpoint-10 or "
            "step_10; name the checkpoints one after another"
        )
    checkpoints = sorted(checkpoints, key=lambda one: one.step)
    for one, other in pairwise(checkpoints):
        if one.step == other.step:
            raise RecipeError(f"{one.model} and {other.model} are both of step {one.step}; give each step once")
    return checkpoints


def is_missing(word: str) -> bool:
    """Whether an argument can only be a local path, and does not exist."""
    return not is_remote(word) and not is_hub_id(word) and not Path(word).expanduser().exists()


def choose(
    checkpoints: Sequence[RunCheckpoint], last: int | None, first_step: int | None, last_step: int | None
) -> list[RunCheckpoint]:
    """Choose at most `last` checkpoints, the latest with steps in a range, ends included."""
    inside = [
        one
        for one in checkpoints
        if (first_step is None or one.step >= first_step) and (last_step is None or one.step <= last_step)
    ]
    if last is not None:
        if inside and len(inside) < last:
            are = quantity(len(inside), "checkpoint is", "checkpoints are")
            _warn_user(f"--last {last}: only {are} there, and all of them are taken")
        inside = inside[-last:]
    if not inside:
        steps = f"{checkpoints[0].step} to {checkpoints[-1].step}"
        raise RecipeError(f"--steps: no checkpoint is in this range; the run's steps are {steps}")
    if len(inside) > MANY:
        raise RecipeError(f"{len(inside)} checkpoints are more than {MANY}; choose with --last or --steps")
    return inside


def agents_of(
    chosen_checkpoints: Sequence[RunCheckpoint], run: Sequence[RunCheckpoint], base: str | None
) -> dict[str, object]:
    """Return checkpoints as agents of a recipe, by name. Deltas on one another form a chain.

    Args:
        run: all checkpoints of the run; some of its deltas may lie between the chosen checkpoints.
    """
    if base is None and any(one.is_delta for one in chosen_checkpoints):
        raise RecipeError(f"{chosen_checkpoints[0].model}: is a delta; give the model that it is for with --base MODEL")
    deltas = [one for one in run if one.is_delta]
    bottom = {one.below for one in deltas} - {one.result for one in deltas}
    if len(bottom) > 1:
        bottoms = list({one.below: one.model for one in deltas if one.below in bottom}.values())
        raise RecipeError(
            f"the deltas do not form a chain: {bottoms[0]} and {bottoms[1]} start from different models; is a delta "
            "missing between them? Give the deltas of one run in order"
        )
    agents: dict[str, object] = {}
    names_by_digest: dict[str, str] = {}
    for one in chosen_checkpoints:
        agents[one.name] = one.model
        if one.is_delta:
            # with those that lie between it and the nearest checkpoint that is an agent already, or the base
            chain = [one]
            while (last := chain[-1]).below not in names_by_digest:
                # deltas to the model that this one changes; of an earlier step, because a step may change nothing
                before = [each for each in deltas if each.step < last.step and each.result == last.below]
                if not before:
                    break
                chain.append(max(before, key=lambda each: each.step))
            over = names_by_digest.get(last.below)
            agent: dict[str, object] = {"delta": [delta.model for delta in reversed(chain)]}
            agents[one.name] = agent | ({"over": over} if over is not None else {})
        names_by_digest[one.result] = one.name
    return agents


def _checkpoints_in_run(run: str) -> list[RunCheckpoint]:
    folder = Path(run).expanduser()
    if not is_remote(run) and folder.is_dir():
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
        return [checkpoint for path in inside if (checkpoint := _checkpoint_in_folder(path)) is not None]
    if is_remote(run) and on_hub(run) is None:
        raise RecipeError(f"{run}: folders of a bucket are not listed; name the checkpoints one after another")
    if not is_remote(run) and not is_hub_id(run):
        raise RecipeError(no_such_folder(folder))
    from huggingface_hub import HfApi

    from ramerge.core.storage import hub

    name = on_hub(run) or run
    try:
        branches = [branch.name for branch in HfApi().list_repo_refs(name).branches]
    except hub.failures() as error:
        raise CheckpointError(not_found(name, folder, error)) from None
    steps = [(branch, last_number(branch)) for branch in branches]
    return [RunCheckpoint(step, f"{name}@{branch}") for branch, step in steps if step is not None]


def _checkpoint_in_folder(folder: Path) -> RunCheckpoint | None:
    """Return the checkpoint in a folder of a run; None for other folders, with a note if they look like checkpoints."""
    step, is_model = _step_of_folder(folder), _is_model(folder)
    if step is not None and is_model and not _is_soup(folder):
        return _make_checkpoint(str(folder.absolute()), step)
    if is_model and step is not None:
        _warn_user(f"{folder}: is skipped, because it is itself a soup; to use it, name all checkpoints")
    elif is_model:
        _warn_user(f"{folder}: is skipped, because neither its name nor a trainer's state has its step")
    elif step is not None and (folder / "config.json").exists():
        _warn_user(f"{folder}: is skipped, because weights are missing")
    return None


def _is_soup(folder: Path) -> bool:
    """Whether a model is a merge of a run's checkpoints."""
    try:
        name = read_object(folder / RECORDS[0], _STATE_LIMITS).get("method")
    except (OSError, ValueError):
        return False
    return isinstance(name, str) and name in METHODS and METHODS[name].along_run


def _warn_user(text: str) -> None:
    warnings.warn(OutputWarning(text), stacklevel=2)


def _listed_checkpoints(words: Sequence[str]) -> list[RunCheckpoint]:
    checkpoints, places = [], list[str]()
    for place, word in enumerate(words, 1):
        path = Path(word).expanduser()
        if is_missing(word):
            raise RecipeError(no_such_folder(path))
        if not is_remote(word) and path.is_dir() and not _is_model(path):
            raise RecipeError(f"{word}: is no checkpoint; name one folder of checkpoints, or only checkpoints")
        step = _step_of_folder(path) if not is_remote(word) and path.is_dir() else last_number(word.rpartition("@")[2])
        places += [word] if step is None else []
        checkpoints.append(_make_checkpoint(absolute_model(word), place if step is None else step))
    if 0 < len(places) < len(words):
        raise RecipeError(f"{places[0]}: has no step in its name, as others have; rename it, such as to step-100")
    labels = [Path(word).name for word in words]
    if places and len({*labels}) == len(labels) and all(map(_LABEL.fullmatch, labels)):
        return [replace(one, label=label) for one, label in zip(checkpoints, labels, strict=True)]
    return checkpoints


def _make_checkpoint(model: str, step: int) -> RunCheckpoint:
    index = Path(model) / DELTA_INDEX
    if is_remote(model) or not index.is_file():
        return RunCheckpoint(step, model)
    try:
        metadata = read_object(index, _INDEX_LIMITS, constants=False).get("metadata")
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise CheckpointError(f"{index}: cannot be read: {why}; get the delta again") from error
    values = metadata if isinstance(metadata, Mapping) else {}
    return RunCheckpoint(step, model, True, str(values.get("base", "")), str(values.get("result", "")))


def _is_model(folder: Path) -> bool:
    """Whether a format recognizes the folder."""
    return any(format.find(folder) is not None for format in by_priority())


def _step_of_folder(folder: Path) -> int | None:
    """Return the training step of a folder: the last number in its name, or the step in the trainer's state."""
    step = last_number(folder.name)
    if step is not None:
        return step
    for name, key in _STATES:
        if (folder / name).is_file():
            try:
                value = read_object(folder / name, _STATE_LIMITS).get(key)
            except (OSError, ValueError):
                continue
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def last_number(name: str) -> int | None:
    """Return the last number in the name of a checkpoint; None if there is none that can be a step."""
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 16 else None
