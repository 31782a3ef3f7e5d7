"""Access to files and folders, on this machine or remote: what readers need besides the methods of `Path`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import xxhash

from ramerge.core.foundation.errors import CheckpointError, readable
from ramerge.core.foundation.files import no_such_folder
from ramerge.core.foundation.systems import NO_WAIT, PRIVATE, read_at, will_need
from ramerge.core.storage.location import Location, Remote, here
from ramerge.core.storage.storage import Version

_PAGE = 4096
_PAGES = 32


@dataclass(frozen=True)
class FileIdentity:
    """Distinguishes a file from every other file, and from itself after a write.

    Attributes:
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


def identity_of(descriptor: int) -> FileIdentity:
    """The identity of an open file."""
    status = os.fstat(descriptor)
    return FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class LocalAccess:
    """Access to a file or folder of this machine."""

    path: Path

    def version(self) -> Identity:
        """The identity of a file, without a sample."""
        with self._descriptor() as descriptor:
            return identity_of(descriptor)

    def is_still(self, identity: Identity) -> bool:
        """Whether a file has not changed since it was identified."""
        try:
            return self.version() == identity
        except CheckpointError:
            return False

    def with_sample(self, identity: Identity) -> Identity:
        """The identity of a file, with a sample of its content where a write might leave all else as it was.

        The sample is a digest of pages at regular distances; of all pages of a small file.
        """
        assert isinstance(identity, FileIdentity)
        distance = max(identity.nbytes // (_PAGES * _PAGE), 1) * _PAGE
        places = range(0, identity.nbytes, distance)
        digest = xxhash.xxh3_64()
        with self._descriptor() as descriptor:
            for place in places:  # a disk that is slow to answer brings all pages at a time
                will_need(descriptor, place, _PAGE)
            for place in places:
                digest.update(read_at(descriptor, _PAGE, place))
        return replace(identity, sample=digest.hexdigest())

    def is_readable(self) -> bool:
        """Whether this process may read it."""
        return os.access(self.path, os.R_OK | os.X_OK if self.path.is_dir() else os.R_OK)

    def leads_outside(self, folder: Location) -> bool:
        """Whether a link in a folder leads to a file outside of it. No file of this machine is inside of a remote one.

        The files in `snapshots/<revision>` of the hub's cache, and in folders there, are links into its folder `blobs`.
        These count as inside.
        """
        if (inside := here(folder)) is None:
            return True
        real_path, home = Path(os.path.realpath(self.path)), Path(os.path.realpath(inside))
        caches = (place.parent.parent / "blobs" for place in (home, *home.parents) if place.parent.name == "snapshots")
        return not any(map(real_path.is_relative_to, (home, *caches)))

    def absence(self) -> str:
        """The message about a missing folder."""
        return no_such_folder(self.path)

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        # opened instead of stat(), because network file systems ask the server again when a file is opened
        with readable(self.path):
            descriptor = os.open(self.path, os.O_RDONLY | NO_WAIT | PRIVATE)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


@dataclass(frozen=True)
class RemoteAccess:
    """As `LocalAccess`, remote: there are no links, and every read is bound to the identified version."""

    path: Remote

    def version(self) -> Identity:
        return self.path.version()

    def is_still(self, identity: Identity) -> bool:
        return True

    def with_sample(self, identity: Identity) -> Identity:
        return identity

    def is_readable(self) -> bool:
        return True

    def leads_outside(self, folder: Location) -> bool:
        return False

    def absence(self) -> str:
        return f"{self.path}: there is nothing under this name"


def access(path: Location) -> LocalAccess | RemoteAccess:
    """Access to the file or folder of a path."""
    return RemoteAccess(path) if isinstance(path, Remote) else LocalAccess(path)
