"""`Lesson`, which a trainer receives, and the registry of trainers: entry points in `ramerge.trainers`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ruamel.yaml import YAML

from ramerge.sdk.registry import Registry

_PROMPTS, _HELD_OUT = "prompts.jsonl", "held_out.jsonl"


@dataclass(frozen=True)
class TaskPrompt:
    """A prompt of the dataset.

    Attributes:
        teacher: the agent that was trained on the task.
        messages: the conversation up to the reply. A plain-text prompt is one message with the text as its content;
            `Lesson.template` passes the text on unchanged.
        truth: the ground truth for a reward function; None if unknown.
    """

    teacher: str
    messages: Sequence[Mapping[str, str]]
    truth: object = None


@dataclass(frozen=True)
class Lesson:
    """Everything that a trainer needs in order to distill teachers into a student.

    Attributes:
        student: the folder of the merge, absolute.
        teachers: name of each agent to its absolute folder or hub id.
        tasks: prompts to train on.
        template: the chat template that writes the messages as they are; None for the tokenizer's own.
        max_new: the most tokens of a reply.
        out: the folder that will hold the files, absolute.
        held_out: prompts to score the student with, which it is not trained on.
    """

    student: Path
    teachers: Mapping[str, str]
    tasks: Sequence[TaskPrompt]
    template: str | None
    max_new: int
    out: Path
    held_out: Sequence[TaskPrompt] = ()

    def place(self, name: str) -> str:
        """Return the absolute path of a file in the folder."""
        return str(self.out / name)

    @property
    def validation(self) -> str:
        """The absolute path of the prompts for trainers that validate: the held-out prompts, or else all."""
        return self.place(_HELD_OUT if self.held_out else _PROMPTS)

    def datasets(self, rows: Callable[[Sequence[TaskPrompt]], str]) -> dict[str, str]:
        """Return the files of prompts: `prompts.jsonl`, and if some are held out, `held_out.jsonl`.

        Args:
            rows: writes prompts in the trainer's form.
        """
        files = {_PROMPTS: self.tasks, _HELD_OUT: self.held_out}
        return {name: rows(tasks) for name, tasks in files.items() if tasks}


@dataclass(frozen=True)
class Trainer:
    """A trainer that distills several teachers into one student, on replies that the student samples.

    Attributes:
        title: the trainer's name, and the version whose formats are written.
        files: returns the files that the trainer reads, by name in OUT.
        command: the command that starts the trainer, with `{out}` for the folder.
        needs: what the command needs apart from the trainer itself; empty if nothing.
        interface: the version of the plug-in interface that it is written for.

    Example:
        >>> from ramerge.distillation.trainer import Trainer, json_lines
        >>> mine = Trainer("mine 1.0", lambda lesson: {"teachers.json": json_lines([lesson.teachers])}, "mine {out}")
        >>> mine.command.format(out="student")
        'mine student'
    """

    title: str
    files: Callable[[Lesson], Mapping[str, str]]
    command: str
    needs: str = ""
    interface: int | None = None


TRAINERS: Registry[Trainer] = Registry("ramerge.trainers", Trainer)
"""Every trainer, by the name that `--for` takes."""


def json_lines(rows: Iterable[Mapping[str, object]]) -> str:
    """Return JSON Lines: one object per line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_yaml(values: Mapping[str, object], comment: str = "") -> str:
    """Return YAML with a comment at the top, of one or more lines."""
    stream, yaml = io.StringIO(), YAML()
    yaml.default_flow_style = False
    yaml.width = 1_000_000  # no paths are folded
    yaml.dump(dict(values), stream)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + stream.getvalue()


def script(name: str) -> str:
    """Return a file of `trainers/_scripts/`, which is written unchanged."""
    return (resources.files("ramerge.distillation.trainers") / "_scripts" / name).read_text(encoding="utf-8")
