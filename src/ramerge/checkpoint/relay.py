"""An output that is elsewhere: files are made on this machine, sent, and emptied.

Weights are written into files of a folder of the stage, as those of an output on this machine are, and a journal beside
them says which blocks are done. A file that is complete is sent; then it is emptied, so the stage takes little disk:

    sent        the id of the run, and each file that was sent, with what tells whether it is still there

The rest is as in `checkpoint.stage`. A run that was killed goes on there: blocks in the journal are in a file here, or
in one that was sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ramerge.checkpoint.outputs import free_bytes
from ramerge.checkpoint.stage import Keeper, Output, Stage, built, discarded, hidden_folder
from ramerge.checkpoint.storage.destination import Destination, Reaches
from ramerge.checkpoint.storage.place import Place

_SENT = "sent"
# How many files are on the stage, about: one that is sent, and two more that are made.
_FILES = 3


@contextmanager
def relayed(destination: Destination, *, overwrite: bool, keeper: Keeper) -> Iterator[Relay]:
    """A new folder on the stage. What is in it at the end of the `with` block completes the model elsewhere.

    Signals, what a stopped run leaves, and errors are as for `stage.staged`.

    Raises:
        PlanError: the place elsewhere holds something and `overwrite` is off.
        OutputError: another run writes there, or it or
            the stage cannot be written to.
    """
    with built(_Elsewhere(destination), overwrite=overwrite, keeper=keeper) as stage:
        assert isinstance(stage, Relay)
        yield stage


def discard(destination: Destination) -> list[str]:
    """Remove what stopped runs have left on the stage and elsewhere, also those of other machines.

    Raises:
        OutputError: a process on this machine writes there, or what is there cannot be removed.
    """
    return discarded(_Elsewhere(destination))


def problems_of(
    destination: Destination, inputs: Sequence[Place], size: int, largest: int, *, overwrite: bool
) -> list[str]:
    """All problems with an output elsewhere.

    Args:
        destination: the place.
        inputs: files and folders that are read.
        size: bytes that will be written.
        largest: bytes of the largest file.
        overwrite: whether what is there would be replaced.
    """
    stage, local = destination.stage, _local(destination)
    folder = next(each for each in (stage, *stage.parents) if each.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        return [f"{stage}: no permission to write there; choose another folder for files until they are sent (--stage)"]
    problems = destination.problems(inputs, _Sent(hidden_folder(local) / _SENT).run, overwrite=overwrite)
    free, needed = free_bytes(local), min(size, _FILES * largest)
    if needed > free:
        problems.append(
            f"{destination}: needs {needed:,} bytes of disk in {stage} for files until they are sent, but only "
            f"{free:,} are free; choose another folder (--stage), or smaller files (--shard-size)"
        )
    return problems


def free_here(destination: Destination) -> int:
    """Free bytes of the disk on which files lie until they are sent."""
    return free_bytes(_local(destination))


class Relay(Stage):
    """See `Stage`. Large files can be sent before the others are made.

    Args:
        folder: the folder.
        kept: files that an earlier run has made.
        destination: where they are sent.
        sent: what was sent.
    """

    reserves = False

    def __init__(self, folder: Path, kept: Collection[str], destination: Destination, sent: _Sent) -> None:
        super().__init__(folder, kept)
        self._destination, self._sent = destination, sent
        self._cleared = False

    def send(self, name: str, reaches: Reaches) -> None:
        """Send a file, unless that was done, and empty it here.

        What the place held before is removed when the first file is ready, and not earlier: until then the merge may
        still be refused.

        Args:
            name: the file.
            reaches: see `Destination.send`.

        Raises:
            OutputError: it cannot be sent.
        """
        path = self.folder / name
        size = path.stat().st_size

        def reaches_and_clears(stop: int) -> None:
            reaches(stop)
            if stop == size:
                self.clear()

        if name in self._sent.files:
            reaches(size)
        else:
            self._sent.add(name, self._destination.send(name, path, reaches_and_clears))
        os.truncate(path, 0)
        os.truncate(path, size)

    def clear(self) -> None:
        """Remove, once, what the place held before."""
        if not self._cleared:
            self._destination.clear(self._sent.id, self._sent.files)
            self._cleared = True

    def commit(self) -> None:
        """Send what was not sent, which completes the model."""
        self.clear()
        there = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        small = {name: path for name, path in there.items() if name not in self._sent.files}
        self._destination.commit(self._sent.id, small, self._sent.files)


class _Sent:
    """What was sent, in a file that is on the disk before a file that was sent is emptied.

    Attributes:
        run: the id of the run that has begun; None if none has.
        is_new: whether it has begun in this process.
        files: by name, what `Destination.send` has said.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.run: str | None = None
        self.is_new = False
        self.files: dict[str, str] = {}
        with suppress(OSError, ValueError, LookupError, TypeError):
            lines = path.read_text().splitlines()
            self.run = str(json.loads(lines[0])["run"])
            for line in lines[1:]:
                name, said = json.loads(line)  # the last line may be torn
                self.files[str(name)] = str(said)

    @property
    def id(self) -> str:
        """The run that has begun."""
        assert self.run is not None
        return self.run

    def begin(self) -> None:
        """Forget what was sent. The id stays: what lies elsewhere is of this run."""
        self.is_new = self.run is None
        self.run, self.files = self.run or secrets.token_hex(8), {}
        self._path.unlink(missing_ok=True)
        self._append({"run": self.run})

    def add(self, name: str, said: str) -> None:
        self._append([name, said])
        self.files[name] = said

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _append(self, said: object) -> None:
        with self._path.open("ab") as file:
            file.write(f"{json.dumps(said)}\n".encode())
            file.flush()
            os.fsync(file.fileno())


class _Elsewhere(Output):
    """A place elsewhere, and the folder on the stage."""

    def __init__(self, destination: Destination) -> None:
        super().__init__(_local(destination))
        self.named = str(destination)
        self._destination = destination
        self._sent = _Sent(self._work / _SENT)
        self._claimed = self._cleans = False
        self._removed: list[str] = []

    def _fits(self, keeper: Keeper, built: int | None) -> bool:
        self._sent = _Sent(self._work / _SENT)  # now that no other process writes it
        fits = self._sent.run is not None and keeper.fits(self._work, built)
        if fits and not self._destination.holds(self._sent.files):
            self._remove()
            fits = keeper.fits(self._work, None)
            keeper.reason = "what an earlier run had sent has changed there, or was removed"
        if not fits:
            self._sent.begin()
        return fits

    def _made_stage(self, kept: Collection[str]) -> Stage:
        return Relay(self._new, kept, self._destination, self._sent)

    def _refuse_occupied(self, overwrite: bool) -> None:
        self._destination.claim(self._sent.id, overwrite=overwrite)
        self._claimed = True

    def publish(self, overwrite: bool) -> None:
        """Send the rest."""
        assert isinstance(self._stage, Relay)
        self._stage.check()
        self._stage.commit()
        self.placed = True

    def _is_placed(self) -> bool:
        return self.placed is True

    def settle(self) -> bool:
        """Remove what is not kept, here and elsewhere."""
        if not self._keeps and not self.placed and (self._claimed or self._cleans):
            self._removed = self._destination.discard(None if self._cleans else self._sent.id)
        back = super().settle()
        if not self._keeps and (self._claimed or self._cleans or self._sent.is_new):
            self._sent.remove()
        return back

    def discard(self) -> list[str]:
        """See `stage.discard`."""
        self._cleans, there = True, os.path.lexists(self._work)
        self._make()
        try:
            here = super().discard()
        finally:
            self._unmake()
        return [*(here if there else []), *self._removed]

    def fate(self) -> str:
        """A phrase that says what is there now."""
        return f"{self.named} is complete" if self.placed else self._kept()

    def reason(self, error: OSError) -> str:
        """An error of the operating system, on the stage."""
        return f"{super().reason(error)}; files lie in {self._out.parent} until they are sent (--stage)"


def _local(destination: Destination) -> Path:
    """The folder of the stage beside which the hidden one lies."""
    digest = hashlib.sha256(destination.address.encode()).hexdigest()[:12]
    return destination.stage / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', destination.address)[:80]}~{digest}"
