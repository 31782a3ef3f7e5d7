"""Changes of a tensor at ascending positions, for `slime` and `grail`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ramerge.deltas.trainers.frames import Frame
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.tensors import Files

Entries = Iterator[tuple[NDArray[np.int64], Bytes]]
"""Ascending positions, and the bytes of their values, in pieces."""

PIECE = 1 << 16
"""Entries to read at a time."""


class Scatter:
    """The change of a tensor by new values of some elements.

    Args:
        end: refuses bytes after the last new value.
    """

    def __init__(self, entries: Entries, width: int, end: Callable[[], None]) -> None:
        self._entries, self._end = entries, end
        self._words = f"u{width}"
        self._positions: NDArray[np.int64] = np.empty(0, np.int64)
        self._values: NDArray[np.generic] = np.empty(0, self._words)

    def apply(self, block: Bytes, start: int) -> None:
        """Change the tensor's next block in place; `start` is its first byte in the tensor."""
        words = block.view(self._words)
        first = start // words.itemsize
        while True:
            if not self._positions.size:
                entry = next(self._entries, None)
                if entry is None:
                    return
                self._positions, self._values = entry[0], entry[1].view(self._words)
            inside = int(np.searchsorted(self._positions, first + words.size))
            words[self._positions[:inside] - first] = self._values[:inside]
            self._positions, self._values = self._positions[inside:], self._values[inside:]
            if self._positions.size:
                return

    def end(self) -> None:
        """Refuse bytes in the frame beyond the tensor."""
        for _ in self._entries:  # empty pieces, and checks at the end
            pass
        self._end()


def overwritten(frame: Frame, files: Files, nbytes: int) -> Scatter:
    """Return slime's change that a frame holds: a count (u4), positions (u4 each), and the new bytes.

    Positions and bytes are far apart, so two readers decompress the frame, one ahead of the other.
    """
    size = frame.declared_size(files)
    places, values = frame.stream(files), frame.stream(files)
    count = int(places.take(1, "<u4")[0])
    if count > nbytes:
        raise frame.wrong(f"has {count:,} changed bytes, but the tensor has only {nbytes:,}")
    if size not in (None, 4 + 5 * count):
        raise frame.wrong(f"unpacks to {size:,} bytes, but {count:,} changed bytes take {4 + 5 * count:,}")

    def entries() -> Entries:
        last = -1
        values.forward(4 + 4 * count)
        for begin in range(0, count, PIECE):
            positions = places.take(min(PIECE, count - begin), "<u4")
            check_ascending(frame, positions, last, nbytes)
            last = int(positions[-1])
            yield positions, values.take_bytes(positions.size)

    return Scatter(entries(), 1, values.end)


def check_ascending(frame: Frame, positions: NDArray[np.int64], last: int, most: int) -> None:
    """Refuse positions of a trainer's delta that do not ascend from `last`, or reach `most`."""
    if int(positions[0]) <= last or bool((np.diff(positions) <= 0).any()):
        raise frame.wrong("its positions do not ascend")
    if int(positions[-1]) >= most:
        raise frame.wrong(f"has position {int(positions[-1]):,}, but the last one is {most - 1:,}")
