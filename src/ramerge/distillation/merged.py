"""The merge that becomes the student, and its agents that become the teachers, if trainers can load them."""

from __future__ import annotations

import filecmp
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from ramerge import Agent, InputError, Recipe, RecipeError
from ramerge.calibration.prompts import problems_of_names
from ramerge.core.foundation.jsontext import RECORD
from ramerge.core.foundation.typedjson import read_model
from ramerge.core.recipe.paths import parts_of
from ramerge.core.storage.own_files import DELTA_INDEX, RECORDS, SEARCH_DESCRIPTION
from ramerge.sdk.files import no_such_folder
from ramerge.sdk.methods import METHODS
from ramerge.sdk.recipes import check, read_document
from ramerge.sdk.records import read_record, refuse_sweep
from ramerge.sdk.storage import is_hub_id, is_remote
from ramerge.searches.prompted import CALIBRATION, PROMPTS

RECIPE = "ramerge.yaml"
_SEARCH, _BEST = "search.json", "best"
_SOUP = "holds a soup of the checkpoints of one run, which have no tasks of their own to distill; merge agents"
_VOCABULARIES = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.*", "tekken.json")
"""The files of which a tokenizer must have one."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Merge:
    """A merge on this machine.

    Attributes:
        folder: the folder of its checkpoint.
        recipe: its resolved recipe.
        search: the folder of the search that chose it; None for a merge without a search.
    """

    folder: Path
    recipe: Recipe
    search: Path | None

    @property
    def prompts(self) -> dict[str, Path]:
        """The file or folder of each agent's prompts: from the recipe, or from the search that chose the merge.

        Raises:
            RecipeError: the search's file that names them cannot be read.
        """
        paths: Mapping[str, str] = self.recipe.prompts
        if self.search is not None and (file := self.search / CALIBRATION / PROMPTS).exists():
            paths = read_model(file, dict[str, str], RECORD, "list of prompts")
        return {name: self.recipe.folder / Path(path).expanduser() for name, path in paths.items()}


def open_merge(merged: str | os.PathLike[str]) -> Merge:
    """Open the merge in the folder of a merge or of a search.

    Raises:
        RecipeError: the folder is remote, missing, a sweep, or has no record; or it holds a delta or an adapter, which
            trainers cannot load; with the command that makes a checkpoint.
    """
    if is_remote(text := os.fspath(merged)):
        raise RecipeError(f"{text}: is remote, and a trainer reads the student from a disk; download it first")
    path = Path(merged).expanduser()
    if not path.is_dir():
        raise RecipeError(no_such_folder(path))
    refuse_sweep(path)
    if (path / "soup.json").is_file():
        raise RecipeError(f"{path}: {_SOUP}, or give its best/ to your trainer as it is")
    folder = path / _BEST if (path / _SEARCH).is_file() else path
    if (path / SEARCH_DESCRIPTION).is_file() and folder == path:
        raise RecipeError(f"{path}: holds a search that has not ended; the same `ramerge search` command resumes it")
    if kind := _kind_of_change(folder):
        raise RecipeError(
            f"{folder}: is {kind}, which no trainer loads as the student; merge again without --as-delta or "
            f"--as-adapter, or make a checkpoint of it: ramerge convert {shlex.quote(str(folder))} STUDENT --base BASE"
        )
    if not (folder / RECORDS[0]).is_file() or not (folder / RECIPE).is_file():
        raise RecipeError(
            f"{folder}: is not a finished merge: {RECORDS[0]} or {RECIPE} is missing; give the folder that `ramerge "
            "merge` "
            "or `ramerge search` wrote"
        )
    read_record(folder / RECORDS[0])
    recipe = check(read_document(folder / RECIPE))
    if (lacking := _unloadable_reason(folder)) is not None:
        raise RecipeError(f"{folder}: {lacking}, so no trainer loads it as the student; merge again")
    return Merge(folder.absolute(), recipe, path.absolute() if folder != path else None)


def refuse_single_run_soup(merge: Merge, teachers: Iterable[str]) -> None:
    """Refuse a soup of one run, unless each of its members gets a teacher by name.

    Raises:
        RecipeError: the merge is such a soup.
    """
    method = METHODS.get(merge.recipe.method)
    if method is not None and method.along_run and not merge.recipe.agents.keys() <= set(teachers):
        flags = " ".join(f"--teacher {name}=MODEL" for name in merge.recipe.agents)
        raise RecipeError(f"{merge.folder}: {_SOUP}; if {method.name} averaged agents of several tasks: {flags}")


def teachers_of(merge: Merge, others: Mapping[str, str]) -> dict[str, str]:
    """Return the teacher of each agent, as trainers load it: an absolute folder, or a hub id.

    Args:
        merge: the merge.
        others: teachers that replace an agent's own checkpoint, by the agent's name.

    Raises:
        RecipeError: a checkpoint is missing, or trainers cannot load it; with all problems and commands.
    """
    teachers: dict[str, str] = {}
    problems = [
        f"--teacher {name}: the merge has no such agent; it has {', '.join(merge.recipe.agents)}"
        for name in others
        if name not in merge.recipe.agents
    ]
    for name, agent in merge.recipe.agents.items():
        try:
            if name in others:
                teachers[name] = _loadable_name(name, others[name], Path())
            else:
                teachers[name] = _teacher_checkpoint(name, agent, merge)
        except ValueError as error:
            problems.append(str(error))
    problems += _repeated_teacher_problems(teachers, merge.recipe)
    if problems:
        raise RecipeError(problems)
    return teachers


def _repeated_teacher_problems(teachers: Mapping[str, str], recipe: Recipe) -> list[str]:
    """Return problems of teachers that are the same model, or the base."""
    base: dict[str, str] = {}
    if recipe.base is not None:
        with suppress(ValueError):  # it need not be there any more
            base = {"the base": _loadable_name("base", recipe.base, recipe.folder)}
    return [
        f"teacher {name}: {model} has the weights of {first if first in base else f'teacher {first}'}; give the "
        f"checkpoint that was trained for its task: --teacher {name}=MODEL"
        for (first, other), (name, model) in combinations([*base.items(), *teachers.items()], 2)
        if other == model or _holds_equal_weights(Path(other), Path(model))
    ]


def _holds_equal_weights(folder: Path, other: Path) -> bool:
    """Whether two folders have identical weight files. Files are read only up to the first difference."""
    files, others = ([*sorted(path for each in _WEIGHTS for path in place.glob(each))] for place in (folder, other))
    return (
        bool(files)
        and [path.name for path in files] == [path.name for path in others]
        and all(filecmp.cmp(*pair, shallow=False) for pair in zip(files, others, strict=True))
    )


def _teacher_checkpoint(name: str, agent: Agent, merge: Merge) -> str:
    """Return the checkpoint of an agent. Raises `ValueError` with advice if there is none."""
    command = (
        f"make one: ramerge merge {shlex.quote(str(merge.folder / RECIPE))} TEACHER --method passthrough "
        f"--set {shlex.quote(f'parameters.agent={name}')}; and give it: --teacher {shlex.quote(f'{name}=TEACHER')}"
    )
    if agent.model is None:
        what = "a delta" if agent.delta else "a soup"
        raise ValueError(f"teacher {name}: {agent.written} is {what}, which no trainer loads; {command}")
    try:
        return _loadable_name(name, agent.model, merge.recipe.folder)
    except ValueError as error:
        raise ValueError(f"{error}; {command}") from error


def _loadable_name(name: str, model: str, folder: Path) -> str:
    """Return a model's name as trainers take it. Raises `ValueError` if they cannot load the model."""
    parts = parts_of(model, folder)
    if len(parts) > 1:
        raise ValueError(f"teacher {name}: {model} has adapters on top, which no trainer loads")
    path = parts[0].path
    if path is None:
        if is_hub_id(model):
            return model.partition("@")[0]
        raise ValueError(f"teacher {name}: {model} is {'remote' if is_remote(model) else 'not there'}")
    if (lacking := _unloadable_reason(path)) is not None:
        raise ValueError(f"teacher {name}: {path.resolve()} {lacking}, so no trainer loads it")
    return str(path.resolve())


def _unloadable_reason(folder: Path) -> str | None:
    """Return the reason why trainers cannot load a folder; None if they can."""
    if not folder.is_dir():
        return "is no folder"
    if kind := _kind_of_change(folder):
        return f"is {kind}"
    if not (folder / "config.json").is_file():
        return "has no config.json"
    return None if any(any(folder.glob(each)) for each in _WEIGHTS) else f"has no {' or '.join(_WEIGHTS)}"


def _kind_of_change(folder: Path) -> str | None:
    """Return the kind of change that a folder holds in place of a model; None if it holds no change."""
    if (folder / DELTA_INDEX).is_file():
        return "a delta"
    return "an adapter" if (folder / "adapter_config.json").is_file() else None


def notes_of_changes(merge: Merge, teachers: Mapping[str, str]) -> list[str]:
    """Return notes on agents whose weights were written after the merge.

    Args:
        merge: the merge.
        teachers: the folders of agents, or hub ids, which are not checked.
    """
    merge_time = (merge.folder / RECORDS[0]).stat().st_mtime_ns
    return [
        f"teacher {name}: {folder} was written after the merge, so it may not be the agent that was merged; merge "
        "again, or give the former checkpoint: --teacher"
        for name, folder in teachers.items()
        if any(file.stat().st_mtime_ns > merge_time for each in _WEIGHTS for file in Path(folder).glob(each))
    ]


def check_tokens(merge: Merge) -> list[str]:
    """Return notes if the student has no tokenizer, or teachers may have other tokens than the student."""
    notes = []
    if not any(path for pattern in _VOCABULARIES for path in merge.folder.glob(pattern)):
        notes.append(
            f"{merge.folder}: has no tokenizer, which trainers load from the student's folder; copy the base's "
            "tokenizer files there"
        )
    if merge.recipe.allow.different_tokens or merge.recipe.allow.vocabulary:
        notes.append(
            "the recipe allows models with other tokens (allow.different_tokens, allow.vocabulary); trainers compare "
            "teachers and student token id by token id, so check that the ids mean the same"
        )
    return notes


def check_agents(names: Sequence[str], prompts: Mapping[str, object]) -> None:
    """Check that each agent has prompts, and that prompts belong to agents.

    Raises:
        InputError: an agent has no prompts, or a name is not an agent's.
    """
    if not prompts:
        raise InputError(
            "no prompts: neither the recipe of the merge nor its search names any; give a file of prompts of each "
            f"agent's task: {' '.join(f'--prompts {name}=FILE' for name in names)}"
        )
    if problems := problems_of_names(names, prompts):
        raise InputError(problems)
