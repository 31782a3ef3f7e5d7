"""What a program may use, and how much it uses, seen from outside its sandbox."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

_INODE_BYTES = 1024  # what an empty file in a tmpfs costs the kernel, about
_MOST_FILES = 1000
_SOCKET_BYTES = 212_992  # a usual /proc/sys/net/core/wmem_default


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: on the clock; whole seconds, rounded up, of processor time a process.
        memory_bytes: memory of all its processes together, resident or swapped, shared pages counted once; each socket
            counts as a full one.
        processes: processes and threads at once, with itself.
        output_bytes: of standard output, and of standard error; beyond it, the program is killed.
        disk_bytes: of all files in its folder, which is all that it can write to.
    """

    seconds: float = 10.0
    memory_bytes: int = 512 << 20
    processes: int = 16
    output_bytes: int = 1 << 20
    disk_bytes: int = 64 << 20


@dataclass
class Inside:
    """A sandbox seen from outside, by descriptors that came out of it before the program began.

    Attributes:
        proc: its /proc, which lists its processes and no others.
        first: its first process, whose end is the end of all of them.
        disk: its /tmp.
    """

    proc: int
    first: int
    disk: int

    def close(self) -> None:
        for descriptor in (self.proc, self.first, self.disk):
            os.close(descriptor)

    def processes(self) -> list[str]:
        with os.scandir(self.proc) as entries:
            return [entry.name for entry in entries if entry.name.isdigit()]

    def memory_bytes(self, processes: list[str], enough: int) -> int:
        """What the processes hold; at most too much by pages that they share, if that is not beyond `enough`.

        Swapped pages count, but for those of shared memory, which belong to no process.
        """
        disk = os.fstatvfs(self.disk)
        files = (disk.f_files - disk.f_ffree) * _INODE_BYTES
        kernel = files + self._sockets() * socket_bytes()
        held = kernel + sum(map(self._held, processes))
        return held if held <= enough else kernel + sum(map(self._proportional, processes))

    def _sockets(self) -> int:
        """Those in messages between sockets too: a process that has sent one can close it."""
        try:
            with self._open("1/net/sockstat") as file:
                return int(file.readline().split()[2])
        except (OSError, IndexError, ValueError):  # its first process has ended
            return 0

    def _held(self, process: str) -> int:
        try:
            return self._sum(f"{process}/status", b"VmRSS:", b"VmSwap:", b"HugetlbPages:")
        except OSError:  # it has ended
            return 0

    def _proportional(self, process: str) -> int:
        try:
            return self._sum(f"{process}/smaps_rollup", b"Pss:", b"SwapPss:", b"Shared_Hugetlb:", b"Private_Hugetlb:")
        except OSError:
            return self._held(process)

    def _sum(self, path: str, *names: bytes) -> int:
        """Of the lines with these names, which are in KiB."""
        with self._open(path) as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(names))

    def _open(self, path: str) -> IO[bytes]:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc), "rb")


def files_below(folder: int, most_bytes: int) -> dict[str, bytes]:
    """Regular files below a folder that no process can change any more, by their paths.

    Links, and what cannot be read, are left out; so is everything beyond `most_bytes`, as sparse files hold more than
    they take.
    """
    found: dict[str, bytes] = {}
    folders = [""]
    while folders:
        below = folders.pop()
        with suppress(OSError):
            for name in sorted(_names(folder, below)):
                path = f"{below}{name}"
                with suppress(OSError, UnicodeEncodeError):
                    path.encode()
                    kind = os.stat(path, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISDIR(kind.st_mode):
                        folders.append(f"{path}/")
                    elif stat.S_ISREG(kind.st_mode) and kind.st_size <= most_bytes and len(found) < _MOST_FILES:
                        most_bytes -= kind.st_size
                        found[path] = _content(folder, path)
    return found


def _names(folder: int, below: str) -> list[str]:
    opened = os.open(below or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        return os.listdir(opened)  # noqa: PTH208 - pathlib knows no descriptors
    finally:
        os.close(opened)


def _content(folder: int, path: str) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
        return file.read()


@cache
def socket_bytes() -> int:
    """What a socket can hold in the kernel, of memory of no process. The filter of system calls keeps it so."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    except (OSError, ValueError):
        return _SOCKET_BYTES
