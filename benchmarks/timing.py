"""Processes and functions under a clock, and what to say of several runs."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.01
_BLOCK_BYTES = 512  # what Linux counts `ru_inblock` in


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 2, unit: str = "") -> str:
        """Median, and from least to most."""
        space = f" {unit}" if unit else ""
        return f"{self.median:,.{digits}f}{space} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Ratios of measurements that were taken in pairs."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def seconds(call: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@dataclass(frozen=True)
class ProcessResult:
    """A process that has ended well.

    Attributes:
        seconds: wall time from before it began to when it was waited for.
        user: seconds of processor time in the program.
        system: seconds of processor time in the kernel.
        disk_read: bytes that had to come from the disk, not from the page cache.
        anonymous: largest resident memory without mapped files (RssAnon + RssShmem), polled; None if not watched.
        peak: largest resident memory with mapped files (VmHWM), polled; None if not watched.
        output: its standard output.
    """

    seconds: float
    user: float
    system: float
    disk_read: int
    anonymous: int | None
    peak: int | None
    output: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, rounded to what means something."""
        values = {key: value for key, value in asdict(self).items() if key != "output" and value is not None}
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}


def run(command: Sequence[str], *, watch: bool = False, settings: Mapping[str, str] | None = None) -> ProcessResult:
    """Run a command to its end.

    Args:
        command: program and arguments.
        watch: poll its memory every 10 ms.
        settings: variables of its environment, besides those of this process.

    Raises:
        RuntimeError: it failed; with the end of what it wrote.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, env=environment() | dict(settings or {})
        )
        with _memory_watch(process.pid if watch else None) as memory:
            _, status, usage = os.wait4(process.pid, 0)
            duration = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{command_line(command)}: exit code {process.returncode}\n{errors.read()[-2000:]}")
        return ProcessResult(
            seconds=duration,
            user=usage.ru_utime,
            system=usage.ru_stime,
            disk_read=usage.ru_inblock * _BLOCK_BYTES,
            anonymous=memory.get("anonymous"),
            peak=memory.get("peak"),
            output=out.read(),
        )


def environment() -> dict[str, str]:
    """The environment without Python's own switches, such as the one that forbids to keep compiled modules."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def script(name: str) -> str:
    """A command of the environment that runs the benchmarks."""
    return str(Path(sys.executable).with_name(name))


def command_line(command: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join([Path(command[0]).name, *command[1:]])


def tell(text: str) -> None:
    """Say on standard error how far it is."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _memory_watch(process: int | None) -> Iterator[dict[str, int]]:
    """Peaks of a process's memory, filled until the block ends."""
    memory: dict[str, int] = {}
    if process is None:
        yield memory
        return
    end = threading.Event()
    thread = threading.Thread(target=_poll, args=(process, memory, end), daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        end.set()
        thread.join()


def _poll(process: int, memory: dict[str, int], end: threading.Event) -> None:
    status = Path(f"/proc/{process}/status")
    with suppress(OSError):
        while not end.is_set():
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if line.endswith(" kB"))
            sizes = {name: 1024 * int(value.split()[0]) for name, value in fields.items()}
            anonymous = sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
            memory["anonymous"] = max(memory.get("anonymous", 0), anonymous)
            memory["peak"] = max(memory.get("peak", 0), sizes.get("VmHWM", 0))
            end.wait(_POLL_SECONDS)
