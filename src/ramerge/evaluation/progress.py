"""The running score of a task, for whoever shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ramerge.evaluation.results import Line


@dataclass(frozen=True)
class EvaluationProgress:
    """A task begins, or one more of its samples is scored.

    Attributes:
        model, suite, task: names.
        done, total: samples of the task, those of earlier runs included.
        failed: samples whose requests failed.
        score: the task's main metric so far, a share of one; None before the first sample.
    """

    model: str
    suite: str
    task: str
    done: int
    total: int
    failed: int
    score: float | None


Listener = Callable[[EvaluationProgress], None]


class RunningScore:
    """Sums over the samples of a task."""

    def __init__(self, model: str, suite: str, task: str, metric: str, total: int, listen: Listener) -> None:
        """For a task whose main metric is `metric`, of `total` samples; nothing is counted yet."""
        self._named = (model, suite, task)
        self._metric = metric
        self._total = total
        self._listen = listen
        self._done = self._failed = 0
        self._numerator = self._denominator = 0.0

    def count(self, lines: Iterable[Line]) -> None:
        """Count samples."""
        for line in lines:
            numerator, denominator = line.metrics.get(self._metric, (0.0, 0.0))
            self._done += 1
            self._failed += line.failure is not None
            self._numerator += numerator
            self._denominator += denominator

    def tell(self) -> None:
        """Tell the listener how far the task is."""
        score = self._numerator / self._denominator if self._denominator else None
        self._listen(EvaluationProgress(*self._named, self._done, max(self._total, self._done), self._failed, score))
