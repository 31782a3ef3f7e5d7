"""The interface of remote storage, and streams of bytes from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.errors import CheckpointError

_UNKNOWN_NS = 2**63 - 1


@dataclass(frozen=True)
class Version:
    """Identifies the content of a remote file, to notice when the file changes.

    Attributes:
        tag: its ETag, or the hub's digest of its content; empty if the server gives none.
        nbytes: its size.
        modified_ns: time of the last write, in nanoseconds; 0 if it is unknown.
    """

    tag: str
    nbytes: int
    modified_ns: int

    @property
    def latest_ns(self) -> int:
        """The time of the last write in nanoseconds: changes soon after it may go unnoticed; 0 if there is a tag."""
        return 0 if self.tag else self.modified_ns or _UNKNOWN_NS


def has_changed(place: object) -> str:
    """The message that an input file has changed during a run."""
    return f"{place}: has changed since it was first read; run this again when no program writes to it any more"


class Storage(ABC):
    """A remote folder. Its files are pinned to the versions that were found first.

    It can be pickled for another machine, which requests the same versions with its own credentials: the pickle does
    not contain credentials from the environment or from files.

    Attributes:
        address: the folder's address in messages and records, without credentials.
        in_memory: whether its files are in the memory of this process, so that reading takes no requests.
    """

    address: str
    in_memory: ClassVar[bool] = False

    @abstractmethod
    def files(self) -> Mapping[str, Version]:
        """The versions of all files, by their path in the folder.

        Raises:
            CheckpointError: the server cannot be reached, does not know the folder, or denies access.
        """

    @abstractmethod
    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Yield bytes `start:stop` (at least one byte) of a file, in uint8 arrays of any size, from one request.

        Raises:
            CheckpointError: the file has changed or ends early, or the server cannot be reached, denies access, or does
                not support range requests.
        """

    def fill(self, key: str, position: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with the bytes of a file, starting at byte `position`. Thread-safe.

        Raises:
            CheckpointError: as for `chunks`.
        """
        Stream(self, key, position, position + out.size).fill(out)


class Stream:
    """Bytes of a file, read one after another from the response to one request. For one thread at a time.

    The request is made at the first read. The response arrives as fast as it is read, so it may take longer than the
    server's or the client's timeout. If it breaks off, the missing bytes are requested again.

    Args:
        position: the first byte.
        stop: the byte after the last one.

    Attributes:
        stop: the byte after the last one. It may be increased until the first read.
    """

    def __init__(self, storage: Storage, key: str, position: int, stop: int) -> None:
        self._storage, self._key = storage, key
        self.stop: int = stop
        self._position = position
        self._chunks: Iterator[NDArray[np.uint8]] | None = None
        self._rest = np.empty(0, np.uint8)  # the unread part of the last chunk

    def gives(self, start: int, stop: int) -> bool:
        """Whether the next bytes are `start:stop` of the file."""
        return self._position == start and stop <= self.stop

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with the next bytes, of which at least `out.size` must remain."""
        position = 0
        while position < out.size:
            data = self._rest if self._rest.size else self._next_chunk()
            part = data[: out.size - position]
            out[position : position + part.size] = part
            position += part.size
            self._position += part.size
            self._rest = data[part.size :]
        if self._position == self.stop and self._chunks is not None:
            next(self._chunks, None)  # the connection can be reused only after the end of the response
            self._chunks = None

    def _next_chunk(self) -> NDArray[np.uint8]:
        if self._chunks is not None:
            with suppress(CheckpointError):
                return next(self._chunks)
        self._chunks, chunks = None, self._storage.chunks(self._key, self._position, self.stop)
        first = next(chunks)
        self._chunks = chunks
        return first
