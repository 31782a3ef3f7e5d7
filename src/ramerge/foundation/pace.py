"""The speed of long work, and the time that is left."""

from __future__ import annotations

import time

# A rate over a shorter time is misleading, because of the first block, a cold cache or a first burst of answers.
_LEAST_SECONDS = 3.0


class Pace:
    """Rate and time left of counted work, measured from now on."""

    def __init__(self, done: int) -> None:
        """`done`: the amount that is already done."""
        self._began = time.monotonic()
        self._before = done

    def rate(self, done: int) -> float | None:
        """The amount per second; None while it is too early to tell."""
        seconds = time.monotonic() - self._began
        return (done - self._before) / seconds if seconds >= _LEAST_SECONDS and done > self._before else None

    def left(self, done: int, total: int) -> str:
        """`40 s left`, in a suitable unit; empty if nothing is left or it is too early to tell."""
        rate = self.rate(done)
        if rate is None or done >= total:
            return ""
        seconds = (total - done) / rate
        for size, unit in ((3600, "h"), (60, "min")):
            if seconds >= 2 * size:
                return f"{seconds / size:.0f} {unit} left"
        return f"{seconds:.0f} s left"
