"""Signals that wait until a folder or file is in its place, or until what was begun is taken away again.

Handlers of Python's own raise wherever the main thread happens to be, so also between two renames, and in the middle
of cleaning up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ramerge.foundation.process import SIGNALS


class Guard:
    """Lets one signal through to whoever handled it before, until `hold`; from then on they wait for `release`.

    The signal that gets through is followed by cleaning up, so those behind it wait too. Signals that nobody handles
    keep their effect, as does everything outside the main thread.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._held = False
        self._came: int | None = None

    def install(self) -> None:
        """Take the handlers' place."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._handle)

    def hold(self) -> None:
        """Let no signal through any more."""
        self._held = True

    def release(self) -> None:
        """Give the handlers their place back, and the signal that came meanwhile to its handler, which may raise."""
        self._held = False
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        if self._came is not None:
            signal.raise_signal(self._came)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._came = number
        else:
            self._held = True
            self._before[number](number, frame)


@contextmanager
def held() -> Iterator[None]:
    """Signals wait for the end of the block."""
    guard = Guard()
    try:
        guard.install()
        guard.hold()
        yield
    finally:
        guard.release()
