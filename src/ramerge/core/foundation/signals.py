"""Delay signals until an output is in its place, or until an unfinished output is removed, and lose none.

Python runs signal handlers at any point of the main thread. A handler that raises could interrupt two renames that
belong together, or a clean-up. Where what it raises cannot be caught, Python drops it: in callbacks of weak references,
such as those of the locks of imports, and in `__del__`. So what is dropped is noted, and raised again where work looks
at how far it is.
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
    """Passes one signal on to its previous handler until `hold` is called. All later signals wait for `release`.

    A clean-up follows the first signal, so the signals after it wait too. Signals without a handler are not changed.
    Outside of the main thread nothing is changed.
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
                signal.signal(number, self._handle)

    def hold(self) -> None:
        """Let all signals wait from now on."""
        self._is_held = True

    def release(self) -> None:
        """Restore the handlers, and give them the signal that came in the meantime. The handler may raise."""
        self._is_held = False
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        if self._pending_signal is not None:
            signal.raise_signal(self._pending_signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._pending_signal = number
        else:
            self._is_held = True
            self._before[number](number, frame)


@contextmanager
def held() -> Iterator[None]:
    """Let signals wait until the `with` block ends."""
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
    """Raise the stop of a signal that arrived where Python drops exceptions. Call it in every long loop."""
    if _pending_signals:
        raise StoppedError(_pending_signals.pop())
