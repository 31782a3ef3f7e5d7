"""System calls that not every operating system has, each with a fallback. Imports nothing slow.

Names are looked up once, when this module is imported, so a call has no overhead. No other module used by a merge uses
these names of `os`, `fcntl` and `resource` directly; `tests/foundation/test_systems.py` merges without them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than all imports of this module
    from collections.abc import Callable
    from typing import Any


def _import_optional(name: str) -> Any:
    """Import a module of the standard library; None on systems that do not have it."""
    try:
        return import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt, _resource = _import_optional("fcntl"), _import_optional("msvcrt"), _import_optional("resource")

# --- flags of os.open; 0 where a system has no such flag -------------------------------------------------------------

PRIVATE: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Do not inherit the descriptor in child processes, and do not translate line ends."""

NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)

# --- reading and writing by position ---------------------------------------------------------------------------------

_moving = threading.Lock()  # threads share a descriptor, and therefore its position


def _read_at(descriptor: int, nbytes: int, position: int) -> bytes:
    with _moving:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.read(descriptor, nbytes)


def _read_into(descriptor: int, views: list[memoryview], position: int) -> int:
    data = read_at(descriptor, len(views[0]), position)
    views[0][: len(data)] = data
    return len(data)


def _write_at(descriptor: int, view: memoryview | bytes, position: int) -> int:
    with _moving:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.write(descriptor, view)


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_at)
"""`os.pread`, or a fallback."""

read_into: Callable[[int, list[memoryview], int], int] = getattr(os, "preadv", _read_into)
"""`os.preadv` with one view, or a fallback."""

write_at: Callable[[int, memoryview, int], int] = getattr(os, "pwrite", _write_at)
"""`os.pwrite`, or a fallback."""

# --- disks -----------------------------------------------------------------------------------------------------------

sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
"""Flush a file's content to the disk, if possible with no more metadata than reading it requires."""


def will_need(descriptor: int, position: int, nbytes: int) -> None:
    """Announce a read to the system, if it has a call for that."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, position, nbytes, os.POSIX_FADV_WILLNEED)


def sync_folder(path: os.PathLike[str]) -> None:
    """Flush a folder's entries to the disk. Does nothing on Windows, which cannot open folders."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | PRIVATE)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- locks -----------------------------------------------------------------------------------------------------------

# Windows keeps other processes from reading locked bytes, so the locked byte lies beyond all content.
_LOCKED_BYTE = 1 << 30


def lock_file(descriptor: int, *, is_shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed. Do nothing if the system has no file locks.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is off.
        OSError: the file system has no locks.
    """
    if _fcntl is not None:
        kind = _fcntl.LOCK_SH if is_shared else _fcntl.LOCK_EX
        _fcntl.flock(descriptor, kind | (0 if wait else _fcntl.LOCK_NB))
    elif _msvcrt is not None:
        _lock_byte(descriptor, wait)


def _lock_byte(descriptor: int, wait: bool) -> None:
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    try:
        while True:
            try:
                _msvcrt.locking(descriptor, _msvcrt.LK_LOCK if wait else _msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:  # LK_LOCK gives up after ten seconds
                if not wait:
                    raise BlockingIOError(error.errno, "another process holds the lock") from error
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


# --- users, processes and their limits -------------------------------------------------------------------------------


def user_id() -> int:
    """Return the owner of files that this process creates; on systems without owners 0, as in `os.stat`."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


STOPPING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that ask a process to end."""


def after_fork_in_child(function: Callable[[], object]) -> None:
    """Register a function that is called in every forked child process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def address_space() -> int | None:
    """Return the limit of this process's address space in bytes; None if there is none."""
    if _resource is None:
        return None
    limit: int = _resource.getrlimit(_resource.RLIMIT_AS)[0]
    return None if limit == _resource.RLIM_INFINITY else limit


def peak_resident() -> int:
    """Return the largest resident memory of this process in bytes, including its parent's at the fork; 0 if unknown."""
    if _resource is None:
        return 0
    peak: int = _resource.getrusage(_resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# --- memory ----------------------------------------------------------------------------------------------------------

_UNKNOWN_MEMORY = 8 << 30


def machine_memory() -> int:
    """Return the machine's memory in bytes; 8 GiB if it is unknown."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _windows_memory() if sys.platform == "win32" else _UNKNOWN_MEMORY


def _windows_memory() -> int:
    import ctypes

    # MEMORYSTATUSEX: its own length, the load in percent, then seven sizes, of which the first is the memory
    status = (ctypes.c_uint64 * 8)(64)
    windows: Any = ctypes
    success = windows.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status[1]) if success else _UNKNOWN_MEMORY
