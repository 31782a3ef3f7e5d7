"""A command in a process of its own, forked from this one that has imported everything, with one fault in it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SHIM = Path(__file__).with_name("shim.c")
_LIBRARY = "RAMERGE_FAULTS_SHIM"
_SECONDS = 120
_NEVER = -1
_NONE, _FAIL, _SHORT, _LATE = range(4)
_ACTS = {
    "EIO": (_FAIL, errno.EIO),
    "ENOSPC": (_FAIL, errno.ENOSPC),
    "ESTALE": (_FAIL, errno.ESTALE),
    "EIO, though done": (_LATE, errno.EIO),
    "short": (_SHORT, 0),
    "SIGKILL": (_NONE, signal.SIGKILL),
    "SIGTERM": (_NONE, signal.SIGTERM),
    "SIGINT": (_NONE, signal.SIGINT),
}
KINDS = tuple(_ACTS)


@dataclass(frozen=True)
class Fault:
    """What happens at the `place`-th call on files, counted from 0.

    `for_good`: at all later ones too. A full disk, and what is for good, concerns calls that write, and counts these.
    """

    kind: str = "EIO"
    place: int = _NEVER
    for_good: bool = False
    exchange: bool = True

    def __str__(self) -> str:
        where = "from" if self.for_good else "at"
        return f"{self.kind} {where} call {self.place}{'' if self.exchange else ' without exchange'}"


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code, or minus the signal's number; what it said; the calls that it made."""

    code: int
    said: str
    calls: int


def missing() -> str | None:
    """Why no fault can be made here."""
    if sys.platform != "linux":
        return "faults need Linux"
    return None if shutil.which("cc") else "faults need a C compiler, cc"


def load() -> ctypes.CDLL:
    """The shim; compiles it and restarts this program with it in front of the C library, if it is not there yet."""
    if _LIBRARY not in os.environ:
        library = Path(tempfile.mkdtemp(prefix="ramerge-shim-")) / "shim.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
        more = {_LIBRARY: str(library), "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **more})
    shim = ctypes.CDLL(os.environ[_LIBRARY])
    shim.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, *[ctypes.c_int] * 4]
    shim.fault_seen.restype = ctypes.c_long
    shutil.rmtree(Path(os.environ[_LIBRARY]).parent)  # it is mapped; and so is that of processes forked from here
    return shim


def run(shim: ctypes.CDLL, folder: Path, arguments: Sequence[str], fault: Fault, log: Path) -> Ending:
    """Run `ramerge` with a fault in its calls on files under `folder`."""
    child = os.fork()
    if not child:
        _be_command(shim, folder, arguments, fault, log)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ending(code, log.read_text(errors="replace"), shim.fault_seen())


def _be_command(shim: ctypes.CDLL, folder: Path, arguments: Sequence[str], fault: Fault, log: Path) -> None:
    from ramerge.cli import main as cli
    from ramerge.core.foundation.errors import StoppedError

    code = 99
    try:
        StoppedError.finished.clear()
        signal.alarm(_SECONDS)  # a hang ends by SIGALRM
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["ramerge", *arguments]
        effect, number = _ACTS[fault.kind]
        shim.fault_arm(os.fsencode(folder), fault.place, effect, number, fault.for_good, not fault.exchange)
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 98
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
