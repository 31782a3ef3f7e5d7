"""`Limits` of a program in the sandbox, and its usage, measured from outside."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

_INODE_BYTES = 1024  # what an empty file in a tmpfs costs the kernel, about
_SOCKET_BYTES = 212_992  # what one can hold, of memory of no process; the filter of system calls keeps it so
_MOST_FILES, _DEEPEST = 1000, 100


class Limits(BaseModel):
    """Limits of a program in the sandbox.

    Attributes:
        seconds: wall time; rounded up to whole seconds, also the processor time of each process.
        memory_bytes: memory of all its processes together, resident or swapped, shared pages counted once; each socket
            counts as if its buffer were full.
        processes: the number of concurrent processes and threads, including itself.
        output_bytes: bytes of standard output, and of standard error; beyond it, the program is killed.
        disk_bytes: bytes of all files in its folder, the only place that it can write to.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    seconds: float = 10.0
    memory_bytes: int = 512 << 20
    processes: int = 16
    output_bytes: int = 1 << 20
    disk_bytes: int = 64 << 20


@dataclass
class Inside:
    """A sandbox seen from outside, through descriptors that it sent before the program began.

    Attributes:
        proc: its /proc, which lists only its own processes.
        first: its first process, whose end ends all others.
        disk: its /tmp.
    """

    proc: int
    first: int
    disk: int

    def close(self) -> None:
        for descriptor in (self.proc, self.first, self.disk):
            os.close(descriptor)

    def memory_bytes(self, enough: int) -> int:
        """Return the bytes that the sandbox's processes hold. Shared pages count for each process, unless the sum
        exceeds `enough`; then they are counted once.

        Swapped pages count, except those of shared memory, which belong to no process. Sockets inside messages between
        sockets count too, because a process that has sent a socket can close it.
        """
        with os.scandir(self.proc) as entries:
            processes = [entry.name for entry in entries if entry.name.isdigit()]
        disk = os.fstatvfs(self.disk)
        sockets = self._lines("1/net/sockstat").get(b"sockets:", [b"used", b"0"])[1]
        kernel = (disk.f_files - disk.f_ffree) * _INODE_BYTES + int(sockets) * _SOCKET_BYTES
        total = kernel + sum(map(self._memory_of, processes))
        if total <= enough:
            return total
        names = (b"Pss:", b"SwapPss:", b"Shared_Hugetlb:", b"Private_Hugetlb:")
        return kernel + sum(self._kib(f"{one}/smaps_rollup", *names) or self._memory_of(one) for one in processes)

    def _memory_of(self, process: str) -> int:
        return self._kib(f"{process}/status", b"VmRSS:", b"VmSwap:", b"HugetlbPages:")

    def _kib(self, path: str, *names: bytes) -> int:
        lines = self._lines(path)
        return sum(int(lines[name][0]) << 10 for name in names if name in lines)

    def _lines(self, path: str) -> dict[bytes, list[bytes]]:
        """Read a file of /proc: map the first word of each line to its other words; empty if the process has ended."""
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc), "rb") as file:
                return {words[0]: words[1:] for line in file if (words := line.split())}
        except OSError:
            return {}


def files_below(folder: int, most_bytes: int) -> dict[str, bytes]:
    """Read the regular files below a folder that no process can change any more, by path.

    Links and unreadable files are left out; so is everything beyond `most_bytes`, because sparse files hold more than
    they occupy.
    """
    contents: dict[str, bytes] = {}
    for path, folders, names, here in os.fwalk(".", dir_fd=folder):
        folders.sort()
        if path.count("/") == _DEEPEST:  # each level holds a descriptor of ours
            folders.clear()
        for name in sorted(names):
            with suppress(OSError, UnicodeEncodeError):
                whole = os.path.normpath(f"{path}/{name}")
                whole.encode()
                with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here), "rb") as file:
                    about = os.fstat(file.fileno())
                    if stat.S_ISREG(about.st_mode) and about.st_size <= most_bytes and len(contents) < _MOST_FILES:
                        contents[whole] = file.read()
                        most_bytes -= about.st_size
    return contents
