"""Signals while an event loop runs.

A handler of Python's own raises wherever the process happens to be; inside a callback of the loop the exception is
logged and forgotten. So the loop takes the signals, and what runs is cancelled in good order.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ramerge.foundation.errors import StoppedError
from ramerge.foundation.process import SIGNALS


@contextmanager
def stoppable() -> Iterator[None]:
    """Cancel the current task at a signal that somebody handles, and raise `StoppedError` then.

    Handlers of Python itself and of the system stay as they are, and outside the main thread nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = [
        number for number, handler in before.items() if callable(handler) and handler is not signal.default_int_handler
    ]
    came: list[int] = []

    def stop(number: int) -> None:
        if not came and task is not None:  # a second signal must not interrupt cleaning up
            task.cancel()
        came.append(number)

    for number in taken:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if came:
            raise StoppedError(came[0]) from None
        raise
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if came else before[number])
