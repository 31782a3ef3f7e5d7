"""Processes that this one starts: they end with it, and with all that they have started."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ramerge.foundation.systems import end_group

_SECONDS_TO_STOP = 20.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def dies_with_parent() -> Callable[[], object] | None:
    """What a new process calls so that a kill of this one ends it; looked up before, not between fork and exec."""
    if sys.platform != "linux":
        return None
    return partial(ctypes.CDLL(None).prctl, _DIE_WITH_PARENT, signal.SIGTERM)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, and whatever it started."""
    for kill in (False, True):
        end_group(process, kill=kill)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_STOP)
            break
    end_group(process, kill=True)  # workers that outlived their leader
