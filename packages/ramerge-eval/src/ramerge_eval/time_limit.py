"""Time limits of checkers, which tasks call for each answer.

Checkers are other people's code fed with a model's output: pathological regular expressions, giant powers, deep
nesting. They run in the main thread under an alarm, so one answer cannot stop a run. Some checkers set their own alarms
(math_verify one for each step), which clear this alarm. So there is a second alarm, on processor time, which they do
not touch.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from ramerge.sdk.progress import StoppedError

T = TypeVar("T")
SECONDS = 10.0
_LOOK_SECONDS = 0.5


class CheckerStoppedError(BaseException):
    """The checker took too long. Not an `Exception`, which checkers catch for themselves."""


def call_within_limit(
    function: Callable[..., T], *arguments: object, seconds: float = SECONDS
) -> tuple[T | None, str | None]:
    """Run a checker under a time limit; return its result, or None and the reason. Its exceptions never propagate."""
    try:
        with _alarm(seconds):
            return function(*arguments), None
    except CheckerStoppedError:
        return None, f"the checker did not end within {seconds:g} seconds"
    except (KeyboardInterrupt, StoppedError):
        raise
    except BaseException as error:  # whatever a model's output makes a checker raise; some have time-outs of their own
        return None, f"{type(error).__name__}: {error}"[:500]


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield  # only the main thread gets alarms
        return

    until = time.monotonic() + seconds

    def stop(_number: int, _frame: FrameType | None) -> None:
        if time.monotonic() >= until:
            raise CheckerStoppedError

    clocks = {signal.SIGALRM: signal.ITIMER_REAL, signal.SIGPROF: signal.ITIMER_PROF}
    before = {number: signal.signal(number, stop) for number in clocks}
    for clock in clocks.values():
        signal.setitimer(clock, seconds, _LOOK_SECONDS)
    try:
        yield
    finally:
        for clock in clocks.values():
            signal.setitimer(clock, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
