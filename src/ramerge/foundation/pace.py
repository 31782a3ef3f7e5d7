"""How fast something goes, once that can be told."""

from __future__ import annotations

import time

# What a first block, a cold cache or a first burst of answers makes of a shorter time says nothing of the rest.
_LEAST_SECONDS = 3.0


class Pace:
    """Rate and time left of what is counted, from now on."""

    def __init__(self, done: int) -> None:
        """`done`: what is done already."""
        self._began = time.monotonic()
        self._before = done

    def rate(self, done: int) -> float | None:
        """How much is done in a second; None as long as that would be a guess."""
        seconds = time.monotonic() - self._began
        return (done - self._before) / seconds if seconds >= _LEAST_SECONDS and done > self._before else None

    def left(self, done: int, total: int) -> str:
        """`40 s left`, in the unit that suits; empty where nothing is left, or nobody can tell."""
        rate = self.rate(done)
        if rate is None or done >= total:
            return ""
        seconds = (total - done) / rate
        for size, unit in ((3600, "h"), (60, "min")):
            if seconds >= 2 * size:
                return f"{seconds / size:.0f} {unit} left"
        return f"{seconds:.0f} s left"
