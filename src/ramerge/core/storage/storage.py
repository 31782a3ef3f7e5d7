"""The interface of remote storage, and streams of bytes."""

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
    """Distinguishes the content of a remote file from other contents under its name.

    Attributes:
        tag: its ETag, or the hub's digest of it; empty if the server gives none.
        modified_ns: time of the last write, in nanoseconds; 0 if it is unknown.
    """

    tag: str
    nbytes: int
    modified_ns: int

    @property
    def latest_ns(self) -> int:
        """Time after which the content may have changed unnoticed, in nanoseconds: never for content with a tag."""
        return 0 if self.tag else self.modified_ns or _UNKNOWN_NS


def has_changed(place: object) -> str:
    """The message about an input file that has changed during a run."""
    return f"{place}: has changed since it was first read; run this again when no program writes to it any more"


class Storage(ABC):
    """A remote folder. Its files are pinned to the versions that were found first.

    It can be pickled for another machine, which requests the same versions with credentials of its own: credentials of
    the environment or of a file here are not in the pickle.

    Attributes:
        address: the folder as messages and records name it, without credentials.
        in_memory: whether its files are in this process, so that reading them is no request.
    """

    address: str
    in_memory: ClassVar[bool] = False

    @abstractmethod
    def files(self) -> Mapping[str, Version]:
        """All files by their path in the folder.

        Raises:
            CheckpointError: the server cannot be reached, does not know the folder, or denies access.
        """

    @abstractmethod
    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """Bytes `start:stop` of a file, at least one, in arrays (uint8) of any size, by one request.

        Raises:
            CheckpointError: the file has changed or ends early, or the server cannot be reached, denies access or does
                not answer requests for ranges.
        """

    def fill(self, key: str, position: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with a file's bytes from byte `position` on, from any thread.

        Raises:
            CheckpointError: as for `chunks`.
        """
        Stream(self, key, position, position + out.size).fill(out)


class Stream:
    """Bytes of a file, taken one after another from the answer to one request. For one thread at a time.

    The request is made when the first bytes are taken, and they come as fast as they are taken. So an answer may last
    longer than a server waits, or than requests are repeated. If it breaks off, the missing bytes are requested again.

    Args:
        stop: the byte after the last one.

    Attributes:
        stop: the byte after the last one. It may grow as long as nothing was taken.
    """

    def __init__(self, storage: Storage, key: str, position: int, stop: int) -> None:
        self._storage, self._key = storage, key
        self.stop: int = stop
        self._position = position
        self._chunks: Iterator[NDArray[np.uint8]] | None = None
        self._rest = np.empty(0, np.uint8)  # of the last chunk

    def gives(self, start: int, stop: int) -> bool:
        """Whether the next bytes are `start:stop` of the file."""
        return self._position == start and stop <= self.stop

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with the next bytes. There must be as many."""
        position = 0
        while position < out.size:
            data = self._rest if self._rest.size else self._next()
            part = data[: out.size - position]
            out[position : position + part.size] = part
            position += part.size
            self._position += part.size
            self._rest = data[part.size :]
        if self._position == self.stop and self._chunks is not None:
            next(self._chunks, None)  # only after its end can the connection be used again
            self._chunks = None

    def _next(self) -> NDArray[np.uint8]:
        if self._chunks is not None:
            with suppress(CheckpointError):
                return next(self._chunks)
        self._chunks, chunks = None, self._storage.chunks(self._key, self._position, self.stop)
        first = next(chunks)
        self._chunks = chunks
        return first
