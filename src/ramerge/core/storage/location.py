"""Files and folders, local or remote: `Location`."""

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

# The size of a first read of a file; most headers fit into it.
_FIRST_BYTES = 1 << 16


class FileStatus(NamedTuple):
    """Size and modification time of a file; fields have the names of those of `Path.stat`."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, eq=False)
class Remote:
    """A remote file or folder, with the methods of `Path` that are needed to read a checkpoint.

    The root is the folder that the user has given: nothing above it is read.

    Attributes:
        storage: the root folder.
        key: the path relative to the root, with `/` between its parts; empty for the root itself.
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
        return Remote(self.storage, _object_key(PurePosixPath(self.key, name)))

    @property
    def name(self) -> str:
        """The last part of the path; for the root, the last part of its address."""
        return PurePosixPath(self.key or self.storage.address).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> Remote:
        """The folder around it; the root is its own parent."""
        return Remote(self.storage, _object_key(PurePosixPath(self.key).parent))

    def resolve(self) -> Remote:
        """Return itself, because remote storage has no links."""
        return self

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return bool(self.key) and self.key in self.storage.files()

    def is_dir(self) -> bool:
        """Whether there are files in this folder."""
        return any(True for _ in self.rglob("*"))

    def is_symlink(self) -> bool:
        """Return False, because remote storage has no links."""
        return False

    def glob(self, pattern: str) -> Iterator[Remote]:
        """Yield files in this folder whose relative paths match a pattern part by part."""
        pattern_parts = pattern.split("/")
        for file in self.rglob("*"):
            parts = relative(file, self).parts
            if len(parts) == len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts)):
                yield file

    def rglob(self, pattern: str) -> Iterator[Remote]:
        """Yield files in this folder, at any depth, whose names match a pattern."""
        inside = f"{self.key}/" if self.key else ""
        for key in self.storage.files():
            if key.startswith(inside) and fnmatchcase(PurePosixPath(key).name, pattern):
                yield Remote(self.storage, key)

    def stat(self) -> FileStatus:
        """The file's size and modification time; the time is 0 (1970) if it is unknown."""
        version = self.version()
        return FileStatus(version.nbytes, version.modified_ns / 1e9)

    def version(self) -> Version:
        """The version that the file is pinned to.

        Raises:
            CheckpointError: there is no such file.
        """
        version = self.storage.files().get(self.key)
        if version is None:
            raise CheckpointError(f"{self}: there is no such file")
        return version

    def open(self, _mode: Literal["rb"], /) -> BinaryIO:
        """Open the file for reading."""
        return cast(BinaryIO, io.BufferedReader(_RangeStream(self), _FIRST_BYTES))

    def read_bytes(self) -> bytes:
        """Read the whole file, which must be small."""
        out = np.empty(self.version().nbytes, np.uint8)
        self.storage.fill(self.key, 0, out)
        return out.tobytes()


Location: TypeAlias = Path | Remote


def here(path: Location) -> Path | None:
    """Return the path if it is local, for calls that only take local files; None for a remote location."""
    return path if isinstance(path, Path) else None


def is_far(path: Location) -> TypeGuard[Remote]:
    """Whether each read is a request to a server; false for local files and for models in memory."""
    return isinstance(path, Remote) and not path.storage.in_memory


def relative(path: Location, folder: Location) -> PurePath:
    """The path of a file relative to a folder that contains it."""
    return PurePath(str(path)).relative_to(str(folder))


def _object_key(path: PurePosixPath) -> str:
    return path.as_posix() if path.parts else ""


class _RangeStream(io.RawIOBase):
    """A raw stream in which each read is a range request."""

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
    """How a file of an output writes local paths. It never shows the user's home folder.

    Attributes:
        start: the folder of the file, to which paths are relative; None for absolute paths, if the file will be moved.
        names_only: whether to write only the names of folders, because the file is published.
    """

    start: Path | None = None
    names_only: bool = False

    def of(self, place: Location) -> str:
        """A path in this form; remote addresses do not change."""
        whole = place.resolve()
        if isinstance(whole, Remote):
            return str(whole)
        if self.names_only:
            return f"./{whole.name}"
        start, home = self.start.resolve() if self.start is not None else None, _home_folder()
        if home is not None and whole.is_relative_to(home) and not (start and start.is_relative_to(home)):
            return f"~/{whole.relative_to(home)}"
        if start is None:
            return str(whole)
        relative = os.path.relpath(whole, start)
        return relative if relative.startswith("..") else f"./{relative}"

    def in_text(self, text: str, places: Iterable[Location]) -> str:
        """Replace the paths of these places, and of the home folder, in a text."""
        names = {str(each): self.of(each) for each in places} if self.names_only else {}
        if (home := _home_folder()) is not None:
            names[str(home)] = "~"
        for path in sorted(names, key=len, reverse=True):
            text = re.sub(rf"{re.escape(path)}(?![\w.-])", lambda match: names[match[0]], text)
        return text


def _home_folder() -> Path | None:
    """The user's home folder; None if there is none, or if it is the root folder."""
    with suppress(RuntimeError, OSError):
        home = Path.home().resolve()
        return home if home.name else None
    return None
