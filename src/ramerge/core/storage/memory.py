"""A folder in the memory of this process: arrays that are read like files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.storage import Storage, Version


class Extent(Protocol):
    """Contiguous bytes: a uint8 array, or an object whose slices are uint8 arrays, such as a tensor on a device."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.uint8]: ...


class MemoryFolder(Storage):
    """A folder whose files consist of extents in memory, which are copied only when they are read.

    Args:
        address: the folder's name in messages.
        files: the extents of each file, in order, by its path in the folder.
    """

    in_memory: ClassVar[bool] = True

    def __init__(self, address: str, files: Mapping[str, Sequence[Extent]]) -> None:
        self.address = address
        self._extents = files
        self._ends = {key: list(accumulate(map(len, extents))) for key, extents in files.items()}
        self._versions = {key: Version("", ends[-1] if ends else 0, 0) for key, ends in self._ends.items()}

    def files(self) -> Mapping[str, Version]:
        return self._versions

    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        if not 0 <= start <= stop <= self._versions[key].nbytes:
            raise CheckpointError(f"{self.address}/{key}: ends before byte {stop:,}")
        place = bisect_right(self._ends[key], start)
        while start < stop:
            begin, extent = self._ends[key][place] - len(self._extents[key][place]), self._extents[key][place]
            data = extent[start - begin : stop - begin]
            yield data
            start, place = start + len(data), place + 1

    @override
    def fill(self, key: str, position: int, out: NDArray[np.uint8]) -> None:
        count = 0
        for data in self.chunks(key, position, position + out.size):
            out[count : count + len(data)] = data
            count += len(data)
