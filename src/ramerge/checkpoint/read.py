"""Reads bytes of tensors into reused buffers.

By positioned reads, not through a memory map: a shrinking file or a failing disk is then an error that names the file,
not a signal that kills the process. And resident memory is only that of the buffers.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.identity import Identity, has_changed, identity_of
from ramerge.checkpoint.tensor import Tensor
from ramerge.foundation.errors import CheckpointError, reason

# Several workers read at a time, and many systems let a process open only 1,024 files, including the outputs.
_MOST_OPEN = 32


@dataclass
class _File:
    """An open file, and the number of threads that read it."""

    descriptor: int
    users: int = 0


class Reader:
    """Reads blocks of tensors, in any thread. All threads share one open file, and few files are open at a time.

    Args:
        files: the expected identities of files. Other files are not checked.
    """

    def __init__(self, files: Mapping[Path, Identity] = MappingProxyType({})) -> None:
        self._identities = files
        self._files: dict[Path, _File] = {}  # in the order of their last use
        self._freed = threading.Condition()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files. No thread may be reading."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files = {}

    def read(self, tensor: Tensor, start: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8) with the tensor's bytes from byte `start` on.

        Raises:
            CheckpointError: the file ends early, cannot be read, or has changed.
        """
        if tensor.memory is not None:
            out[:] = tensor.memory[start : start + out.size]
            return
        try:
            with self._opened(tensor.path) as descriptor:
                view = out.data
                position = tensor.offset + start
                while view:
                    got = os.preadv(descriptor, [view], position)
                    if got == 0:
                        raise CheckpointError(has_changed(tensor.path))
                    view, position = view[got:], position + got
        except OSError as error:
            raise CheckpointError(f"{tensor.path}: cannot be read: {reason(error)}") from error

    @contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        with self._freed:
            while path not in self._files:
                self._open(path)
            file = self._files[path] = self._files.pop(path)
            file.users += 1
        try:
            yield file.descriptor
        finally:
            with self._freed:
                file.users -= 1
                self._freed.notify()

    def _open(self, path: Path) -> None:
        """Open a file. If the process may not open more files, only close another one."""
        if len(self._files) >= _MOST_OPEN:
            self._close_unused()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                raise
            if not self._close_unused():
                self._freed.wait()
            return
        if identity_of(descriptor) != self._identities.get(path, identity_of(descriptor)):
            os.close(descriptor)
            raise CheckpointError(has_changed(path))
        self._files[path] = _File(descriptor)

    def _close_unused(self) -> bool:
        """Close the unused file that was used longest ago. Return whether there is one."""
        for path, file in self._files.items():
            if not file.users:
                os.close(self._files.pop(path).descriptor)
                return True
        return False
