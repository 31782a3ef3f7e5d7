"""Scored samples of each model, task by task, whatever scored them: the content of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.scoring import intervals

NO_REQUEST = "not asked"
"""Marks the failure of a sample whose request was not sent, because requests before it failed."""

TaskName = tuple[str, str]
"""A benchmark, or a task's package, and the subset or task."""


@dataclass(frozen=True)
class Samples:
    """The scored samples of one model in one task.

    Attributes:
        keys: the keys of the items, sorted.
        metrics: by name, an array of (samples, 2): numerators and denominators in the order of the keys. The first
            metric stands for the task.
        failures: for samples without a usable answer, the reason, by key.
        cut: the number of answers that ended at the limit of tokens.
        item_count: the number of items that the log should have.
        tokens: the number of tokens that the model wrote in all samples.
    """

    keys: tuple[str, ...]
    metrics: Mapping[str, NDArray[np.float64]]
    failures: Mapping[str, str] = field(default_factory=dict)
    cut: int = 0
    item_count: int = 0
    tokens: int = 0

    def value(self, metric: str) -> float | None:
        """Return the value of a metric over the samples in per cent; None if samples failed, lack it, or have no weight
        in it.

        A failed sample has no answer, so neither counting it as 0 nor leaving it out would give the model's score.
        """
        ratio = intervals.ratio(self.metrics[metric]) if metric in self.metrics and not self.failures else None
        return None if ratio is None else 100 * ratio

    @property
    def failure(self) -> str:
        """The number of failed samples, with the reason of one; empty if none failed."""
        if not self.failures:
            return ""
        reason = min(self.failures.values(), key=lambda text: NO_REQUEST in text)
        return f"{len(self.failures):,} of {self.item_count:,} samples failed: {reason}"

    @property
    def main(self) -> str:
        """The main metric of the task: the first; empty if no sample was scored."""
        return next(iter(self.metrics), "")


@dataclass(frozen=True)
class Model:
    """The scored samples of one model, by task.

    Attributes:
        model: folder or hub id; None if only the name of a served model is known.
        record: the `ramerge.json` of a merge by ramerge.
        settings: each task's parameters and generation settings.
    """

    name: str
    model: str | None
    record: Mapping[str, Any] | None
    tasks: Mapping[TaskName, Samples]
    settings: Mapping[TaskName, Mapping[str, Any]] = field(default_factory=dict)
