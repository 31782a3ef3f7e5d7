"""A process's signals and its standard streams. Imports nothing that takes time, because a signal may come at once."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself takes longer to import than all that is imported here
    from collections.abc import Callable
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that ask a process to end."""


def handle(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Let `handler` take signals that ask the process to end, but for those that whoever started it has ignored.

    Those are SIGHUP under `nohup`, and SIGINT in the background of a script.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def ignore() -> None:
    """Let no signal interrupt what is coming; so is cleaning up after the first."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def stopped(number: int, kept: str) -> str:
    """The words for a process that a signal has ended."""
    return f"error: stopped by {signal.Signals(number).name}; {kept}"


def fill_streams() -> None:
    """Open the standard streams that are closed, to nowhere.

    The next file that is opened would get the number of a closed one, and what a library prints would go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115
