"""The output directory: built beside its place, filled at fixed offsets, and moved there when it is complete."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.header import encode_header
from ramerge.errors import OutputError

_RENAME_EXCHANGE = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Shard:
    """An output file: its header's bytes, and for each tensor the offset of its data in the file."""

    name: str
    header: bytes
    offsets: Mapping[str, int]
    file_bytes: int


def lay_out(name: str, entries: Sequence[tuple[str, str, Sequence[int], int]]) -> Shard:
    """Fix the place of every tensor of a shard.

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
    """Output files of their final size, written at any offset by any thread.

    A thread of its own pushes written data to the disk all along: left alone the kernel begins late, and the
    synchronisation at the end waits for everything.
    """

    def __init__(self, directory: Path, shards: Sequence[Shard]) -> None:
        """Create and allocate the files.

        Raises:
            OutputError: the disk is full or refuses.
        """
        self._descriptors: dict[str, int] = {}
        self._dirty: set[int] = set()
        self._stop = False
        self._failure: OSError | None = None
        try:
            for shard in shards:
                path = directory / shard.name
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                self._descriptors[shard.name] = descriptor
                _allocate(descriptor, shard.file_bytes)
                self._write_all(descriptor, memoryview(shard.header), 0)
        except OSError as error:
            self.close()
            raise output_error(directory, error) from error
        self._flusher = threading.Thread(target=self._flush, name="ramerge-flush", daemon=True)
        self._flusher.start()

    def write(self, shard: str, offset: int, data: NDArray[np.uint8]) -> None:
        """Write `data` (uint8) at `offset` of the file `shard`.

        Raises:
            OSError: the disk is full or fails.
        """
        descriptor = self._descriptors[shard]
        self._write_all(descriptor, data.data, offset)
        self._dirty.add(descriptor)

    def finish(self) -> None:
        """Wait until everything is on the disk.

        Raises:
            OSError: the disk is full or fails.
        """
        self._end_flusher()
        if self._failure is not None:
            raise self._failure
        for descriptor in self._descriptors.values():
            os.fsync(descriptor)

    def close(self) -> None:
        """Close the files; nothing is waited for."""
        self._end_flusher()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}

    def _end_flusher(self) -> None:
        self._stop = True
        if hasattr(self, "_flusher"):
            self._flusher.join()

    def _flush(self) -> None:
        while not self._stop:
            dirty, self._dirty = self._dirty, set()
            try:
                for descriptor in tuple(dirty):  # a worker may be adding to it still
                    if not self._stop:
                        os.fdatasync(descriptor)
            except OSError as error:
                self._failure = error
                return
            if not dirty:
                time.sleep(0.02)

    @staticmethod
    def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
        while view:
            done = os.pwrite(descriptor, view, offset)
            view, offset = view[done:], offset + done


def _allocate(descriptor: int, size: int) -> None:
    """Reserve the file's blocks, so that a full disk shows before the work and not after it."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(descriptor, size)


def output_error(path: Path, error: OSError) -> OutputError:
    """What an error of the operating system means for the output."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path if path.exists() else path.parent).free
        return OutputError(f"{path}: the disk is full ({free:,} bytes free); nothing was kept")
    return OutputError(f"{path}: cannot be written: {error.strerror}; nothing was kept")


@contextmanager
def staged(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new folder beside `out`, which takes its place when the block ends well, and is removed when it does not.

    Raises:
        OutputError: `out` exists and `overwrite` is off, or the folder cannot be made, synchronised or moved.
    """
    made = [folder for folder in out.parents if not folder.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
    except OSError as error:
        raise output_error(out, error) from error
    # named first and made inside of the block, so that a signal finds nothing that would not be removed
    stage, lock = _place_beside(out), -1
    try:
        stage.mkdir(mode=0o700)
        lock = os.open(stage, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield stage
        _publish(stage, out, overwrite)
    except OSError as error:
        raise output_error(out, error) from error
    finally:
        if lock >= 0:
            os.close(lock)
        shutil.rmtree(stage, ignore_errors=True)
        if not out.exists():
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()


def _publish(stage: Path, out: Path, overwrite: bool) -> None:
    stage.chmod(0o777 & ~_umask())
    for folder, _folders, files in os.walk(stage):
        for name in files:
            _sync(Path(folder) / name)
        _sync(Path(folder))
    if not os.path.lexists(out):
        stage.rename(out)
    elif not overwrite:
        raise OutputError(f"{out}: exists; choose another folder or pass --overwrite")
    elif not is_replaceable(out):
        raise OutputError(f"{out}: has changed meanwhile and is no checkpoint any more; nothing was replaced")
    else:
        with _uninterrupted():
            _exchange(stage, out)
            shutil.rmtree(stage, ignore_errors=True)
    _sync(out.parent)


def is_replaceable(folder: Path) -> bool:
    """Whether a folder is what `--overwrite` is meant for, and no home or project that was named by mistake.

    That is what a merge has made, or a flat folder.
    """
    made = any(_is_ours(folder / name) for name in ("ramerge.json", "sweep.json"))
    return folder.is_dir() and (made or not any(entry.is_dir() for entry in folder.iterdir()))


def _is_ours(record: Path) -> bool:
    try:
        return "ramerge_version" in json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no signal end the process half way through replacing a folder; the merge is complete by then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exchange(stage: Path, out: Path) -> None:
    """Put `stage` in the place of `out` and the old content in the place of `stage`, at once where Linux can."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None, use_errno=True)
        here = -100  # AT_FDCWD
        if library.renameat2(here, os.fsencode(stage), here, os.fsencode(out), _RENAME_EXCHANGE) == 0:
            return
    old = _place_beside(out)
    old.mkdir(mode=0o700)
    try:
        out.rename(old / "old")
        try:
            stage.rename(out)
        except OSError:
            (old / "old").rename(out)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _place_beside(out: Path) -> Path:
    return out.parent / f".{out.name}.ramerge-{secrets.token_hex(4)}.partial"


def _remove_abandoned(out: Path) -> None:
    """Remove what a killed process left beside `out`; the lock of a living one keeps its folder."""
    name = re.compile(re.escape(f".{out.name}.ramerge-") + r"[a-z0-9_]{8}\.partial")
    for stage in out.parent.iterdir():
        if not name.fullmatch(stage.name) or stage.is_symlink() or not stage.is_dir():
            continue
        descriptor = os.open(stage, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(stage, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
