"""Access to local and remote files and folders: operations that readers need besides the methods of `Path`."""

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
    """Distinguishes a file from all other files, and from itself after a write.

    Attributes:
        device: number of the file's device.
        inode: number of the file's inode.
        nbytes: the file's size.
        modified_ns: time of the last write, in nanoseconds.
        changed_ns: time of the last change of content, name, owner or permissions, in nanoseconds. No program can set
            it.
        sample: digest of some pages, because a write through a memory map may leave the times unchanged. Results that
            are kept for later runs need it in their key; otherwise it is empty. It is not compared.
    """

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int
    sample: str = field(default="", compare=False)

    @property
    def latest_ns(self) -> int:
        """The time of the last write or change, in nanoseconds."""
        return max(self.modified_ns, self.changed_ns)


Identity: TypeAlias = FileIdentity | Version


def identity_of(descriptor: int) -> FileIdentity:
    """The identity of an open file."""
    status = os.fstat(descriptor)
    return FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class LocalAccess:
    """Access to a local file or folder."""

    path: Path

    def version(self) -> Identity:
        """The current identity of the file, without a sample."""
        with self._open_descriptor() as descriptor:
            return identity_of(descriptor)

    def is_still(self, identity: Identity) -> bool:
        """Whether the file has not changed since it had this identity."""
        try:
            return self.version() == identity
        except CheckpointError:
            return False

    def add_sample(self, identity: Identity) -> Identity:
        """Add a sample of the file's content to its identity, because a write might leave everything else unchanged.

        The sample is a digest of pages at regular distances, or of all pages of a small file.
        """
        assert isinstance(identity, FileIdentity)
        distance = max(identity.nbytes // (_PAGES * _PAGE), 1) * _PAGE
        places = range(0, identity.nbytes, distance)
        digest = xxhash.xxh3_64()
        with self._open_descriptor() as descriptor:
            for place in places:  # so that a disk with high latency reads all pages at once
                will_need(descriptor, place, _PAGE)
            for place in places:
                digest.update(read_at(descriptor, _PAGE, place))
        return replace(identity, sample=digest.hexdigest())

    def is_readable(self) -> bool:
        """Whether this process may read the file or folder."""
        return os.access(self.path, os.R_OK | os.X_OK if self.path.is_dir() else os.R_OK)

    def leads_outside(self, folder: Location) -> bool:
        """Whether the path, with links followed, is outside of a folder. Always true if the folder is remote.

        Files in `snapshots/<revision>` of the hub's cache are links into its folder `blobs`, which counts as inside.
        """
        if (inside := here(folder)) is None:
            return True
        real_path, home = Path(os.path.realpath(self.path)), Path(os.path.realpath(inside))
        caches = (place.parent.parent / "blobs" for place in (home, *home.parents) if place.parent.name == "snapshots")
        return not any(map(real_path.is_relative_to, (home, *caches)))

    def absence(self) -> str:
        """The message that the folder does not exist."""
        return no_such_folder(self.path)

    @contextmanager
    def _open_descriptor(self) -> Iterator[int]:
        # os.open instead of stat(), because network file systems only ask the server again when a file is opened
        with readable(self.path):
            descriptor = os.open(self.path, os.O_RDONLY | NO_WAIT | PRIVATE)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


@dataclass(frozen=True)
class RemoteAccess:
    """The methods of `LocalAccess` for a remote file or folder: it has no links, and reads accept only its version."""

    path: Remote

    def version(self) -> Identity:
        return self.path.version()

    def is_still(self, identity: Identity) -> bool:
        return True

    def add_sample(self, identity: Identity) -> Identity:
        return identity

    def is_readable(self) -> bool:
        return True

    def leads_outside(self, folder: Location) -> bool:
        return False

    def absence(self) -> str:
        return f"{self.path}: there is nothing under this name"


def access(path: Location) -> LocalAccess | RemoteAccess:
    """Return the access to a local or remote file or folder."""
    return RemoteAccess(path) if isinstance(path, Remote) else LocalAccess(path)
