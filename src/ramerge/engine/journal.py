"""What earlier runs of a merge have done, so that a run goes on where they were; and what other ranks do meanwhile.

Beside the folder that is built lies a folder `journal`:

    facts.json    what the work depends on, and which folder is built
    0001.0, ...   records of run 1, by rank 0

Each record says that a block of a pass is done, and what was counted in it. It is appended when the block's bytes have
been written. A file is never written again by another run, so the torn end of a killed one stays where it is. What
ends with it is found by checksums, which also bind records to the facts. Outcomes are exact integers, and equal
whoever finds them, so it does not matter which run or rank a record is from, or whether there are two of one block.

A kill loses nothing that was written, but a power cut does. So from time to time a record says up to where everything
is on the disk. After a restart of the machine only what is before that is trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import xxhash

from ramerge.engine.executors.executor import Elsewhere, Executor, bare
from ramerge.engine.facts import is_file, seen_elsewhere
from ramerge.foundation.errors import RankError, RayError, SendError, StoppedError
from ramerge.foundation.machine import boot

FOLDER = "journal"
_FACTS = "facts.json"
# bytes of the payload, kind, pass, index of the block or number of blocks, bytes of work, checksum
_HEAD = struct.Struct("<IBBxxIQQ")
_RUN, _PASS, _BLOCK, _SYNCED = range(4)
_SECONDS_BETWEEN_MARKS = 5.0
_SECONDS_BETWEEN_LOOKS = 1.0
_PIECE = 1 << 20
_MOST_BLOCKS = 1 << 30

Worker = TypeVar("Worker")
Block = TypeVar("Block")
Given = TypeVar("Given", contravariant=True)
Outcome = TypeVar("Outcome")


class Codec(Protocol[Given, Outcome]):
    """Outcomes as bytes."""

    def encode(self, outcome: Outcome) -> tuple[bytes, int]:
        """An outcome, and how many bytes of work the block was."""
        ...

    def decode(self, block: Given, data: bytes) -> Outcome:
        """The outcome again."""
        ...


class Others(Protocol):
    """The other ranks, as far as a journal must know of them."""

    number: int
    world: int

    def check(self) -> None:
        """Raise if one of them has failed or is lost."""
        ...

    def tell(self) -> None:
        """Let them see now what was written."""
        ...


@dataclass(frozen=True)
class Session:
    """What all ranks of a run must see alike.

    Attributes:
        run: its number.
        before: files of earlier runs, with the bytes of them that are trusted.
    """

    run: int
    before: tuple[tuple[str, int], ...]


@dataclass
class _One:
    """A run without other ranks."""

    number: int = 0
    world: int = 1

    def check(self) -> None:
        """Nobody can be lost."""

    def tell(self) -> None:
        """Nobody looks."""


class Journal:
    """The journal of one run.

    Args:
        facts: everything that the work depends on, by a name for people.
        files: names and sizes of the large files of the folder that is built.
        total: bytes of work in all passes.
        beside: names and sizes of further files in the hidden folder that hold what was done.
        fresh: whether what earlier runs have done is not used.
        apart: whether each rank builds a folder of its own. What it has written there is of no use for a later run, and
            what was counted does not depend on it.
    """

    def __init__(
        self,
        facts: Mapping[str, str],
        files: Mapping[str, int],
        total: int,
        *,
        beside: Mapping[str, int] = MappingProxyType({}),
        fresh: bool = False,
        apart: bool = False,
    ) -> None:
        self.files = files
        self._beside = beside
        self._fresh, self._apart = fresh, apart
        self.session = Session(1, ())
        self.reason = ""
        self._facts = dict(facts)
        self._total = max(total, 1)
        self._before = 0
        self._others: Others = _One()
        self._sources: list[_Source] = []
        self._own: _Own | None = None
        self._passes = 0

    # --- between runs -------------------------------------------------------------------------------------------------

    def fits(self, work: Path, built: int | None) -> bool:
        """Whether what an earlier run left can be continued. If not, `reason` says why, where there is one.

        Args:
            work: the hidden folder.
            built: the inode of the folder that is built in; None if there is none.
        """
        folder = work / FOLDER
        if self._fresh:
            return False
        try:
            text = (folder / _FACTS).read_bytes()
            said = json.loads(text)
            theirs, inode = said["facts"], said["built"]
            other = difference(theirs, self._facts)
            lines = self._scanned(folder, _seed(text))
        except FileNotFoundError:
            return False  # never begun
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.reason = "what an earlier run left cannot be read"
            return False
        if not self._before or inode != built:
            return False
        if other is not None:
            self.reason = f"{self.share} of an earlier run cannot be used, because {other} has changed"
        elif not self._are_there(work):
            self.reason = f"{self.share} of an earlier run cannot be used, because files that it has written are gone"
        fits = other is None and not self.reason
        if fits:
            self.session = lines
        else:
            self._before = 0
        return fits

    def _are_there(self, work: Path) -> bool:
        files = {**{f"new/{name}": size for name, size in self.files.items()}, **self._beside}
        with suppress(OSError):
            return all((work / name).lstat().st_size == size for name, size in files.items())
        return False

    def _scanned(self, folder: Path, seed: int) -> Session:
        """The files of earlier runs, up to where they can be trusted.

        A pass begins when the one before is complete. If that is not what is left of it, because something is damaged,
        later passes are not trusted either: what they wrote may be written over when it is completed.
        """
        names = sorted(path.name for path in folder.iterdir() if path.name != _FACTS)
        lengths = {name: _trusted(folder / name, seed, self._apart) for name in names}
        done: dict[int, bytearray] = {}
        amounts: dict[int, int] = {}
        last: dict[str, dict[int, int]] = {name: {} for name in names}  # where each pass ends in each file
        for name, length in lengths.items():
            for record in _records(folder / name, seed, 0, length):
                last[name][record.number] = record.end
                if record.kind == _PASS and record.index < _MOST_BLOCKS:
                    done.setdefault(record.number, bytearray(record.index))
                elif record.kind == _BLOCK and not done[record.number][record.index]:
                    done[record.number][record.index] = 1
                    amounts[record.number] = amounts.get(record.number, 0) + record.amount
        open_ones = [number for number, blocks in done.items() if not all(blocks)]
        latest = min(open_ones, default=max(done, default=0))
        for name in names:
            lengths[name] = max((end for number, end in last[name].items() if number <= latest), default=0)
        self._before = sum(amount for number, amount in amounts.items() if number <= latest)
        runs = [int(name.partition(".")[0]) for name in names]
        return Session(max(runs, default=0) + 1, tuple(lengths.items()))

    def begin(self, work: Path, built: int | None) -> None:
        """Begin anew."""
        (work / FOLDER).mkdir()
        (work / FOLDER / _FACTS).write_text(json.dumps({"facts": self._facts, "built": built}))

    def keeps(self, failure: BaseException | None) -> bool:
        """Whether it is of use to keep what was done, after this ending.

        After an error the input must be changed, or there is too little disk, or the disk has lost what was written.
        """
        stopped = isinstance(failure, StoppedError | KeyboardInterrupt)
        return self._done > 0 and (
            stopped or (isinstance(failure, RankError | RayError | SendError) and failure.resumable)
        )

    @property
    def _done(self) -> int:
        """Bytes of work that earlier runs and this process have done."""
        return self._before + (self._own.amount if self._own is not None else 0)

    @property
    def share(self) -> str:
        """How much is done, in words."""
        return f"{min(self._done / self._total, 1):.0%}".replace("%", " %")

    # --- the run ------------------------------------------------------------------------------------------------------

    def open(self, work: Path, others: Others | None = None) -> None:
        """Begin the run: read from here on what `session` names and other ranks write, and write own records.

        Raises:
            OSError: the disk is full or fails.
        """
        folder = work / FOLDER
        text = (folder / _FACTS).read_bytes()
        seed = _seed(text)
        self._others = others or _One()
        own, run = self._others.number, self.session.run
        self._sources = [_Source(folder / name, seed, length) for name, length in self.session.before]
        self._sources += [
            _Source(folder / f"{run:04}.{rank}", seed, None) for rank in range(self._others.world) if rank != own
        ]
        self._own = _Own(folder / f"{run:04}.{own}", seed)

    def disagreement(self, work: Path) -> str | None:
        """The first fact that the journal's other ranks see differently, and what to do about it if it is a file."""
        theirs = json.loads((work / FOLDER / _FACTS).read_bytes())["facts"]
        other = difference(seen_elsewhere(theirs), seen_elsewhere(self._facts))
        if other is None or not is_file(theirs.get(other, self._facts.get(other, ""))):
            return other
        return (
            f"{other}; inputs must be the same files, or copies with the same time of the last write (cp -a, rsync -t)"
        )

    def close(self) -> None:
        """End the run."""
        if self._own is not None:
            self._own.close()

    def before_sync(self) -> Callable[[], None]:
        """Called before everything that was written is brought to the disk. Gives what is to be called after that."""
        own = self._own
        return own.before_sync() if own is not None else lambda: None

    def map(
        self,
        executor: Executor,
        worker: Callable[[Callable[[Any], None]], AbstractContextManager[Worker]],
        work: Callable[[Worker, Sequence[Block]], Iterable[Outcome]],
        runs: Sequence[Sequence[Block]],
        codec: Codec[Block, Outcome],
        elsewhere: Elsewhere = bare,
        owner: Callable[[Block], int | None] = lambda block: None,
        lasting: Callable[[Block], bool] = lambda block: True,
    ) -> Generator[Any, None, None]:
        """As `Executor.map`: the outcomes of all blocks of runs, whoever finds or has found them.

        `owner` says which rank must do a block; None if it does not matter. `lasting` says whether what an earlier run
        has written of a block is still there.

        Raises:
            RankError: another rank has failed or is lost.
        """
        journal, others, number = self._own, self._others, self._passes
        assert journal is not None
        self._passes += 1
        blocks = [block for run in runs for block in run]
        journal.append(_PASS, number, len(blocks))
        own: _Own | None = journal
        missing, left = bytearray(b"\1" * len(blocks)), len(blocks)

        def found() -> Iterator[Outcome]:
            nonlocal left
            for source in self._sources:
                for record in source.take(number):
                    if record.index < len(missing) and missing[record.index]:
                        if source.is_before and not lasting(blocks[record.index]):
                            continue
                        missing[record.index] = 0
                        left -= 1
                        yield codec.decode(blocks[record.index], record.payload)

        def recorded(owned: Worker, numbered: Sequence[tuple[int, Block]]) -> Iterator[_Recorded[Outcome]]:
            outcomes = work(owned, tuple(block for _, block in numbered))
            for (index, _), outcome in zip(numbered, outcomes, strict=True):
                data, amount = codec.encode(outcome)
                if own is None:  # in another process
                    yield _Recorded(index, (amount, data))
                else:
                    own.append(_BLOCK, number, index, amount, data)
                    yield _Recorded(index, outcome)

        yield from found()
        numbered = enumerate(blocks)
        all_runs = [list(islice(numbered, len(run))) for run in runs]
        due = (
            [(i, block) for i, block in run if missing[i] and self._is_mine(turn, owner(block))]
            for turn, run in enumerate(all_runs)
        )
        mine = [run for run in due if run]
        looked = time.monotonic()
        with closing(executor.map(worker, recorded, mine, elsewhere)) as results:
            for result in results:
                if not isinstance(result, _Recorded):
                    yield result
                    continue
                if missing[result.index]:
                    missing[result.index] = 0
                    left -= 1
                    if isinstance(result.outcome, tuple):
                        journal.append(_BLOCK, number, result.index, *result.outcome)
                        yield codec.decode(blocks[result.index], result.outcome[1])
                    else:
                        yield result.outcome
                if others.world > 1 and time.monotonic() - looked > _SECONDS_BETWEEN_LOOKS:
                    others.check()
                    yield from found()
                    looked = time.monotonic()
        if others.world > 1:
            journal.sync()  # on a network file system, others see it then
            others.tell()
        pause = 0.01
        while left:
            yield from found()
            if left:
                others.check()
                time.sleep(pause)
                pause = min(2 * pause, 0.2)

    def _is_mine(self, index: int, owner: int | None) -> bool:
        return (index % self._others.world if owner is None else owner) == self._others.number


def left_in(work: Path) -> Mapping[str, str]:
    """The facts of a run that was stopped and has left its journal in a hidden folder; empty if there is none."""
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        return dict(json.loads((work / FOLDER / _FACTS).read_bytes())["facts"])
    return {}


def difference(left: Mapping[str, str], right: Mapping[str, str]) -> str | None:
    """The first fact that is not the same on both sides."""
    return next((name for name in {**right, **left} if left.get(name) != right.get(name)), None)


@dataclass(frozen=True)
class _Recorded(Generic[Outcome]):
    """An outcome that is in the journal, or bytes of work and the record that is to be written."""

    index: int
    outcome: Outcome | tuple[int, bytes]


@dataclass(frozen=True)
class _Record:
    kind: int
    number: int
    index: int
    amount: int
    payload: bytes
    end: int


class _Own:
    """The file that this run appends to, from any thread.

    Attributes:
        amount: bytes of work that are recorded.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = self._marked = 0
        self.amount = 0
        self._last = time.monotonic()
        self.append(_RUN, 0, 0, 0, boot().encode())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # other processes have no such file: what they would append is handed over

    def append(self, kind: int, number: int, index: int, amount: int = 0, payload: bytes = b"") -> None:
        head = _HEAD.pack(len(payload), kind, number, index, amount, 0)[:-8]
        record = head + _checksum(self._seed, head, payload) + payload
        with self._lock:
            view = memoryview(record)
            while view:
                view = view[os.write(self._descriptor, view) :]
            self._size += len(record)
            self.amount += amount if kind == _BLOCK else 0

    def before_sync(self) -> Callable[[], None]:
        size = self._size

        def after() -> None:
            now = time.monotonic()
            if size > self._marked and now - self._last > _SECONDS_BETWEEN_MARKS:
                self._last, self._marked = now, size
                self.append(_SYNCED, 0, 0, size)
                self.sync()

        return after

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class _Source:
    """Records of one file, pass by pass. The file may not be there yet, and may grow.

    Attributes:
        is_before: whether it is of an earlier run.
    """

    def __init__(self, path: Path, seed: int, length: int | None) -> None:
        self._path, self._seed, self._length = path, seed, length
        self.is_before = length is not None
        self._position = 0

    def take(self, number: int) -> Iterator[_Record]:
        """The blocks of a pass that are there now and were not taken before; those of earlier passes are left out."""
        for record in _records(self._path, self._seed, self._position, self._length):
            if record.kind != _SYNCED and record.number > number:
                return
            self._position = record.end
            if record.kind == _BLOCK and record.number == number:
                yield record


def _records(path: Path, seed: int, position: int, length: int | None) -> Iterator[_Record]:
    """Records of a file from a position on, up to the first that is not whole."""
    try:
        file = path.open("rb", buffering=_PIECE)
    except FileNotFoundError:
        return
    with file:
        file.seek(position)
        while length is None or position < length:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            size, kind, number, index, amount, _ = _HEAD.unpack(head)
            payload = file.read(size)
            if len(payload) < size or _checksum(seed, head[:-8], payload) != head[-8:]:
                return
            position += _HEAD.size + size
            yield _Record(kind, number, index, amount, payload, position)


def _checksum(seed: int, head: bytes, payload: bytes) -> bytes:
    found = xxhash.xxh3_64(head, seed=seed)
    found.update(payload)
    return found.intdigest().to_bytes(8, "little")


def _seed(facts: bytes) -> int:
    return int.from_bytes(hashlib.sha256(facts).digest()[:8], "little")


def _trusted(path: Path, seed: int, apart: bool) -> int:
    """Up to which byte a file's records are good, and everything that they speak of is still there."""
    end = marked = 0
    same_boot = False
    for record in _records(path, seed, 0, None):
        if record.kind == _RUN:
            same_boot = record.payload == boot().encode()
        elif record.kind == _SYNCED:
            marked = record.amount
        end = record.end
    return end if same_boot or apart else min(marked, end)
