"""The commands that write, each with what lies on the disk before it, and what is wrong with what lies there after."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ramerge.analysis.tables import NAMES
from ramerge.core.foundation.errors import OutputError
from ramerge.core.foundation.files import check_can_create, check_file, write_file
from ramerge.core.output.lifecycle import build_output, output_dir
from ramerge.demo.run import AGENTS as DEMO
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
            check_can_create((folder / name).with_name("file"), (folder / name).parent)
        if litter := self._hidden(folder):
            yield f"left over: {sorted(litter)}"


@dataclass
class State(Command):
    """Keeps state in a folder and resumes from it: search, greedy soup, calibrate. Somebody else may have changed it.

    Attributes:
        result: the file that is the same after every complete run.
    """

    result: str = ""

    def prepare(self, folder: Path) -> None:
        """No state, and a file outside of it."""
        shutil.rmtree(folder / "state", ignore_errors=True)
        (folder / "victim").write_bytes(b"victim")

    def expect(self, folder: Path) -> None:
        """Keep what a complete run leaves, and its result."""
        self._whole = files_in(folder / "state")

    def damage(self, folder: Path, drawn: random.Random) -> str:
        """Put a complete state in place in which one file is another thing; what it is."""
        put(folder / "state", self._whole)
        inner = Path(drawn.choice(sorted(self._whole)))
        path = folder / "state" / drawn.choice([inner, *inner.parents][:-1])
        kind = drawn.choice(["link", "device", "pipe", "type", "end"])
        content = path.read_bytes() if path.is_file() else b""
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if kind == "link":
            path.symlink_to(folder / "victim")
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(b'{"digests": [0], "a": {"b": null}}' if kind == "type" else content[: len(content) // 2])
        return f"{kind} at {path.relative_to(folder)}"

    def wrong(self, folder: Path, ending: Ending) -> Iterator[str]:
        """Changed outside."""
        if (folder / "victim").read_bytes() != b"victim":
            yield "a file outside of the folder was replaced"
        if ending.code == -signal.SIGALRM:
            yield "it hangs"

    def wrong_after(self, folder: Path, after: Ending) -> Iterator[str]:
        """What is wrong after the same command has run again, over a state that only a fault has touched."""
        path = folder / "state" / self.result
        if after.code != 0 or not path.is_file() or path.read_bytes() != self._whole[self.result]:
            yield f"the next run ends with {after.code}, or {self.result} differs: {after.said[-300:]}"


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
            f"analyze {agents} --json-file FOLDER/a.json --csv FOLDER/csv --overwrite",
            outputs=("a.json", *tables),
        )
    )
    if report:
        made.append(Texts("analyze --html", f"analyze {agents} --html FOLDER/a.html --overwrite", outputs=("a.html",)))
        made += _states(agents)
        made.append(Texts("report", "report FOLDER/finished --quiet --overwrite", outputs=("finished/report.html",)))
    return made


def _states(agents: str) -> list[Command]:
    """The commands that keep state, as far as their libraries are there."""
    score, best = "--score FOLDER/scores.py:score", "best/model.safetensors"
    made: list[Command] = [
        State(
            "soup greedy", f"soup FOLDER/code FOLDER/tool FOLDER/state --strategy greedy {score} --quiet", result=best
        )
    ]
    if find_spec("optuna"):
        search = f"search {agents.removesuffix(' --quiet')} FOLDER/state --vary parameters.r=0,0.1 {score}"
        made.append(State("search", search, result=best))
    if find_spec("torch") and find_spec("transformers"):
        demo = f"--base {DEMO / 'base'} --agent code={DEMO / 'coder'} --prompts code=FOLDER/code.jsonl"
        few = "--prompt-count 2 --max-new 4 --device cpu --quiet"
        made.append(State("calibrate", f"calibrate {demo} FOLDER/state {few}", result="code/replies.jsonl"))
    return made


def write_inputs(folder: Path) -> None:
    """What the commands read."""
    write_simple(folder, AGENTS)
    (folder / "scores.py").write_text("def score(model):\n    return [1.0, 0.5]\n")
    (folder / "code.jsonl").write_text('{"prompt": "def f("}\n{"prompt": "def g("}\n')
