"""The machine that the numbers were taken on, and its page cache."""

from __future__ import annotations

import datetime
import fcntl
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import timing

_DROP = Path("/proc/sys/vm/drop_caches")
_LIBRARIES = ("ramerge", "numpy", "numba", "llvmlite", "pydantic")
_WRITTEN_BYTES = 1 << 30


def describe() -> dict[str, Any]:
    """Properties of the machine that stay the same from run to run."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def state(disk_write: float) -> dict[str, Any]:
    """State of the machine that changes: the day, the load, the disk."""
    return {
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 2),
        "disk_write": round(disk_write),
    }


def write_speed(work: Path) -> float:
    """Bytes a second of one write of a gigabyte with one synchronization at its end."""
    path, block = work / "write-speed.bin", os.urandom(1 << 24)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(_WRITTEN_BYTES // len(block)):
                file.write(block)
            os.fsync(file.fileno())

    duration = timing.seconds(write)
    path.unlink()
    return _WRITTEN_BYTES / duration


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Refuse to run next to other benchmarks: each would disturb the other's caches, outputs and times.

    Raises:
        SystemExit: others run in this folder.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"error: other benchmarks are running in {work}") from None
        yield


def cannot_drop_caches() -> str | None:
    """Why caches cannot be made cold here; None if they can."""
    return None if os.access(_DROP, os.W_OK) else f"no right to write {_DROP}"


def make_cold() -> None:
    """Write everything out and empty the page cache: `sync; echo 3 > /proc/sys/vm/drop_caches`."""
    os.sync()
    _DROP.write_text("3\n")


def cannot_hold_caches() -> str | None:
    """Why the page cache of a command cannot be held small here; None if it can."""
    return None if os.access(_cgroups()[0], os.W_OK) else f"no right to make a memory cgroup in {_cgroups()[0]}"


@contextmanager
def small_cache(limit: int) -> Iterator[list[str]]:
    """Prefix of a command that limits its memory and its page cache together to `limit` bytes."""
    parent, file = _cgroups()
    group = parent / f"ramerge-benchmarks-{os.getpid()}"
    group.mkdir()
    try:
        (group / file).write_text(str(limit))
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


def _cgroups() -> tuple[Path, str]:
    """Where memory cgroups lie, and the file with their limit: of version 1, or else of version 2."""
    first = Path("/sys/fs/cgroup/memory")
    return (first, "memory.limit_in_bytes") if first.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")


def make_warm(files: Iterable[Path]) -> None:
    """Write everything out and read files into the page cache."""
    os.sync()
    timing.run(["sh", "-c", 'cat "$@" > /dev/null', "sh", *map(str, files)])


def remove(path: Path) -> None:
    """Remove a file or folder if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
