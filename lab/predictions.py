"""Predictions for new trainings of the real agents, written before these were scored, and what came of them.

They are those of lab/experiments/010-predictions-for-ties-and-core.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lab.claims import signed_text
from lab.smollm import Real
from lab.statistics import Estimate

CAME_TRUE, FAILURE, NO_SCORE = "came true", "**failed**", "not scored yet"
BEST_OTHER = "the best other merge"
BFLOAT16, FLOAT32 = "bfloat16", "float32"
SEEDS_BEFORE = 3
"""Seeds up to this one were known when the predictions were made."""


@dataclass(frozen=True)
class Expectation:
    """A range of a difference.

    Attributes:
        low, high: points between which it was expected.
        apart: which side of 0 the whole interval was expected on, below (-1) or above (1); 0 for neither.
    """

    low: float
    high: float
    apart: int = 0

    @property
    def range(self) -> str:
        """Human-readable."""
        side = {-1: ", interval below 0", 0: "", 1: ", interval above 0"}[self.apart]
        low, high = (f"{one:+g}" if one else "0" for one in (self.low, self.high))
        if self.high == math.inf:
            return f"above {low}"
        return (f"below {high}" if self.low == -math.inf else f"{low} to {high}") + side

    def verdict(self, value: float) -> str:
        """Whether a value without an interval came out as expected."""
        return CAME_TRUE if self.low <= value <= self.high else FAILURE

    def judge(self, estimate: Estimate | None) -> str:
        """Whether a difference came out as expected."""
        if estimate is None:
            return NO_SCORE
        has_sign = self.apart == 0 or (estimate.high < 0 if self.apart < 0 else estimate.low > 0)
        return self.verdict(estimate.value) if has_sign else FAILURE


@dataclass(frozen=True)
class Prediction:
    """The mean of one merge less that of another, on new trainings that have both.

    Attributes:
        first, second: names in lab/real/merges.json; the second may be `BEST_OTHER`.
        dtype: of agents and output.
        expectation: the range of the difference.
    """

    first: str
    second: str
    dtype: str
    expectation: Expectation

    def estimate(self, real: Real) -> Estimate | None:
        """The difference on the new trainings; None where no such training has both merges."""
        new = real.of_seeds([seed for seed in real.seeds if seed > SEEDS_BEFORE])
        names = [f"{one}, {self.dtype}" for one in (self.first, self.second)]
        if self.second == BEST_OTHER:
            others = [name for name in new.rewards if name.endswith(f", {self.dtype}") and name != names[0]]
            names[1:] = [max(others, key=lambda name: new.mean(name).value)] if others else names[1:]
        if not all(name in new.rewards for name in names) or not new.having(*names).seeds:
            return None
        return new.difference(*names)


PREDICTIONS = (
    Prediction("task_arithmetic", "ram+", BFLOAT16, Expectation(5, 9)),
    Prediction("ties", "ram+", BFLOAT16, Expectation(0, 4)),
    Prediction("ties", "task_arithmetic", BFLOAT16, Expectation(-7, -2, apart=-1)),
    Prediction("ties density=0.1", "ties", BFLOAT16, Expectation(-2, 0.5)),
    Prediction("ram+ shared=rms", "ties", BFLOAT16, Expectation(0, 4)),
    Prediction("ties", "ram+", FLOAT32, Expectation(-1, 3)),
    Prediction("ties", "sum x 0.8", FLOAT32, Expectation(-5, -1)),
    Prediction("ties density=0.1", "ties", FLOAT32, Expectation(-4, 0)),
    Prediction("core", "ram+", BFLOAT16, Expectation(2, 5, apart=1)),
    Prediction("core", "task_arithmetic", BFLOAT16, Expectation(-4, 0)),
    Prediction("core", "ram+ shared=rms", FLOAT32, Expectation(-2, 2)),
    Prediction("core+", "core", BFLOAT16, Expectation(-1, 1)),
    Prediction("core+", "core", FLOAT32, Expectation(-1, 1)),
    Prediction("task_arithmetic", BEST_OTHER, BFLOAT16, Expectation(0, math.inf)),
)


def rows(real: Real) -> Iterator[tuple[str, ...]]:
    """Each prediction, what was measured, and whether it came true."""
    for one in PREDICTIONS:
        estimate = one.estimate(real)
        text = "" if estimate is None else signed_text(estimate)
        second = one.second if one.second == BEST_OTHER else f"`{one.second}`"
        yield f"`{one.first}` minus {second}", one.dtype, one.expectation.range, text, one.expectation.judge(estimate)
