"""Writes a folder that a trainer starts from: student, teachers, prompts and configuration of a merge."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramerge import InputError, Options, RecipeError, __version__
from ramerge.core.foundation.settings import check_mapping
from ramerge.distillation.merged import (
    check_agents,
    check_tokens,
    notes_of_changes,
    open_merge,
    refuse_single_run_soup,
    teachers_of,
)
from ramerge.distillation.prompts import hardest, hold_out, likelihoods_of, read_files, tasks_of
from ramerge.distillation.settings import HandoffSettings
from ramerge.distillation.trainer import TRAINERS, Lesson
from ramerge.sdk.files import check_state, write_texts
from ramerge.sdk.options import check_options, check_settings
from ramerge.sdk.outputs import claim_folder, path_of
from ramerge.sdk.text import Displayed, dumped, enumerated, quantity, unknown

RECORD = "handoff.json"
SCHEMA = "ramerge.handoff/1"
_SETTINGS, _OPTIONS = HandoffSettings(), Options()


@dataclass(frozen=True, repr=False)
class Handoff(Displayed):
    """Record of a handoff to a trainer: the content of `handoff.json`.

    Attributes:
        trainer: the trainer, and the version whose formats the files have.
        student: the folder of the merge, from which the distillation starts.
        teachers: the folder or hub id of each agent, by name.
        prompts: the number of prompts of each teacher in the dataset.
        prompt_files: the file or folder of these prompts.
        held_out: the number of prompts of each teacher that are held out to score the student; empty if none are.
        files: names of the files in the folder.
        command: the command that starts the trainer.
        needs: what the command needs apart from the trainer; empty if nothing.
        notes: notes for the reader.

    Example:
        >>> prompts = {name: f"{name}.jsonl" for name in ("code", "tool", "memory")}
        >>> merged = ramerge.merge("recipe.yaml", "merged")
        >>> handoff = ramerge.handoff("merged", "student", prompts=prompts)
        >>> handoff.prompts["code"]
        8
    """

    trainer: str
    student: str
    teachers: Mapping[str, str]
    prompts: Mapping[str, int]
    files: tuple[str, ...]
    command: str
    needs: str = ""
    notes: tuple[str, ...] = ()
    prompt_files: Mapping[str, str] = field(default_factory=dict)
    held_out: Mapping[str, int] = field(default_factory=dict)

    def _summary(self) -> Mapping[str, object]:
        return {"trainer": self.trainer, "student": self.student, "teachers": len(self.teachers), **self.prompts}

    def lines(self) -> list[str]:
        """A line for each teacher: its number of prompts, their files, and its location."""
        return [
            f"{name}: {quantity(count, 'prompt')} of {self.prompt_files[name]}"
            f"{f', {self.held_out[name]:,} more held out' if self.held_out else ''}; teacher {self.teachers[name]}"
            for name, count in self.prompts.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {"schema": SCHEMA, "ramerge_version": __version__, **asdict(self)}

    def to_json(self) -> str:
        """Return the text of `handoff.json`."""
        return dumped(self.to_dict())


def handoff(
    merged: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    trainer: str = "trl",
    prompts: Mapping[str, str | os.PathLike[str]] | None = None,
    teachers: Mapping[str, str | os.PathLike[str]] | None = None,
    settings: HandoffSettings = _SETTINGS,
    options: Options = _OPTIONS,
) -> Handoff:
    """Write what a trainer needs to distill the agents of a merge (teachers) into the merge (student).

    No weights are read or copied: the files refer to the student and the teachers by path or hub id.

    Args:
        merged: the folder of a merge, or of a search, whose best merge is used.
        out: the folder to write; a new or empty one, or with `options.overwrite` one that `handoff` has written.
        trainer: the trainer's name in the registry `ramerge.trainers`: `trl`, `trl-async`, `verl`, `nemo-rl` or
            `slime`.
        prompts: a file or folder of prompts of each agent's task, by the agent's name; by default, the prompts of the
            merge's recipe or of its search.
        teachers: checkpoints that replace an agent's own, by the agent's name, if its own is an adapter, a delta or has
            moved; by default, the recipe's.
        settings: the choice of prompts, by default all, and the length of replies.
        options: `overwrite` applies.

    Returns:
        The record of the written files, with the command that starts the trainer.

    Raises:
        RecipeError: there is no merge with its record, trainers cannot load an agent's checkpoint, or `out` is
            one of the inputs or holds something else.
        InputError: there are no prompts, an agent has none, or a file is wrong. The first error lists all problems.
        OutputError: a file cannot be written.

    Example:
        >>> merged = ramerge.merge("recipe.yaml", "merged")
        >>> prompts = {name: f"{name}.jsonl" for name in ("code", "tool", "memory")}
        >>> handoff = ramerge.handoff("merged", "for-verl", trainer="verl", prompts=prompts)
        >>> handoff.files
        ('mopd.yaml', 'prompts.jsonl', 'reward.py', 'handoff.json')
    """
    check_options(options)
    check_settings("settings", settings, HandoffSettings)
    check_mapping("prompts", prompts or {}, '{"code": "code.jsonl"}')
    check_mapping("teachers", teachers or {}, '{"code": "coder"}')
    failures = _CombinedFailures()
    source, folder = Path(merged).expanduser(), path_of(os.fspath(out))
    with failures.caught():
        student = open_merge(merged)
    if trainer not in TRAINERS:
        failures.add(RecipeError(unknown("trainer", trainer, [*TRAINERS])))
    failures.raise_all()
    refuse_single_run_soup(student, teachers or {})
    agents = [*student.recipe.agents]
    files = {name: Path(path).expanduser() for name, path in (prompts or {}).items()}
    if not files.keys() >= {*agents}:
        files = {**student.prompts, **files}
    names: dict[str, str] = {}
    likelihoods: dict[str, dict[str, float]] = {}
    with failures.caught():
        check_agents(agents, files)
    with failures.caught():
        names = teachers_of(student, {name: os.fspath(model) for name, model in (teachers or {}).items()})
    with failures.caught():
        inputs = [source, *files.values(), *map(Path, names.values())]
        _claim_folder(folder, inputs, options)
    with failures.caught():
        own_prompts = read_files(files)
    with failures.caught():
        likelihoods = likelihoods_of(student.search) if settings.hardest is not None else {}
    failures.raise_all()
    own_prompts, held_out = hold_out(own_prompts, settings.hold_out) if settings.hold_out else (own_prompts, {})
    own = {name: place for name, place in names.items() if name not in (teachers or {})}
    notes = [*notes_of_changes(student, own), *check_tokens(student)]
    if settings.hardest is not None:
        counts = {
            name: f"{sum(prompt.key in likelihoods.get(name, {}) for prompt in each)} of {len(each)} of {name}"
            for name, each in own_prompts.items()
        }
        own_prompts = hardest(own_prompts, likelihoods, settings.hardest)
        counts_text = enumerated(list(counts.values()))
        notes.append(
            f"--hardest {settings.hardest}: only prompts that the search has scored can be kept: {counts_text}"
        )
    tasks, template = tasks_of(own_prompts, student.folder)
    tasks_held_out, _ = tasks_of(held_out, student.folder) if held_out else ([], template)
    trainer_format = TRAINERS[trainer]
    lesson = Lesson(
        student.folder.resolve(), names, tasks, template, settings.max_new, folder.absolute(), tasks_held_out
    )
    contents = trainer_format.files(lesson)
    result = Handoff(
        trainer_format.title,
        str(lesson.student),
        names,
        {name: len(each) for name, each in own_prompts.items()},
        (*sorted(contents), RECORD),
        trainer_format.command.format(out=shlex.quote(str(lesson.out))),
        trainer_format.needs,
        tuple(notes),
        {name: str(path) for name, path in files.items()},
        {name: len(each) for name, each in held_out.items()},
    )
    # the record comes last: a folder with one is whole
    write_texts([*((folder / name, text) for name, text in contents.items()), (folder / RECORD, result.to_json())])
    return result


class _CombinedFailures:
    """Errors that are raised together, as one of the first one's type."""

    def __init__(self) -> None:
        self._errors: list[InputError] = []

    def add(self, error: InputError) -> None:
        self._errors.append(error)

    @contextmanager
    def caught(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self.add(error)

    def raise_all(self) -> None:
        if self._errors:
            problems = [problem for error in self._errors for problem in error.messages]
            raise type(self._errors[0])(dict.fromkeys(problems))


def _claim_folder(folder: Path, inputs: list[Path], options: Options) -> None:
    """Refuse a folder that the command reads, or that holds anything but an earlier handoff."""
    claim_folder(folder, inputs)
    check_state(folder)
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder}: is a file; choose a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / RECORD).is_file():
        raise RecipeError(f"{folder}: holds files that `ramerge handoff` did not write; choose another folder")
    if not options.overwrite:
        raise RecipeError(f"{folder}: holds an earlier handoff; choose another folder, or replace it: --overwrite")
