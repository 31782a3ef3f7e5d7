"""Scored samples of each model, task by task, whatever scored them: what tables are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.scoring import intervals

NO_REQUEST = "not asked"
"""In the failure of a sample whose request was not sent, because those before it failed."""

TaskName = tuple[str, str]
"""A benchmark, or the package of a task, and the subset or task."""


@dataclass(frozen=True)
class Samples:
    """The scored samples of one model in one task.

    Attributes:
        keys: of the items, sorted.
        metrics: by name, an array of (samples, 2): numerators and denominators in the order of the keys. The first
            metric stands for the task.
        failures: of samples without a usable answer, by key: why there is none.
        cut: how many have an answer that ended at the limit of tokens.
        item_count: items that the log is for.
        tokens: written by the model, of all samples together.
    """

    keys: tuple[str, ...]
    metrics: Mapping[str, NDArray[np.float64]]
    failures: Mapping[str, str] = field(default_factory=dict)
    cut: int = 0
    item_count: int = 0
    tokens: int = 0

    def value(self, metric: str) -> float | None:
        """The value of a metric over the samples in per cent; None where samples failed, lack it, or none counts in it.

        A failed sample has no answer, so neither 0 nor leaving it out would be a score of the model.
        """
        ratio = intervals.ratio(self.metrics[metric]) if metric in self.metrics and not self.failures else None
        return None if ratio is None else 100 * ratio

    @property
    def failure(self) -> str:
        """The number of failed samples with the reason of one; empty where none failed."""
        if not self.failures:
            return ""
        reason = min(self.failures.values(), key=lambda text: NO_REQUEST in text)
        return f"{len(self.failures):,} of {self.item_count:,} samples failed: {reason}"

    @property
    def main(self) -> str:
        """The main metric of the task: the first; empty where no sample was scored."""
        return next(iter(self.metrics), "")


@dataclass(frozen=True)
class Model:
    """The scored samples of one model, by task.

    Attributes:
        model: folder or hub id; None where only the name of a served model is known.
        record: the `ramerge.json` of a merge made by ramerge.
        settings: of each task: its parameters and its generation.
    """

    name: str
    model: str | None
    record: Mapping[str, Any] | None
    tasks: Mapping[TaskName, Samples]
    settings: Mapping[TaskName, Mapping[str, Any]] = field(default_factory=dict)
