"""Zstd frames in trainers' files, decompressed in bounded pieces.

A frame is decompressed only as far as requested, so a frame that claims or holds too much is an error that takes
neither memory nor time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import zstandard
from numpy.typing import NDArray

from ramerge import CheckpointError
from ramerge.core.foundation.errors import AGAIN
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.tensors import Files

# What a decoder keeps of the past. The levels of zstd up to 19 need this at most.
_MOST_WINDOW = 1 << 23
_PIECE = 1 << 17
_LONGEST_HEADER = 18


@dataclass(frozen=True)
class Frame:
    """A zstd frame in a file of a trainer's delta."""

    path: Path
    offset: int
    nbytes: int
    title: str = ""

    def wrong(self, text: str) -> CheckpointError:
        """Return an error about this frame."""
        return CheckpointError(f"{self.path}: {self.title}{': ' if self.title else ''}{text}")

    def declared_size(self, files: Files) -> int | None:
        """Return the content size in bytes from the frame's header; None if not stated."""
        head = np.empty(min(_LONGEST_HEADER, self.nbytes), np.uint8)
        files.fill(self.path, self.offset, head)
        try:
            size = zstandard.get_frame_parameters(head.tobytes()).content_size
        except zstandard.ZstdError as error:
            raise self.wrong(f"is not compressed with zstd, or damaged; {AGAIN}") from error
        return None if size == zstandard.CONTENTSIZE_UNKNOWN else int(size)

    def stream(self, files: Files) -> FrameStream:
        """Open the content of the frame, to be read from its beginning."""
        return FrameStream(self, files)


class _FrameSource:
    """The bytes of a frame in its file, in the form that zstandard reads."""

    def __init__(self, frame: Frame, files: Files) -> None:
        self._files, self._path = files, frame.path
        self._position, self._end = frame.offset, frame.offset + frame.nbytes

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._position
        part = np.empty(left if size < 0 else min(size, left), np.uint8)
        if part.size:
            self._files.fill(self._path, self._position, part)
            self._position += part.size
        return part.tobytes()


class FrameStream:
    """The content of a frame, decompressed from front to back."""

    def __init__(self, frame: Frame, files: Files) -> None:
        self._frame = frame
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        self._reader = decompressor.stream_reader(cast(IO[bytes], _FrameSource(frame, files)), read_size=_PIECE)
        self.position = 0

    def fill(self, out: Bytes) -> None:
        """Fill `out` with the next bytes of the frame's content."""
        view = out.data
        try:
            while view:
                nbytes = self._reader.readinto(view)
                if nbytes == 0:
                    raise self._frame.wrong(f"is truncated: its compressed data end early; {AGAIN}")
                view, self.position = view[nbytes:], self.position + nbytes
        except zstandard.ZstdError as error:
            raise self._frame.wrong(f"is damaged: {error}; {AGAIN}") from error

    def take(self, count: int, dtype: str) -> NDArray[np.int64]:
        """Read the next numbers of the frame's content as int64; `dtype` is their stored dtype."""
        return self.take_bytes(count * np.dtype(dtype).itemsize).view(dtype).astype(np.int64)

    def take_bytes(self, nbytes: int) -> Bytes:
        """Read the next bytes of the frame's content."""
        out = np.empty(nbytes, np.uint8)
        self.fill(out)
        return out

    def forward(self, position: int) -> None:
        """Skip to a later byte of the frame's content."""
        if position > self.position:
            unused = np.empty(min(_PIECE, position - self.position), np.uint8)
            while position > self.position:
                self.fill(unused[: position - self.position])

    def end(self) -> None:
        try:
            more = self._reader.read(1)
        except zstandard.ZstdError as error:
            raise self._frame.wrong(f"is damaged: {error}; {AGAIN}") from error
        if more:
            raise self._frame.wrong("holds more than it may: its compressed data continue after the last element")
