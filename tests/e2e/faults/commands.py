"""The commands that write, each with what lies on the disk before it, and what is wrong with what lies there after."""

from __future__ import annotations

import json
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ramerge.analysis.tables import NAMES
from ramerge.core.foundation.errors import OutputError
from ramerge.core.foundation.files import check_beside, check_file, write_file
from ramerge.core.output.lifecycle import build_output, output_dir
from tests.checkpoints import write_simple
from tests.e2e.faults.process import Ending

Files = Mapping[str, bytes]
OLD: Files = {"ramerge.json": b'{"ramerge_version": "0"}', "model.safetensors": b"old" * 1000, "sub/file": b"old"}
AGENTS = {"code": 0.2, "tool": 0.4}


def files_in(folder: Path) -> dict[str, bytes]:
    """All files under a folder, hidden ones too."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(folder: Path, files: Files) -> None:
    """The same files under another folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@dataclass
class Command(ABC):
    """A command over inputs in `folder`.

    Attributes:
        name: for people.
        arguments: its command line; FOLDER stands for the folder.
        exchange: whether the file system can exchange two folders.
    """

    name: str
    arguments: str
    exchange: bool = True

    def words(self, folder: Path) -> list[str]:
        """The command line."""
        return self.arguments.replace("FOLDER", str(folder)).split()

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Put what is there before the command."""

    @abstractmethod
    def expect(self, folder: Path) -> None:
        """Learn what an undisturbed run leaves."""

    @abstractmethod
    def wrong(self, folder: Path, ending: Ending) -> Iterator[str]:
        """What is wrong after a fault, also after the next run."""


@dataclass
class Checkpoint(Command):
    """Writes a folder that appears whole: merge, sweep."""

    old: bool = False

    def prepare(self, folder: Path) -> None:
        """The inputs, and perhaps an old output."""
        for path in folder.glob("*out*"):
            shutil.rmtree(path)
        if self.old:
            put(folder / "out", OLD)

    def expect(self, folder: Path) -> None:
        """The weights to the byte, and the names of all else."""
        self._expected = files_in(folder / "out")

    def _state(self, out: Path) -> str:
        """What is there: absent, old, new or torn."""
        if not out.exists():
            return "absent"
        found = files_in(out)
        if found == OLD:
            return "old"
        weights = {name for name in self._expected if name.endswith(".safetensors")}
        whole = found.keys() == self._expected.keys() and all(found[name] == self._expected[name] for name in weights)
        if whole and all(found.values()):
            with suppress(ValueError):
                for name in found:
                    _ = json.loads(found[name]) if name.endswith(".json") else None
                return "new"
        return "torn"

    def wrong(self, folder: Path, ending: Ending) -> Iterator[str]:
        """Torn, lost, told wrongly, left over."""
        out, said = folder / "out", ending.said
        before = "old" if self.old else "absent"
        state = self._state(out)
        if state not in ("new", before) and not (self.old and state == "absent"):
            yield f"OUT is {state}"
        if ending.code == 0 and state != "new":
            yield f"exit code 0, and OUT is {state}"
        told_new = "is the new one and complete" in said or f"complete: {out}" in said
        told_kept, kept = "of the work is kept" in said, (output_dir(out).work / "journal").exists()
        told_nothing = "nothing was kept" in said or "is as it was" in said
        if ending.code > 0 and "cannot be told" not in said:
            if state == "new" and not told_new:
                yield "OUT is new, which is not said"
            if state != "new" and told_new:
                yield f"OUT is {state}, and said to be new"
            if state != before and told_nothing:
                yield f"OUT is {state}, and was {before}; said is that nothing was kept"
            if state == "absent" and self.old and "and the next run to" not in said:
                yield "OUT is not there, and it is not said where it is"
        if told_kept and not kept:
            yield "said is that work is kept, and it is not"
        if kept and ending.code > 0 and not told_kept and "left over" not in said:
            yield "work is kept, which is not said"

    def wrong_after_error(self, folder: Path) -> Iterator[str]:
        """What is wrong after a next run that restarts from scratch and fails itself."""
        out = folder / "out"
        state, before = self._state(out), "old" if self.old else "absent"
        # it must put back what was there, and remove all else
        with suppress(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with build_output(out, overwrite=True):
                    raise ValueError
            except OutputError as error:
                yield f"the next run is refused: {error}"
        after = self._state(out)
        if after != (before if state == "absent" else state):
            yield f"after the next run OUT is {after}, before it {state}"
        if litter := sorted(path.name for path in folder.glob(".*partial")):
            yield f"left over: {litter}"

    def is_done(self, folder: Path) -> bool:
        """Whether OUT is the new one."""
        return self._state(folder / "out") == "new"

    def wrong_after(self, folder: Path, ending: Ending, after: Ending) -> Iterator[str]:
        """What is wrong after the same command has run again."""
        if after.code != 0 or not self.is_done(folder):
            yield f"the next run ends with {after.code}, OUT is {self._state(folder / 'out')}: {after.said[-300:]}"
        if "of the work is kept" in ending.said and "continuing: " not in after.said:
            yield f"work was kept, but the next run does not go on: {after.said[-300:]}"
        if litter := sorted(path.name for path in folder.glob(".*partial")):
            yield f"left over after the next run: {litter}"


@dataclass
class Texts(Command):
    """Writes single files: analyze, report, table."""

    outputs: tuple[str, ...] = ()

    def prepare(self, folder: Path) -> None:
        """Old files."""
        for name in self.outputs:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("old")

    def expect(self, folder: Path) -> None:
        """What files are compared with."""
        self._expected = {name: (folder / name).read_bytes() for name in self.outputs}

    @staticmethod
    def _hidden(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob(".*partial")}

    def wrong(self, folder: Path, ending: Ending) -> Iterator[str]:
        """Torn, told wrongly, left over."""
        new = []
        for name in self.outputs:
            found, expected = (folder / name).read_bytes(), self._expected[name]
            if found == b"old":
                continue
            new.append(name)
            if not _is_whole(name, found, expected):
                yield f"{name} is torn"
        if ending.code == 0 and len(new) < len(self.outputs):
            yield f"exit code 0, and new are {new}"
        if ending.code > 0 and new and "nothing was kept" in ending.said:
            yield f"new are {new}; said is that nothing was kept"
        for name in self.outputs:
            check_file(folder / name) if name.endswith(".html") else write_file(folder / name, "again")
            check_beside((folder / name).with_name("file"), (folder / name).parent)
        if litter := self._hidden(folder):
            yield f"left over: {sorted(litter)}"


def _is_whole(name: str, found: bytes, expected: bytes) -> bool:
    """Tables are the same in every run; pages and JSON tell times."""
    if name.endswith(".json"):
        with suppress(ValueError):
            return json.loads(found).keys() == json.loads(expected).keys()
        return False
    return found == expected if name.endswith(".csv") else found[-9:] == expected[-9:]


def commands(*, report: bool) -> list[Command]:
    """All that can run here.

    Args:
        report: whether the libraries of the page are there.
    """
    agents = "--base FOLDER/base " + " ".join(f"--agent {name}=FOLDER/{name}" for name in AGENTS) + " --quiet"
    merge, sweep = f"merge {agents} FOLDER/out", f"sweep {agents} --vary parameters.r=0,0.1 FOLDER/out"
    made: list[Command] = [
        Checkpoint("merge", merge),
        Checkpoint("merge --overwrite", f"{merge} --overwrite", old=True),
        Checkpoint("merge --overwrite, no exchange", f"{merge} --overwrite", exchange=False, old=True),
        Checkpoint("merge --shard-size", f"{merge} --shard-size 2KB"),
        Checkpoint("sweep", sweep),
        Checkpoint("sweep --overwrite, no exchange", f"{sweep} --overwrite", exchange=False, old=True),
    ]
    tables = tuple(f"csv/{name}.csv" for name in NAMES)
    made.append(
        Texts(
            "analyze --json --csv",
            f"analyze {agents} --json-file FOLDER/a.json --csv FOLDER/csv",
            outputs=("a.json", *tables),
        )
    )
    if report:
        made.append(Texts("analyze --html", f"analyze {agents} --html FOLDER/a.html", outputs=("a.html",)))
        made.append(Texts("report", "report FOLDER/finished --quiet", outputs=("finished/report.html",)))
    return made


def write_inputs(folder: Path) -> None:
    """What the commands read."""
    write_simple(folder, AGENTS)
