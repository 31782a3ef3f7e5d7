"""Processes that this one starts: they end with it, and with all that they have started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

_SECONDS_TO_STOP = 20.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def dies_with_parent() -> Callable[[], object] | None:
    """What a new process calls so that a kill of this one ends it; looked up before, not between fork and exec."""
    if sys.platform != "linux":
        return None
    return partial(ctypes.CDLL(None).prctl, _DIE_WITH_PARENT, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Ask a process that leads a group, and all of the group, to end, or kill them. Otherwise, only the process."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        elif kill:
            process.kill()
        else:
            process.terminate()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, and whatever it started."""
    for kill in (False, True):
        _end(process, kill=kill)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_STOP)
            break
    _end(process, kill=True)  # workers that outlived their leader
