"""Identify the file at a path, and check later that it is still the same file with the same content."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import xxhash

from ramerge.core.foundation.errors import CheckpointError, readable
from ramerge.core.foundation.systems import NO_WAIT, PRIVATE, read_at, will_need
from ramerge.core.storage.location import Location, Remote
from ramerge.core.storage.storage import Version, has_changed

# A file's times advance in steps: ticks of the kernel's clock, at most 10 ms; or up to two seconds on file systems that
# keep whole seconds.
TICK_SECONDS = 0.02
_COARSE_TICK_SECONDS = 2.0
_SECOND = 1_000_000_000
_PAGE = 4096
_PAGES = 32


@dataclass(frozen=True)
class FileIdentity:
    """Distinguishes a file from every other file, and from itself after a write.

    Attributes:
        device: number of its file system.
        inode: its number in the file system.
        nbytes: its size.
        modified_ns: time of the last write, in nanoseconds.
        changed_ns: time of the last change of content, name, owner or permissions. No program can set it.
        sample: digest of some pages, because a write through a memory map may leave the times as they were. It belongs
            into the key of what is kept for later runs. Empty where only this run is concerned, and not compared.
    """

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int
    sample: str = field(default="", compare=False)

    @property
    def latest_ns(self) -> int:
        """Time of the last write or change, in nanoseconds."""
        return max(self.modified_ns, self.changed_ns)


Identity: TypeAlias = FileIdentity | Version


def is_same_elsewhere(ours: Identity, theirs: Identity) -> bool:
    """Whether a file that two machines see is the same for all that can be told.

    Devices have other numbers on each machine, and so have inodes where a bucket is mounted. Size and time of the last
    write are kept with the file.
    """
    if isinstance(ours, FileIdentity) and isinstance(theirs, FileIdentity):
        return (ours.nbytes, ours.modified_ns) == (theirs.nbytes, theirs.modified_ns)
    return ours == theirs


def identity_of(descriptor: int) -> FileIdentity:
    """The identity of an open file."""
    status = os.fstat(descriptor)
    return FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def identify(paths: Iterable[Location]) -> dict[Location, Identity]:
    """The identities of files, with samples of those on this machine. Every later write changes a file's identity.

    A second write in the same tick of the clock does not change the times. So a file that was written just now is
    identified again when its tick is over.

    Raises:
        CheckpointError: a file cannot be opened.
    """
    found = {path: _any_identity(path) for path in paths}
    local = [identity for identity in found.values() if isinstance(identity, FileIdentity)]
    if (seconds := max(map(_unsettled_seconds, local), default=0.0)) > 0:
        time.sleep(seconds)
        found = {path: _any_identity(path) for path in found}
    return {path: _sampled(path, identity) for path, identity in found.items()}


def check_unchanged(files: Mapping[Location, Identity]) -> None:
    """Refuse files that have changed. Remote files are not asked for: every read of them was bound to a version.

    Raises:
        CheckpointError: files were written to, replaced or removed since they were identified; all are listed.
    """
    if problems := [has_changed(path) for path, identity in files.items() if not _is(path, identity)]:
        raise CheckpointError(problems)


def is_another(path: Location, found: FileIdentity, wanted: Identity) -> str:
    """The message about a file that another machine sees differently."""
    planned = f"{wanted.nbytes:,} bytes, written {_date(wanted)}" if isinstance(wanted, FileIdentity) else str(wanted)
    return (
        f"{path}: is not the file that was planned with, but one of {found.nbytes:,} bytes, written "
        f"{_date(found)}; planned was one of {planned}"
    )


def _date(identity: FileIdentity) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(identity.modified_ns / _SECOND))


def _unsettled_seconds(identity: FileIdentity) -> float:
    tick = TICK_SECONDS if identity.changed_ns % _SECOND else _COARSE_TICK_SECONDS
    # at most a tick, because the file's time may be far in the future
    return min(tick, tick - (time.time_ns() - identity.latest_ns) / _SECOND)


def _is(path: Location, identity: Identity) -> bool:
    if isinstance(path, Remote):
        return True
    try:
        return _identity(path) == identity
    except CheckpointError:
        return False


def _any_identity(path: Location) -> Identity:
    return path.version() if isinstance(path, Remote) else _identity(path)


def _identity(path: Path) -> FileIdentity:
    with _opened(path) as descriptor:
        return identity_of(descriptor)


def _sampled(path: Location, identity: Identity) -> Identity:
    """With the digest of pages at regular distances; of all pages of a small file."""
    if isinstance(path, Remote) or not isinstance(identity, FileIdentity):
        return identity
    distance = max(identity.nbytes // (_PAGES * _PAGE), 1) * _PAGE
    places = range(0, identity.nbytes, distance)
    found = xxhash.xxh3_64()
    with _opened(path) as descriptor:
        for place in places:  # a disk that is slow to answer brings all pages at a time
            will_need(descriptor, place, _PAGE)
        for place in places:
            found.update(read_at(descriptor, _PAGE, place))
    return replace(identity, sample=found.hexdigest())


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # opened instead of stat(), because network file systems ask the server again when a file is opened
    with readable(path):
        descriptor = os.open(path, os.O_RDONLY | NO_WAIT | PRIVATE)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
