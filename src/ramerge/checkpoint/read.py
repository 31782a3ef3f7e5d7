"""Bytes of tensors into reused buffers.

Positioned reads rather than a mapping: a file that shrinks or a disk that fails is then an error with a name, not a
signal that kills the process, and resident memory is what the buffers hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.tensor import Tensor
from ramerge.errors import CheckpointError


class Reader:
    """Reads blocks of tensors; one for each worker and input, since it keeps the last file open.

    A worker walks through a checkpoint file by file, so one descriptor is enough, however many shards there are.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor = -1

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that is open, if any."""
        if self._path is not None:
            os.close(self._descriptor)
            self._path = None

    def read(self, tensor: Tensor, start: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8) with the tensor's bytes from byte `start` on.

        Raises:
            CheckpointError: the file ends early or cannot be read.
        """
        if tensor.memory is not None:
            out[:] = tensor.memory[start : start + out.size]
            return
        try:
            self._open(tensor.path)
            view = out.data
            position = tensor.offset + start
            while view:
                got = os.preadv(self._descriptor, [view], position)
                if got == 0:
                    raise CheckpointError(f"{tensor.path}: ends in the middle of {tensor.name!r}; did the file change?")
                view, position = view[got:], position + got
        except OSError as error:
            raise CheckpointError(f"{tensor.path}: cannot be read: {error.strerror}") from error

    def _open(self, path: Path) -> None:
        if path != self._path:
            self.close()
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._path = path
