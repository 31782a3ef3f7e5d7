"""The resources that this process may use and has used. Imports no library that fails under low limits."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

from ramerge.core.foundation.errors import PlanError
from ramerge.core.foundation.systems import address_space, machine_memory, peak_resident

# Measured: a merge that compiles its kernels maps two thirds of this, and uses a fifth of the mapped memory.
_LEAST_BYTES = 1_250_000_000
# Stack and buffers of an OpenBLAS thread. NumPy and SciPy each start a thread for each processor.
_THREAD_BYTES = 100_000_000


def check_limits() -> None:
    """Raise if the address space is so limited (`ulimit -v`) that numba, LLVM or OpenBLAS would hang or abort.

    Under a higher limit, reduce the number of OpenBLAS threads to fit.
    """
    limit = address_space()
    if limit is None:
        return
    if limit < _LEAST_BYTES:
        raise PlanError(
            f"the address space is limited to {limit:,} bytes (ulimit -v), but the libraries reserve "
            f"{_LEAST_BYTES:,}; remove this limit, and limit the memory with --max-memory instead"
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(1 + (limit - _LEAST_BYTES) // _THREAD_BYTES))


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the memory that this process may use, in bytes: the machine's, or less in a container."""
    nbytes = machine_memory()
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            nbytes = min(nbytes, int(Path(limit).read_text()))
    return nbytes


@cache
def boot() -> str:
    """Return an identifier of the machine's current boot. Files that were written since the boot are not lost.

    On a system without boot ids, it differs for each process.
    """
    with suppress(OSError):
        return f"{platform.node()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return os.urandom(16).hex()


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes.

    On Linux, it is not read from `ru_maxrss`, which starts with the peak of the parent process.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return peak_resident()
