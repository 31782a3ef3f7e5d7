"""An output that is elsewhere: files are made on this machine, sent, and emptied.

Weights are written into files of a folder of the stage, as those of an output on this machine are, and a journal beside
them says which blocks are done. A file that is complete is sent; then it is emptied, so the stage takes little disk:

    sent        the id of the run, and each file that was sent, with what tells whether it is still there
    sent.3.8f   the same of files that rank 3 has sent, if several processes send

Of several processes, each sends the files that it has made, and the first one does the rest. They share the folder; or
each has one of its own, and the small files in it are carried from one to the other (`Destination.board`). Then what
was made and not sent is lost with its process.

The rest is as in `checkpoint.stage`. A run that was killed goes on there: blocks in the journal are in a file here, or
in one that was sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from ramerge.checkpoint.outputs import Out, free_bytes
from ramerge.checkpoint.stage import Keeper, Output, Stage, built, discarded, hidden_folder, staged
from ramerge.checkpoint.storage.destination import Destination, Reaches
from ramerge.checkpoint.storage.place import Place
from ramerge.foundation import store
from ramerge.foundation.errors import OutputError, SendError
from ramerge.foundation.files import lock

_SENT = "sent"
# How many files of a process are on the stage, about: one that is sent, and two more that are made.
_FILES = 3
_SECONDS_TO_SHOW = 120.0
_SECONDS_TO_REMOVE = 5.0
_PAUSE = 0.05


@contextmanager
def relayed(
    destination: Destination, *, overwrite: bool, keeper: Keeper | None = None, shared: bool = False
) -> Iterator[Relay]:
    """A new folder on the stage. What is in it at the end of the `with` block completes the model elsewhere.

    Signals, what a stopped run leaves, and errors are as for `stage.staged`.

    Args:
        destination: the place.
        overwrite: whether what is there is replaced.
        keeper: see `stage.staged`.
        shared: whether other processes send files, too (`joined`).

    Raises:
        PlanError: the place elsewhere holds something and `overwrite` is off.
        OutputError: another run writes there, or it or
            the stage cannot be written to.
    """
    _clear_others(destination)
    with built(_Elsewhere(destination, shared), overwrite=overwrite, keeper=keeper) as stage:
        assert isinstance(stage, Relay)
        yield stage


def made_at(
    out: Out, *, overwrite: bool, keeper: Keeper | None = None, shared: bool = False
) -> AbstractContextManager[Stage]:
    """A new folder for an output, here (`stage.staged`) or elsewhere (`relayed`)."""
    if isinstance(out, Path):
        return staged(out, overwrite=overwrite, keeper=keeper)
    return relayed(out, overwrite=overwrite, keeper=keeper, shared=shared)


def joined(destination: Destination, files: Collection[str], work: Path, own: str) -> Relay:
    """The folder that another process has made with `relayed`, for a further process that sends files.

    Args:
        destination: the place.
        files: all large files.
        work: the hidden folder that holds the stage.
        own: the number of this process, from 1, and a random one.
    """
    destination.join(files)
    kept = () if destination.carries else files
    return Relay(work / "new", kept, destination, _Sent(work, own), files, is_apart=destination.carries)


def work_of(destination: Destination, number: int = 0) -> Path:
    """The hidden folder on the stage. Each rank has its own where they need not share it."""
    local = _local(destination)
    return hidden_folder(local.with_name(f"{local.name}.{number}") if number and destination.carries else local)


@contextmanager
def apart(destination: Destination, number: int) -> Iterator[None]:
    """The hidden folder of a rank that shares it with no other; removed when the `with` block ends.

    Raises:
        OutputError: another process uses it.
    """
    _clear_others(destination)
    work = work_of(destination, number)
    try:
        descriptor = _locked(work)
    except BlockingIOError as error:
        raise OutputError(f"{work}: another process is at work there; wait for it, or choose another stage") from error
    try:
        (work / "new").mkdir()
        yield
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(descriptor)


def _locked(work: Path) -> int:
    """The lock of a new folder. Another rank may take it for one that was left, and lock it while it removes it.

    Raises:
        BlockingIOError: another process keeps it.
    """
    until = time.monotonic() + _SECONDS_TO_REMOVE
    while True:
        work.mkdir(parents=True, exist_ok=True)
        try:
            return lock(work / "lock", wait=False)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(_PAUSE)


def _clear_others(destination: Destination) -> None:
    """Remove the folders of ranks that were killed, as far as they are on this stage."""
    local = _local(destination)
    for work in local.parent.glob(f".{escape(local.name)}.*.ramerge-partial"):
        with suppress(BlockingIOError, FileNotFoundError):
            descriptor = lock(work / "lock", wait=False)
            shutil.rmtree(work, ignore_errors=True)
            os.close(descriptor)


def discard(destination: Destination) -> list[str]:
    """Remove what stopped runs have left on the stage and elsewhere, also those of other machines.

    Raises:
        OutputError: a process on this machine writes there, or what is there cannot be removed.
    """
    _clear_others(destination)
    return discarded(_Elsewhere(destination))


def problems_of(destination: Destination, inputs: Sequence[Place], needed: int, *, overwrite: bool) -> list[str]:
    """All problems with an output elsewhere.

    Args:
        destination: the place.
        inputs: files and folders that are read.
        needed: bytes that are on the stage at a time (`needed_of`).
        overwrite: whether what is there would be replaced.
    """
    stage = destination.stage
    folder = next(each for each in (stage, *stage.parents) if each.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        return [f"{stage}: no permission to write there; choose another folder for files until they are sent (--stage)"]
    problems = destination.problems(inputs, lambda: _Sent(work_of(destination)).run, overwrite=overwrite)
    return [*problems, *room_problems(destination, needed)]


def needed_of(size: int, largest: int, processes: int = 1) -> int:
    """Bytes on the stage at a time.

    Args:
        size: bytes of all files.
        largest: bytes of the largest file, of all points together.
        processes: how many send.
    """
    return min(size, processes * _FILES * largest)


def room_problems(destination: Destination, needed: int) -> list[str]:
    """The problem that so many bytes have no room on the stage, if it is one. What a stopped run left there counts."""
    free = free_here(destination)
    with suppress(FileNotFoundError):  # another rank may remove it meanwhile
        free += sum(512 * path.lstat().st_blocks for path in (work_of(destination) / "new").rglob("*"))
    if needed <= free:
        return []
    return [
        f"{destination}: needs {needed:,} bytes of disk in {destination.stage} for files until they are sent, but only "
        f"{free:,} are free; choose another folder (--stage), or smaller files (--shard-size)"
    ]


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
        large: files that are sent before the end, by this process or another one.
        is_apart: whether other processes that send have folders of their own.
    """

    def __init__(
        self,
        folder: Path,
        kept: Collection[str],
        destination: Destination,
        sent: _Sent,
        large: Collection[str],
        *,
        is_apart: bool,
    ) -> None:
        super().__init__(folder, kept, reserves=False)
        self._large = large
        self.is_apart = is_apart
        self._destination, self._sent = destination, sent
        self._cleared = False

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, the folder: it writes, and this one sends."""
        return Stage, (self.folder, self._kept), {"_files": self.__getstate__()["_files"]}

    def send(self, name: str, reaches: Reaches) -> None:
        """Send a file, unless that was done, and empty it here.

        Args:
            name: the file.
            reaches: see `Destination.send`.

        Raises:
            OutputError: it cannot be sent.
        """
        path = self.folder / name
        size = path.stat().st_size
        if name in self._sent.files:
            reaches(size)
        else:
            self._sent.add(name, self._destination.send(name, path, reaches))
        os.truncate(path, 0)
        os.truncate(path, size)

    @property
    def sent(self) -> Collection[str]:
        """Files that were sent, by this process or another one."""
        return self._sent.files

    def clear(self) -> None:
        """Remove, once, what the place held before. Called when the first file is ready, before it is complete there.

        Until then the merge may still be refused.
        """
        if not self._cleared:
            self._destination.clear(self._sent.id, self._sent.files)
            self._cleared = True

    def commit(self) -> None:
        """Send what was not sent, which completes the model."""
        self.clear()
        self._wait_for_others()
        there = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        small = {name: path for name, path in there.items() if name not in self._sent.files}
        self._destination.commit(self._sent.id, small, self._sent.files)

    def _wait_for_others(self) -> None:
        """Read what other processes have sent. A network file system may show it late.

        Raises:
            SendError: it does not show it.
        """
        deadline = time.monotonic() + _SECONDS_TO_SHOW
        while missing := [name for name in self._large if name not in self._sent.files]:
            if time.monotonic() > deadline:
                raise SendError(f"{self._destination}: nothing says that {missing[0]} was sent; start again")
            self._sent.read()
            time.sleep(_PAUSE)


class _Sent:
    """What was sent, in a file that is on the disk before a file that was sent is emptied.

    Args:
        work: the hidden folder.
        own: the number of this process and a random one; empty of the first. Each process appends to a file of its own,
            and reads all of them.

    Attributes:
        run: the id of the run that has begun; None if none has.
        is_new: whether it has begun in this process.
        files: by name, what `Destination.send` has said.
    """

    def __init__(self, work: Path, own: str = "") -> None:
        self._first = work / _SENT
        self._own = work / f"{_SENT}.{own}" if own else self._first
        self.is_new = False
        self.read()

    def read(self) -> None:
        """Read what was sent by all processes."""
        self.run: str | None = None
        self.files: dict[str, str] = {}
        for path in (self._first, *self._of_others()):
            with suppress(OSError):
                for line in path.read_bytes().splitlines():
                    with suppress(ValueError, LookupError, TypeError):  # what a kill has torn
                        self._take(json.loads(line))

    def _take(self, said: Any) -> None:
        if isinstance(said, dict):
            self.run = str(said["run"])
        else:
            name, receipt = said
            self.files[str(name)] = str(receipt)

    def _of_others(self) -> list[Path]:
        return list(self._first.parent.glob(f"{_SENT}.*"))

    @property
    def id(self) -> str:
        """The run that has begun."""
        assert self.run is not None
        return self.run

    def begin(self) -> None:
        """Forget what was sent. The id stays: what lies elsewhere is of this run."""
        self.is_new = self.run is None
        self.run, self.files = self.run or secrets.token_hex(8), {}
        for path in self._of_others():
            path.unlink()
        partial = self._first.with_name(f"{_SENT}.new")
        _append(partial, {"run": self.run})
        partial.replace(self._first)  # at once, because other ranks look at it

    def add(self, name: str, said: str) -> None:
        _append(self._own, [name, said])
        self.files[name] = said

    def remove(self) -> None:
        for path in (self._first, *self._of_others()):
            path.unlink(missing_ok=True)


def _append(path: Path, said: object) -> None:
    with path.open("ab") as file:
        file.write(f"\n{json.dumps(said)}\n".encode())  # on a line of its own, whatever is torn before it
        file.flush()
        os.fsync(file.fileno())


class _Elsewhere(Output):
    """A place elsewhere, and the folder on the stage."""

    def __init__(self, destination: Destination, shared: bool = False) -> None:
        super().__init__(_local(destination))
        self.named = str(destination)
        self._destination = destination
        self._shared = shared
        self._sent = _Sent(self._work)
        self._claimed = self._cleans = False
        self._removed: list[str] = []

    def _fits(self, keeper: Keeper, built: int | None) -> bool:
        self._sent.read()  # now that no other process writes it
        fits = self._sent.run is not None and super()._fits(keeper, built)
        if fits and not self._destination.holds(self._sent.files):
            self._remove()
            fits = keeper.fits(self._work, None)
            keeper.reason = "what an earlier run had sent has changed there, or was removed"
        if not fits:
            self._remove()  # first, because the journal counts on what was sent
            self._sent.begin()
        return fits

    def _made_stage(self, kept: Collection[str]) -> Stage:
        large = self._keeper.files if self._keeper is not None else ()
        is_apart = self._shared and self._destination.carries
        return Relay(self._new, kept, self._destination, self._sent, large, is_apart=is_apart)

    def _refuse_occupied(self, overwrite: bool) -> None:
        if self._keeper is None:  # nothing is continued
            self._sent.begin()
        files = self._keeper.files if self._shared and self._keeper is not None else ()
        self._destination.claim(self._sent.id, overwrite=overwrite, shared=files)
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

    @property
    def _words(self) -> str:
        stage = self._destination.stage
        is_usual = stage == store.folder("outputs")
        return super()._words + ("" if is_usual else f" --stage {shlex.quote(str(stage))}")

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
