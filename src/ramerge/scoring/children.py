"""Starts processes that end with this one, together with all that they have started.

Ctrl-C is for this process, which then ends them. So each leads its own session, and ignores SIGINT until its own
program handles it: a SIGINT before the session exists, or during imports, would be shown as an error of that program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from ramerge.core.foundation.signals import held

_SECONDS_TO_STOP = 20.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def start(
    command: Sequence[str],
    *,
    stdin: int,
    output: IO[bytes],
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one.

    Args:
        command: the program and its arguments.
        stdin: as for `subprocess.Popen`.
        output: receives all that the process prints.
        pass_fds: descriptors that stay open in the process.
        environment: variables for the process, unless they are set in this one.
    """
    die_with_parent = dies_with_parent()

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if die_with_parent is not None:
            die_with_parent()

    process = None
    try:
        with held():
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
                start_new_session=True,
                # threads that wait by spinning slow a CPU down
                env={"OMP_WAIT_POLICY": "passive", **(environment or {}), **os.environ},
                preexec_fn=prepare if sys.platform != "win32" else None,
            )
    except BaseException:  # a signal that came meanwhile
        if process is not None:
            stop(process)
        raise
    return process


def dies_with_parent() -> Callable[[], object] | None:
    """Return a function to call in a new process so that it ends when this one is killed; looked up before the fork."""
    if sys.platform != "linux":
        return None
    return partial(ctypes.CDLL(None).prctl, _DIE_WITH_PARENT, signal.SIGTERM)


def _end_process(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Ask a process and its whole group to end, or kill them; without process groups, only the process."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        elif kill:
            process.kill()
        else:
            process.terminate()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own session, and everything that it started."""
    for kill in (False, True):
        _end_process(process, kill=kill)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_STOP)
            break
    _end_process(process, kill=True)  # workers that outlived their leader
