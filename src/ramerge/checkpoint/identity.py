"""Which file lies at a path, and whether it is still the one that it was, with the same content."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ramerge.foundation.errors import CheckpointError, reason

# The times of a file advance in steps: by a tick of the kernel's clock, which is at most 10 ms, or where a file system
# keeps whole seconds, by up to two of them.
TICK_SECONDS = 0.02
_COARSE_TICK_SECONDS = 2.0
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Identity:
    """What tells a file from any other, and from itself after a write.

    Attributes:
        device: number of its file system.
        inode: its number there.
        nbytes: its size.
        modified_ns: time of the last write, in nanoseconds.
        changed_ns: time of the last change of content, name, owner or rights, which no program can set.
    """

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int

    @property
    def latest_ns(self) -> int:
        """When it was last written to or changed."""
        return max(self.modified_ns, self.changed_ns)


def identity_of(descriptor: int) -> Identity:
    """The identity of an open file."""
    status = os.fstat(descriptor)
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def identify(paths: Iterable[Path]) -> dict[Path, Identity]:
    """The identities of files, from which any later write to them can be told.

    A write in the same tick as the one before leaves the times as they are. So a file that has just been written is
    looked at again when its tick is over.

    Raises:
        CheckpointError: a file cannot be opened.
    """
    found = {path: _identity(path) for path in paths}
    if (seconds := max(map(_unsettled_seconds, found.values()), default=0.0)) > 0:
        time.sleep(seconds)
        found = {path: _identity(path) for path in found}
    return found


def check_unchanged(files: Mapping[Path, Identity]) -> None:
    """Refuse files that are not what they were.

    Raises:
        CheckpointError: files were written to, replaced or removed since they were identified; all of them.
    """
    if problems := [has_changed(path) for path, identity in files.items() if not _is(path, identity)]:
        raise CheckpointError(problems)


def has_changed(path: Path) -> str:
    """What is said of such a file."""
    return f"{path}: has changed since it was first read; run this again when nothing writes to it any more"


def _unsettled_seconds(identity: Identity) -> float:
    """How long a further write might not show in the file's times."""
    tick = TICK_SECONDS if identity.changed_ns % _SECOND else _COARSE_TICK_SECONDS
    # at most a tick, because a time in the future never passes
    return min(tick, tick - (time.time_ns() - identity.latest_ns) / _SECOND)


def _is(path: Path, identity: Identity) -> bool:
    try:
        return _identity(path) == identity
    except CheckpointError:
        return False


def _identity(path: Path) -> Identity:
    # opened and not only looked up, because network file systems ask the server again when a file is opened
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from error
    try:
        return identity_of(descriptor)
    finally:
        os.close(descriptor)
