"""The output's large files: made at their final size, and filled at fixed offsets by many threads."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.files import OpenFile, write_all
from ramerge.core.foundation.systems import read_into, sync_data
from ramerge.core.output.staging import StagingDir
from ramerge.core.tensors.header import encode_header

MOST_OPEN = 64


@dataclass(frozen=True)
class Shard:
    """An output file: its header's bytes, its size, and the offset of each tensor's data in the file."""

    name: str
    header: bytes
    offsets: Mapping[str, int]
    file_bytes: int


def lay_out(name: str, entries: Sequence[tuple[str, str, Sequence[int], int]]) -> Shard:
    """Lay out a safetensors file: its header, and the place of every tensor.

    Args:
        name: the file's name.
        entries: (tensor, dtype, shape, bytes) in the order of their data.
    """
    header = encode_header(entries, {"format": "pt"})
    offsets, position = {}, len(header)
    for tensor, _dtype, _shape, nbytes in entries:
        offsets[tensor] = position
        position += nbytes
    return Shard(name, header, offsets, position)


class Writer:
    """Files of a staging directory of their final size, written at any offset by any thread.

    A separate thread pushes written data to the disk all the time. Without it, the kernel begins late, and the
    synchronization at the end takes long. Pickled, it is the same files without this thread: another process
    synchronizes its writes.

    About `MOST_OPEN` are open at a time, because a sweep may have more files than a process may open.

    Args:
        staging: the folder.
        shards: the files, which are created and allocated; None for those that another process has made.
        before_sync: called before what was written so far is brought to the disk; gives a function that is called
            after that.
        pause: seconds before each time that data is brought to the disk. Files that are removed soon may never reach
            it.

    Raises:
        OSError: the disk is full or fails.
    """

    def __init__(
        self,
        staging: StagingDir,
        shards: Sequence[Shard] | None = None,
        before_sync: Callable[[], Callable[[], None]] | None = None,
        pause: float = 0.0,
    ) -> None:
        self._staging = staging
        self._open = lru_cache(MOST_OPEN)(lambda name: OpenFile(staging.reopen(name)))
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._syncing = threading.Lock()
        self._uploaded_names: set[str] = set()
        self._before_sync = before_sync or (lambda: lambda: None)
        self._sizes = {shard.name: shard.file_bytes for shard in shards or ()}
        self._pause = pause
        self._stop = threading.Event()
        self._failure: OSError | None = None
        self._flusher: threading.Thread | None = None
        if shards is None:
            return
        for shard in shards:
            file = OpenFile(staging.create(shard.name))
            if staging.reserves and hasattr(os, "posix_fallocate"):
                try:  # so that a full disk is an error before the work and not after it
                    os.posix_fallocate(file.descriptor, 0, shard.file_bytes)
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                        raise
            os.ftruncate(file.descriptor, shard.file_bytes)
            write_all(file.descriptor, memoryview(shard.header), 0)
        self._flusher = threading.Thread(target=self._flush, name="ramerge-flush", daemon=True)
        self._flusher.start()

    def __reduce__(self) -> tuple[object, ...]:
        return Writer, (self._staging,)

    def write(self, shard: str, offset: int, data: NDArray[np.uint8]) -> None:
        """Write `data` (uint8) at `offset` of the file `shard`.

        Raises:
            OSError: the disk is full or fails, or another program has removed the file.
        """
        file = self._open(shard)
        write_all(file.descriptor, data.data, offset)
        with self._lock:
            self._dirty.add(shard)

    def read(self, shard: str, offset: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with bytes of the file `shard` from byte `offset` on.

        Raises:
            OSError: the disk fails, or the file ends early.
        """
        view, file = out.data, self._open(shard)
        while view:
            if (nbytes := read_into(file.descriptor, [view], offset)) == 0:
                raise OSError(errno.EIO, "the file ends early", shard)
            view, offset = view[nbytes:], offset + nbytes

    def sync(self) -> bool:
        """Bring all written data to the disk. Returns whether there was anything.

        Raises:
            OSError: the disk fails.
        """
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        for name in dirty:
            with self._syncing:
                if not self._stop.is_set() and name not in self._uploaded_names:
                    file = self._open(name)
                    sync_data(file.descriptor)
        return bool(dirty)

    def check(self) -> None:
        """Raise the error of the separate thread that brings data to the disk.

        Raises:
            OSError: the disk is full or fails.
        """
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Wait until all files of the writer are on the disk.

        Raises:
            OSError: the disk is full or fails.
        """
        if self._flusher is None:
            self.sync()
        self._end_flusher()
        self.check()
        for name, size in self._sizes.items():
            file = self._open(name)
            self._staging.finish(name, file.descriptor, size)

    def release(self, name: str) -> None:
        """Bring a complete file to the disk, and let go of it: it may be removed then.

        Raises:
            OSError: the disk is full or fails.
        """
        with self._syncing:
            file = self._open(name)
            self._staging.finish(name, file.descriptor, self._sizes.pop(name))
            self._uploaded_names.add(name)
            self._open.cache_clear()

    def close(self) -> None:
        """Close the writer's files without waiting for the disk."""
        self._end_flusher()
        self._open.cache_clear()

    def _end_flusher(self) -> None:
        if self._flusher is not None:
            self._stop.set()
            self._flusher.join()

    def _flush(self) -> None:
        while not self._stop.wait(self._pause):
            after = self._before_sync()
            try:
                any_writes = self.sync()
                if not self._stop.is_set():
                    after()
            except OSError as error:
                self._failure = error
                return
            if not any_writes:
                self._stop.wait(0.02)
