"""The interface of what holds files elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_UNKNOWN_NS = 2**63 - 1


@dataclass(frozen=True)
class Version:
    """Distinguishes the content of a file that is elsewhere from what else may be under its name.

    Attributes:
        tag: its ETag, or the hub's digest of it; empty if the server gives none.
        nbytes: its size.
        modified_ns: time of the last write, in nanoseconds; 0 if it is not known.
    """

    tag: str
    nbytes: int
    modified_ns: int

    @property
    def latest_ns(self) -> int:
        """Time after which the content may have changed without a sign, in nanoseconds: never if there is a tag."""
        return 0 if self.tag else self.modified_ns or _UNKNOWN_NS


class Storage(ABC):
    """A folder elsewhere, with all that is in it. Its files are pinned to the versions that were found first.

    It can be pickled for another machine, which asks for the same versions, with credentials of its own: what the
    environment or a file gives here is not in the pickle.

    Attributes:
        address: the folder as messages and records name it: without credentials, and without a query, which may be a
            signature.
    """

    address: str

    @abstractmethod
    def files(self) -> Mapping[str, Version]:
        """All files by their path in the folder, or those that are known where nothing lists them.

        Raises:
            CheckpointError: the server cannot be reached, does not know the folder, or denies access.
        """

    def find(self, key: str) -> Version | None:
        """The version of a file; None if there is no such file.

        Raises:
            CheckpointError: as for `files`.
        """
        return self.files().get(key)

    def expect(self, keys: Iterable[str]) -> None:
        """Hear of files that will be asked for one by one, where each is a request that can be made earlier.

        Raises:
            CheckpointError: as for `files`.
        """
        for key in keys:
            self.find(key)

    @abstractmethod
    def fill(self, key: str, position: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with a file's bytes from byte `position` on, from any thread.

        Raises:
            CheckpointError: the file has changed or ends early, or the server cannot be reached, denies access or does
                not answer requests for ranges.
        """
