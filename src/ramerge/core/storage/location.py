"""Names of files and folders, local or remote: `Location`."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.storage import Storage, Version

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# What a header and what follows it take at first; most headers fit.
_FIRST_BYTES = 1 << 16


class FileStatus(NamedTuple):
    """Size and time of the last write of a file, named as `Path.stat` names them."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, eq=False)
class Remote:
    """A remote file or folder, with the methods of `Path` that reading a checkpoint takes.

    The folder that a user named is the root: nothing above it is read.

    Attributes:
        key: the path in it, with `/` between its parts; empty for the folder itself.
    """

    storage: Storage
    key: str = ""

    def __str__(self) -> str:
        return f"{self.storage.address}/{self.key}" if self.key else self.storage.address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, name: str) -> Remote:
        return Remote(self.storage, _key(PurePosixPath(self.key, name)))

    @property
    def name(self) -> str:
        """The last part of the path, or of the address for the folder that a user named."""
        return PurePosixPath(self.key or self.storage.address).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> Remote:
        """The folder that a user named is its own parent."""
        return Remote(self.storage, _key(PurePosixPath(self.key).parent))

    def resolve(self) -> Remote:
        """Itself: there are no links."""
        return self

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return bool(self.key) and self.key in self.storage.files()

    def is_dir(self) -> bool:
        """Whether there are files in the remote folder."""
        return any(True for _ in self.rglob("*"))

    def is_symlink(self) -> bool:
        """False: there are no links."""
        return False

    def glob(self, pattern: str) -> Iterator[Remote]:
        """Files in the remote folder with a path that matches a pattern part by part."""
        pattern_parts = pattern.split("/")
        for file in self.rglob("*"):
            parts = relative(file, self).parts
            if len(parts) == len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts)):
                yield file

    def rglob(self, pattern: str) -> Iterator[Remote]:
        """Files in the remote folder, at any depth, with a name that matches a pattern."""
        inside = f"{self.key}/" if self.key else ""
        for key in self.storage.files():
            if key.startswith(inside) and fnmatchcase(PurePosixPath(key).name, pattern):
                yield Remote(self.storage, key)

    def stat(self) -> FileStatus:
        """Size and time of the last write; 1970 if it is unknown."""
        version = self.version()
        return FileStatus(version.nbytes, version.modified_ns / 1e9)

    def version(self) -> Version:
        """Version that the remote file is pinned to."""
        version = self.storage.files().get(self.key)
        if version is None:
            raise CheckpointError(f"{self}: there is no such file")
        return version

    def open(self, _mode: Literal["rb"], /) -> BinaryIO:
        """The remote file, for reading."""
        return cast(BinaryIO, io.BufferedReader(_Ranges(self), _FIRST_BYTES))

    def read_bytes(self) -> bytes:
        """All bytes of the remote file, which must be small."""
        out = np.empty(self.version().nbytes, np.uint8)
        self.storage.fill(self.key, 0, out)
        return out.tobytes()


Location: TypeAlias = Path | Remote


def here(path: Location) -> Path | None:
    """Return a local path, for calls that take files of this machine only; None for a remote location."""
    return path if isinstance(path, Path) else None


def is_far(path: Location) -> TypeGuard[Remote]:
    """Whether each read of a location is a request to a server. A model in memory is not far."""
    return isinstance(path, Remote) and not path.storage.in_memory


def relative(path: Location, folder: Location) -> PurePath:
    """The path of a file relative to a folder around it."""
    return PurePath(str(path)).relative_to(str(folder))


def _key(path: PurePosixPath) -> str:
    return path.as_posix() if path.parts else ""


class _Ranges(io.RawIOBase):
    """Each read is a request for a range."""

    def __init__(self, file: Remote) -> None:
        super().__init__()
        self._file = file
        self._size = file.version().nbytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        out = np.frombuffer(memoryview(buffer), np.uint8)[: max(0, self._size - self._position)]
        self._file.storage.fill(self._file.key, self._position, out)
        self._position += len(out)
        return len(out)


@dataclass(frozen=True)
class PathStyle:
    """The form of local paths in an output's file, which never shows the user's home folder.

    Attributes:
        start: the file's folder, from which paths are relative; None for a file that will be moved.
        names_only: whether only names of folders are written, for a file that is published.
    """

    start: Path | None = None
    names_only: bool = False

    def of(self, place: Location) -> str:
        """A path in this form; remote addresses stay."""
        whole = place.resolve()
        if isinstance(whole, Remote):
            return str(whole)
        if self.names_only:
            return f"./{whole.name}"
        start, home = self.start.resolve() if self.start is not None else None, _home()
        if home is not None and whole.is_relative_to(home) and not (start and start.is_relative_to(home)):
            return f"~/{whole.relative_to(home)}"
        if start is None:
            return str(whole)
        relative = os.path.relpath(whole, start)
        return relative if relative.startswith("..") else f"./{relative}"

    def in_text(self, text: str, places: Iterable[Location]) -> str:
        """A sentence with the paths of these places, and of the home folder, in this form."""
        names = {str(each): self.of(each) for each in places} if self.names_only else {}
        if (home := _home()) is not None:
            names[str(home)] = "~"
        for path in sorted(names, key=len, reverse=True):
            text = re.sub(rf"{re.escape(path)}(?![\w.-])", lambda match: names[match[0]], text)
        return text


def _home() -> Path | None:
    """The user's home folder; None if there is none, or it is the root."""
    with suppress(RuntimeError, OSError):
        home = Path.home().resolve()
        return home if home.name else None
    return None
