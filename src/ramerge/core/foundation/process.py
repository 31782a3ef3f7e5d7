"""Signals and standard streams of a process. Imports nothing slow, because a signal may arrive at once."""

from __future__ import annotations

import os
import signal
import sys

from ramerge.core.foundation.systems import STOPPING

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than all imports of this module
    from collections.abc import Callable
    from types import FrameType


def handle(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Install `handler` for the signals that end the process.

    Signals that the parent process ignores stay ignored, such as SIGHUP under `nohup`, and SIGINT for a background
    process of a script.
    """
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore further signals, so that they cannot interrupt the clean-up after the first signal."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def interruption(number: int, outcome: str) -> str:
    """Return the message of a process that a signal stopped. `outcome` names the complete outputs."""
    return f"error: stopped by {signal.Signals(number).name}; {outcome}"


def fill_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next opened file would get the number of a closed stream, and libraries would print into it. A closed
    standard output is opened only for reading, so that writing to it fails instead of losing the text.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            mode = os.O_RDONLY if name == "stdout" else os.O_RDWR
            os.open(os.devnull, mode)  # gets the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115 - a number
