"""Large files of the output: created at their final size, and filled at fixed offsets by many threads."""

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
    """An output file: its header, its size, and the offset of each tensor's data in the file."""

    name: str
    header: bytes
    offsets: Mapping[str, int]
    file_bytes: int


def lay_out(name: str, entries: Sequence[tuple[str, str, Sequence[int], int]]) -> Shard:
    """Lay out a safetensors file: compute its header and the offset of each tensor.

    Args:
        name: the file's name.
        entries: (tensor, dtype, shape, bytes) of each tensor, in the order of the data.
    """
    header = encode_header(entries, {"format": "pt"})
    offsets, position = {}, len(header)
    for tensor, _dtype, _shape, nbytes in entries:
        offsets[tensor] = position
        position += nbytes
    return Shard(name, header, offsets, position)


class Writer:
    """Writes files of a staging directory at any offset, from any thread. The files have their final size.

    A separate thread continuously syncs written data to the disk. Without it, the kernel would begin late, and the
    sync at the end would take long. A pickled writer has no such thread: another process must call `sync`.

    About `MOST_OPEN` files are open at a time, because a sweep may have more files than a process may open.

    Args:
        staging: the folder.
        shards: the files to create and allocate; None for files that another process has created.
        before_sync: called before written data is synced; returns a function that is called after the sync.
        pause: seconds before each sync. With a long pause, files that are removed soon may never reach the disk.

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
                try:  # so that a full disk is an error before the work, not after it
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
        """Write `data` (uint8) at byte `offset` of the file `shard`.

        Raises:
            OSError: the disk is full or fails, or another program has removed the file.
        """
        file = self._open(shard)
        write_all(file.descriptor, data.data, offset)
        with self._lock:
            self._dirty.add(shard)

    def read(self, shard: str, offset: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with bytes of the file `shard`, starting at byte `offset`.

        Raises:
            OSError: the disk fails, or the file ends early.
        """
        view, file = out.data, self._open(shard)
        while view:
            if (nbytes := read_into(file.descriptor, [view], offset)) == 0:
                raise OSError(errno.EIO, "the file ends early", shard)
            view, offset = view[nbytes:], offset + nbytes

    def sync(self) -> bool:
        """Sync all written data to the disk. Return whether there was any.

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
        """Raise the error of the separate thread that syncs data, if it had one.

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
        """Sync a complete file to the disk and close it, so that it may be removed.

        Raises:
            OSError: the disk is full or fails.
        """
        with self._syncing:
            file = self._open(name)
            self._staging.finish(name, file.descriptor, self._sizes.pop(name))
            self._uploaded_names.add(name)
            self._open.cache_clear()

    def close(self) -> None:
        """Close all files without waiting for the disk."""
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
