"""The journal of finished blocks, from which an interrupted merge resumes.

It is a folder `journal` next to the folder that is being built:

    fingerprint.json    everything that the work depends on, and the inode of the folder that is being built
    0001, ...     records of run 1

Only the process that started a run writes the run's file. A record says that a block of a pass is done, and holds the
block's counts. It is appended when the block's bytes have been written. No other run writes to the file again, so the
torn end of a killed run stays where it is. Checksums find the torn end, and bind records to the fingerprint. Results
are exact integers, so it does not matter which run a record is from, or whether a block has two records.

A kill loses nothing that was written, but a power cut does. So from time to time, a record marks the length up to which
everything is on the disk. After a restart of the machine, only the records before the last mark are trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import xxhash

from ramerge.core.engine.executors.executor import NumberedRun
from ramerge.core.foundation.errors import RayError, SendError, StoppedError
from ramerge.core.foundation.machine import boot
from ramerge.core.foundation.systems import PRIVATE, sync_data

FOLDER = "journal"
_FINGERPRINT = "fingerprint.json"
# bytes of the payload, kind, pass, index of the block or number of blocks, bytes of work, checksum
_HEAD = struct.Struct("<IBBxxIQQ")
_RUN, _PASS, _BLOCK, _SYNCED = range(4)
_SECONDS_BETWEEN_MARKS = 5.0
_PIECE = 1 << 20
_MOST_BLOCKS = 1 << 30

Block = TypeVar("Block")
Result = TypeVar("Result")
Input = TypeVar("Input", contravariant=True)
Value = TypeVar("Value")


class Codec(Protocol[Input, Value]):
    """Encodes results of blocks for the journal, and decodes them."""

    def encode(self, result: Value) -> tuple[bytes, int]:
        """Return a result's bytes, and the block's amount of work in bytes."""
        ...

    def decode(self, block: Input, data: bytes) -> Value:
        """Return the result of a block from its bytes."""
        ...


class PassJournal(Generic[Block, Result]):
    """One pass in a journal: yields earlier results, lists remaining blocks, and records new results.

    Args:
        codec: the codec of the results; None without a journal, where all blocks remain.
    """

    def __init__(
        self,
        runs: Sequence[Sequence[Block]],
        codec: Codec[Block, Result] | None = None,
        number: int = 0,
        readers: Sequence[_JournalReader] = (),
        writer: JournalWriter | None = None,
    ) -> None:
        numbers = count()
        self._runs: list[NumberedRun[Block]] = [[(next(numbers), block) for block in run] for run in runs]
        self._codec, self._number, self._readers, self._writer = codec, number, readers, writer
        self._finished_blocks: set[int] = set()
        if writer is not None:
            writer.append(_PASS, number, sum(map(len, runs)))

    def earlier(self) -> Iterator[Result]:
        """Yield the results of blocks that earlier runs have finished; exhaust it before you call `remaining`."""
        blocks = [block for run in self._runs for _, block in run]
        for record in (record for reader in self._readers for record in reader.take(self._number)):
            if record.index < len(blocks) and record.index not in self._finished_blocks and self._codec is not None:
                self._finished_blocks.add(record.index)
                yield self._codec.decode(blocks[record.index], record.payload)

    def remaining(self) -> Sequence[NumberedRun[Block]]:
        """Return the remaining blocks, with their numbers."""
        left = [[(number, block) for number, block in run if number not in self._finished_blocks] for run in self._runs]
        return [run for run in left if run]

    def record(self, number: int, result: Result) -> None:
        """Append a finished block and its result to the journal; called from any thread."""
        if self._writer is not None and self._codec is not None:
            data, amount = self._codec.encode(result)
            self._writer.append(_BLOCK, self._number, number, amount, data)


class Journal:
    """The journal of one run.

    Args:
        total: bytes of work in all passes.
        spooled: names and sizes of further files in the hidden folder that hold finished work.
    """

    def __init__(
        self,
        fingerprint: Mapping[str, str],
        files: Mapping[str, int],
        total: int,
        *,
        spooled: Mapping[str, int] = MappingProxyType({}),
        fresh: bool = False,
    ) -> None:
        self.files = files
        self._spooled = spooled
        self._fresh = fresh
        self._run, self._valid_lengths = 1, dict[str, int]()
        self.reason: str = ""
        self._fingerprint = dict(fingerprint)
        self._total = max(total, 1)
        self._before = 0
        self._readers: list[_JournalReader] = []
        self._writer: JournalWriter | None = None
        self._passes = 0

    # --- between runs -------------------------------------------------------------------------------------------------

    def fits(self, work: Path, inode_of_folder: int | None, uploads: Collection[str] = ()) -> bool:
        """Whether an interrupted run can be resumed. If not, `reason` may say why.

        Args:
            inode_of_folder: the inode of the folder that is being built; None if there is none.
            uploads: files that may be gone, because they were uploaded.
        """
        folder = work / FOLDER
        if self._fresh:
            return False
        try:
            text = (folder / _FINGERPRINT).read_bytes()
            state = json.loads(text)
            theirs, inode = state["fingerprint"], state["built"]
            names = {**self._fingerprint, **theirs}
            other = next((name for name in names if theirs.get(name) != self._fingerprint.get(name)), None)
            run, valid_lengths = self._scan_runs(folder, _checksum_seed(text))
        except FileNotFoundError:
            return False  # never begun
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.reason = "what an earlier run left cannot be read"
            return False
        if not self._before or inode != inode_of_folder:
            return False
        files = {**{f"new/{name}": size for name, size in self.files.items() if name not in uploads}, **self._spooled}
        are_there = False
        with suppress(OSError):
            are_there = all((work / name).lstat().st_size == size for name, size in files.items())
        if other is None and are_there:
            self._run, self._valid_lengths = run, valid_lengths
            return True
        why = f"{other} has changed" if other is not None else "files that it has written are gone"
        self.reason = f"{self.share} of an earlier run cannot be used, because {why}"
        self._before = 0
        return False

    def _scan_runs(self, folder: Path, seed: int) -> tuple[int, dict[str, int]]:
        """Return the number of the next run, and how many bytes of each earlier run's file can be trusted.

        A pass begins when the previous pass is complete. If the previous pass turns out incomplete, because a file is
        damaged, later passes are not trusted either: completing it may overwrite their results.
        """
        names = sorted(path.name for path in folder.iterdir() if path.name != _FINGERPRINT)
        lengths = {name: _valid_length(folder / name, seed) for name in names}
        finished_blocks: dict[int, bytearray] = {}
        amounts: dict[int, int] = {}
        last: dict[str, dict[int, int]] = {name: {} for name in names}  # where each pass ends in each file
        for name, length in lengths.items():
            for record in _read_records(folder / name, seed, 0, length):
                last[name][record.number] = record.end
                if record.kind == _PASS and record.index < _MOST_BLOCKS:
                    finished_blocks.setdefault(record.number, bytearray(record.index))
                elif record.kind == _BLOCK and not finished_blocks[record.number][record.index]:
                    finished_blocks[record.number][record.index] = 1
                    amounts[record.number] = amounts.get(record.number, 0) + record.amount
        open_ones = [number for number, blocks in finished_blocks.items() if not all(blocks)]
        latest = min(open_ones, default=max(finished_blocks, default=0))
        for name in names:
            lengths[name] = max((end for number, end in last[name].items() if number <= latest), default=0)
        self._before = sum(amount for number, amount in amounts.items() if number <= latest)
        return max(map(int, names), default=0) + 1, lengths

    def begin(self, work: Path, inode: int | None) -> None:
        """Create a new journal, for a folder that is built from scratch."""
        (work / FOLDER).mkdir()
        (work / FOLDER / _FINGERPRINT).write_text(json.dumps({"fingerprint": self._fingerprint, "built": inode}))

    def keeps(self, failure: BaseException | None) -> bool:
        """Whether the run can be resumed after it ended with this error.

        After any other error, the input must change, the disk is full, or the disk has lost data.
        """
        return self._finished_share > 0 and isinstance(failure, StoppedError | KeyboardInterrupt | RayError | SendError)

    @property
    def _finished_share(self) -> int:
        return self._before + (self._writer.amount if self._writer is not None else 0)

    @property
    def share(self) -> str:
        """The share of the work that is recorded, as readable text."""
        return f"{min(self._finished_share / self._total, 1):.0%}".replace("%", " %")

    # --- the run ------------------------------------------------------------------------------------------------------

    def open(self, work: Path) -> None:
        """Open the journal to read the records of earlier runs and to write the records of this run."""
        folder = work / FOLDER
        text = (folder / _FINGERPRINT).read_bytes()
        seed = _checksum_seed(text)
        self._readers = [_JournalReader(folder / name, seed, length) for name, length in self._valid_lengths.items()]
        self._writer = JournalWriter(folder / f"{self._run:04}", seed)

    def close(self) -> None:
        """Close this run's file."""
        if self._writer is not None:
            self._writer.close()

    def before_sync(self) -> Callable[[], None]:
        """Note the journal's length before blocks are synced to disk. Return the function to call after the sync."""
        writer = self._writer
        return writer.before_sync() if writer is not None else lambda: None

    def open_pass(self, runs: Sequence[Sequence[Block]], codec: Codec[Block, Result]) -> PassJournal[Block, Result]:
        """Open the next pass, with the results of earlier runs and a writer for new ones."""
        assert self._writer is not None
        number = self._passes
        self._passes += 1
        return PassJournal(runs, codec, number, self._readers, self._writer)


def left_in(work: Path) -> Mapping[str, str]:
    """Return the fingerprint from the journal of an interrupted run in a hidden folder; empty if there is none."""
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        return dict(json.loads((work / FOLDER / _FINGERPRINT).read_bytes())["fingerprint"])
    return {}


@dataclass(frozen=True)
class _JournalRecord:
    kind: int
    number: int
    index: int
    amount: int
    payload: bytes
    end: int


class JournalWriter:
    """Writer of this run's file, to which any thread appends.

    Attributes:
        amount: the recorded work, in bytes.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | PRIVATE, 0o666)
        self._size = self._size_at_mark = 0
        self.amount: int = 0
        self._last = time.monotonic()
        self.append(_RUN, 0, 0, 0, boot().encode())

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
            if size > self._size_at_mark and now - self._last > _SECONDS_BETWEEN_MARKS:
                self._last, self._size_at_mark = now, size
                self.append(_SYNCED, 0, 0, size)
                sync_data(self._descriptor)

        return after

    def close(self) -> None:
        os.close(self._descriptor)


class _JournalReader:
    """Reads the trusted records of an earlier run, pass by pass."""

    def __init__(self, path: Path, seed: int, length: int) -> None:
        self._path, self._seed, self._length = path, seed, length
        self._position = 0

    def take(self, number: int) -> Iterator[_JournalRecord]:
        """Yield the records of a pass's blocks, skipping earlier passes."""
        for record in _read_records(self._path, self._seed, self._position, self._length):
            if record.kind != _SYNCED and record.number > number:
                return
            self._position = record.end
            if record.kind == _BLOCK and record.number == number:
                yield record


def _read_records(path: Path, seed: int, position: int, length: int | None) -> Iterator[_JournalRecord]:
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
            yield _JournalRecord(kind, number, index, amount, payload, position)


def _checksum(seed: int, head: bytes, payload: bytes) -> bytes:
    digest = xxhash.xxh3_64(head, seed=seed)
    digest.update(payload)
    return digest.intdigest().to_bytes(8, "little")


def _checksum_seed(fingerprint: bytes) -> int:
    return int.from_bytes(hashlib.sha256(fingerprint).digest()[:8], "little")


def _valid_length(path: Path, seed: int) -> int:
    """Return the length of a file's valid records whose blocks are certainly still on the disk."""
    end = size_at_mark = 0
    same_boot = False
    for record in _read_records(path, seed, 0, None):
        if record.kind == _RUN:
            same_boot = record.payload == boot().encode()
        elif record.kind == _SYNCED:
            size_at_mark = record.amount
        end = record.end
    return end if same_boot else min(size_at_mark, end)
