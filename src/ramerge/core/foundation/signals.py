"""Delays signals until an output is in its place, or until an unfinished output is removed, and loses none.

Python runs signal handlers at any point of the main thread. A handler that raises could interrupt two renames that
belong together, or a clean-up. Python drops exceptions in `__del__` and in callbacks of weak references, such as those
of import locks. So dropped exceptions are noted, and raised again where long work reports its progress.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ramerge.core.foundation.errors import StoppedError
from ramerge.core.foundation.systems import STOPPING

_pending_signals: list[int] = []


class Guard:
    """Passes the first signal to its previous handler, unless `hold` was called. Other signals wait for `release`.

    A clean-up follows the first signal, so later signals wait, too. Signals without a Python handler are not affected.
    Outside of the main thread, a guard does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._is_held = False
        self._pending_signal: int | None = None

    def install(self) -> None:
        """Replace the current handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOPPING:
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._handle_signal)

    def hold(self) -> None:
        """Delay all signals from now on."""
        self._is_held = True

    def release(self) -> None:
        """Restore the handlers, and raise the signal that arrived in the meantime. Its handler may raise."""
        self._is_held = False
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle_signal:
                signal.signal(number, handler)
        if self._pending_signal is not None:
            signal.raise_signal(self._pending_signal)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._pending_signal = number
        else:
            self._is_held = True
            self._before[number](number, frame)


@contextmanager
def held() -> Iterator[None]:
    """Delay signals until the `with` block ends."""
    guard = Guard()
    try:
        guard.install()
        guard.hold()
        yield
    finally:
        guard.release()


def note_dropped() -> None:
    """From now on, note each `StoppedError` that Python drops."""
    report = sys.unraisablehook

    def note(event: sys.UnraisableHookArgs) -> None:
        if isinstance(event.exc_value, StoppedError):
            _pending_signals.append(event.exc_value.number)
        else:
            report(event)

    sys.unraisablehook = note


def raise_dropped() -> None:
    """Raise a `StoppedError` that Python dropped. Call this in every long loop."""
    if _pending_signals:
        raise StoppedError(_pending_signals.pop())
