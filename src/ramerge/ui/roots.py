"""The roots: folders in which the page may read models and write outputs, wherever links lead."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ramerge import RamergeError, RecipeError
from ramerge.calibration.prompts import files_of
from ramerge.core.formats.recorded import CALIBRATION
from ramerge.core.formats.registry import by_priority
from ramerge.core.foundation.systems import NO_LINK
from ramerge.core.recipe.paths import names_in, parts_of
from ramerge.core.storage.schemes import on_hub
from ramerge.sdk.recipes import Document
from ramerge.sdk.storage import is_hub_id, is_remote
from ramerge.sdk.text import is_unicode, quoted, reason

_DEEPEST = 5
_MOST_FOLDERS = 4000


@dataclass(frozen=True)
class Roots:
    """The folders that the page may read. Outputs are written into the first folder, where commands also run.

    Attributes:
        is_shared: whether several users write into the first folder, so that its content is not listed.
    """

    folders: tuple[Path, ...]
    remote: bool = True
    is_shared: bool = False

    @property
    def home(self) -> Path:
        """The first root: the folder of outputs."""
        return self.folders[0]

    def path(self, text: str) -> Path:
        """Return the path of a name from the page, inside the roots; relative to the first root unless absolute."""
        try:
            path = self.home / Path(text).expanduser()
            inside = is_unicode(text) and any(map(Path(os.path.realpath(path)).is_relative_to, self.folders))
        except (ValueError, RuntimeError, OSError):
            inside = False
        if not text.strip() or not inside:
            raise RecipeError(f"{quoted(text)}: is not in a folder that this page may read (ramerge ui --root FOLDER)")
        return path

    def read(self, text: str, most: int) -> str:
        """Return the text of a file inside the roots, at most `most` bytes; empty if there is no file.

        Links are not followed, so that a link created just now cannot lead outside.
        """
        path = self.path(text)
        if not path.exists():
            return ""
        try:
            with open(os.open(path, os.O_RDONLY | NO_LINK | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # noqa: PTH123
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise RecipeError(f"{quoted(text)}: is no file")
                return file.read(most).decode("utf-8", "replace")
        except OSError as error:
            raise RecipeError(f"{quoted(text)}: cannot be read: {reason(error)}") from error

    def output(self, text: str) -> str:
        """Check the name of an output: a folder in the first root, or a remote location."""
        if is_remote(text):
            if not self.remote:
                raise RecipeError(f"{quoted(text)}: outputs are folders here; give the name of one")
            return text
        path = self.path(text)
        if not Path(os.path.realpath(path)).is_relative_to(self.home) or path == self.home:
            raise RecipeError(f"{quoted(text)}: outputs are folders in {self.home}; give the name of one")
        name = self.short(path)
        return f"./{name}" if name.startswith("-") else name

    def prompts(self, files: Mapping[str, str]) -> dict[str, str]:
        """Check the names of prompts by agent: each a file, or a folder of files, none of which lead outside."""
        paths, problems = {}, []
        for agent, text in files.items():
            try:
                paths[agent] = self._prompts_path(text)
            except RamergeError as error:
                problems += [f"prompts of {agent}: {problem}" for problem in error.messages]
        if problems:
            raise RecipeError(problems)
        return paths

    def next_to(self, model: str, agent: str) -> str:
        """Return the name of an agent's prompts if a file called after it lies next to its model's folder; otherwise
        empty.
        """
        try:
            return self._prompts_path(str(self.path(model).with_name(f"{agent}.jsonl")))
        except (RamergeError, ValueError):
            return ""

    def function(self, text: str) -> str:
        """Check the name of a function in a file, FILE.py:FUNCTION."""
        file, _, name = text.strip().rpartition(":")
        if not file.endswith(".py") or not name.isidentifier():
            raise RecipeError(f"{quoted(text)}: must be FILE.py:FUNCTION")
        path = self.path(file)
        if not path.is_file():
            raise RecipeError(f"{quoted(text)}: there is no such file in {self.home}")
        return f"{self.short(path)}:{name}"

    def _prompts_path(self, text: str) -> str:
        if not text:
            raise RecipeError("name a file of them, or a folder of rollouts")
        path = self.path(text)
        if not path.exists():
            raise RecipeError(f"{quoted(text)}: there is no such file or folder in {self.home}")
        for file in files_of(path):
            self.path(str(file))
        return self.short(path)

    def short(self, path: Path) -> str:
        """Return a path as commands, which run in the first root, and recipes name it."""
        return str(path.relative_to(self.home)) if path.is_relative_to(self.home) else str(path)

    def shorten(self, text: str) -> str:
        """Make paths in the first root relative to it in readable text."""
        return text.replace(f"{self.home}/", "")

    def check(self, document: Document) -> None:
        """Refuse a draft or recipe that names files outside the roots."""
        problems: list[str] = []
        for model in names_in(document):
            for part in parts_of(model, document.folder):
                try:
                    self.check_model(str(part.path or part.written))
                except RamergeError as error:
                    problems += error.messages
        for path in document.prompts.values():
            try:
                self._prompts_path(str(path))
            except RamergeError as error:
                problems += error.messages
        allow = document.stated("allow")
        if isinstance(allow, Mapping) and allow.get("outside_links"):
            problems.append("allow.outside_links: links out of a model's folder are not followed by this page")
        if problems:
            raise RecipeError(dict.fromkeys(problems))

    def check_model(self, name: str) -> None:
        """Refuse a model that this page may not read."""
        if is_remote(name):
            if not self.remote and on_hub(name) is None:
                raise RecipeError(f"{quoted(name)}: buckets are not read by this page")
        elif not is_hub_id(name) or (self.home / name).exists():
            self.path(name)

    def models(self) -> list[tuple[str, str]]:
        """Find the folders of models in the roots, up to a depth and a number of folders.

        Returns:
            The label and name of each; names inside the first root are relative to it.
        """
        budget = iter(range(_MOST_FOLDERS))
        labels: dict[str, str] = {}
        for root in self.folders[self.is_shared :]:
            for path in _walk_models(root, _DEEPEST, budget):
                label = str(path.relative_to(root)) if path != root else path.name
                labels.setdefault(self.short(path), label if root == self.home else f"{root.name}/{label}")
        return [(label, name) for name, label in labels.items()]


def _walk_models(folder: Path, depth: int, budget: Iterator[int]) -> Iterator[Path]:
    """Yield folders of models in a folder. Folders inside a model are part of it, and links are not followed.

    The output of `ramerge calibrate` looks like a model, but is not one, and is skipped.
    """
    if next(budget, None) is None or (folder / CALIBRATION).exists():
        return
    try:
        is_model = any(format.find(folder) is not None for format in by_priority())
        inner = [] if is_model or not depth else sorted(folder.iterdir())
    except OSError:
        return
    if is_model:
        yield folder
    for entry in inner:
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".") and is_unicode(str(entry)):
            yield from _walk_models(entry, depth - 1, budget)
