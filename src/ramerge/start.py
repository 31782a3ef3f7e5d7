"""Where the process begins: with nothing imported that takes time, and nothing begun that could be lost.

Until `cli` takes over, a signal ends the process at once and in the words of later.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself takes longer to import than all that is imported here
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> NoReturn:
    """Entry point of the console script and of `python -m ramerge`."""
    handle(_end)
    from ramerge.cli import main as run

    run()


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


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # no exception: it would go through whatever is being imported
    try:
        os.write(2, f"{stopped(number, 'nothing was kept')}\n".encode())
    finally:
        os._exit(128 + number)
