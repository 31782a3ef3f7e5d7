"""Draws: features and a relation by seed, what came of them, and a table that counts them."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from ramerge.core.planning import cached_counts
from ramerge.core.tensors import identity
from tests.commands import REFUSALS
from tests.pairs.models import drawn_family
from tests.pairs.relations import RELATIONS, Side

MOST_REFUSED = 0.3
"""The share of a relation's draws that may be refused: of refusals little is learned."""


@dataclass(frozen=True)
class Draw:
    """A draw, and what came of it.

    Attributes:
        seed: what follows from it is everything below.
        relation: its name.
        features: their names.
        outcome: `held`, `refused` or `failed`.
        reason: what was refused, or how it failed.
    """

    seed: int
    relation: str
    method: str
    features: tuple[str, ...]
    outcome: str
    reason: str = ""

    @property
    def described(self) -> str:
        """The draw with the command that repeats it."""
        return (
            f"{self.outcome}: {self.relation}, {self.method} with {', '.join(self.features)}\n    {self.reason}\n"
            f"    python -m tests.pairs --draws 1 --seed {self.seed}"
        )


@dataclass
class Table:
    """Counts of draws by relation and outcome, and of those of each feature."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_feature: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, draw: Draw) -> None:
        """Count a draw."""
        self.counts[draw.relation, draw.outcome] += 1
        for name in draw.features:
            self.by_feature[name, draw.outcome] += 1

    @property
    def total(self) -> int:
        """How many draws there were."""
        return self.counts.total()

    @property
    def failed(self) -> int:
        """How many draws failed."""
        return sum(count for (_, outcome), count in self.counts.items() if outcome == "failed")

    @property
    def text(self) -> str:
        """A line for each relation and each feature."""
        return "\n".join([*_lines("relation", self.counts), "", *_lines("feature", self.by_feature)])

    @property
    def problems(self) -> list[str]:
        """Relations that failed, and relations and features of which too many draws were refused to show anything."""
        results = [f"{self.failed} of {self.total} draws failed"] if self.failed else []
        for counts in (self.counts, self.by_feature):
            for name in dict.fromkeys(name for name, _ in counts):
                drawn = sum(count for (other, _), count in counts.items() if other == name)
                if drawn >= 20 and counts[name, "refused"] > MOST_REFUSED * drawn:
                    results.append(
                        f"{name}: {counts[name, 'refused']} of {drawn} draws were refused, which shows little"
                    )
        return results


def _lines(title: str, counts: Counter[tuple[str, str]]) -> list[str]:
    names = sorted({name for name, _ in counts})
    width = max([len(title), *map(len, names)])
    outcomes = ("held", "refused", "failed")
    lines = [f"{title:<{width}} {'draws':>8} " + " ".join(f"{outcome:>8}" for outcome in outcomes)]
    for name in names:
        numbers = [counts[name, outcome] for outcome in outcomes]
        lines.append(f"{name:<{width}} {sum(numbers):>8,} " + " ".join(f"{number:>8,}" for number in numbers))
    return lines


def draws(seeds: Iterable[int], scratch: Path, only: str = "") -> Iterator[Draw]:
    """The draws of some seeds, each in a folder that is gone afterwards."""
    with (
        mock.patch.object(identity, "TICK_SECONDS", 0.0),  # merges read what was written just before
        mock.patch.object(cached_counts, "SETTLED_SECONDS", 0.0),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        for seed in seeds:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                draw = drawn(seed, Path(folder), only)
            if draw is not None:
                yield draw


def drawn(seed: int, folder: Path, only: str = "") -> Draw | None:
    """Build the models of a seed, and compare the sides of its relation; None if no relation of that name applies."""
    random = Random(seed)
    try:
        family = drawn_family(folder, random)
    except Exception as error:
        return Draw(seed, "models", "", (), "failed", "".join(traceback.format_exception(error))[-1500:])
    names = [name for name in RELATIONS if only in name]
    random.shuffle(names)
    for name in names:
        sides = RELATIONS[name](family)
        if sides is not None:
            outcome, reason = compared(sides)
            return Draw(seed, name, family.recipe["method"], tuple(family.features), outcome, reason)
    return None


def compared(sides: Mapping[str, Side]) -> tuple[str, str]:
    """The outcome of the sides: `held` and nothing, or `refused` or `failed` and the reason."""
    results: dict[str, Any] = {}
    refusals: dict[str, str] = {}
    for label, side in sides.items():
        try:
            results[label] = side()
        except REFUSALS as error:
            refusals[label] = f"{type(error).__name__}: {error}"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return "failed", f"{label}: {type(error).__name__} at {last.filename}:{last.lineno}: {error!s:.500}"
    if refusals and results:
        return "failed", f"{', '.join(results)}: done; refused by " + "; ".join(
            f"{k}: {v}" for k, v in refusals.items()
        )
    if refusals:
        return "refused", "; ".join(refusals.values())
    (first, expectation), *others = results.items()
    for label, results in others:
        if names := [name for name in {**expectation, **results} if expectation.get(name) != results.get(name)]:
            return (
                "failed",
                f"{first} and {label} differ in {', '.join(names)}{_difference(expectation, results, names[0])}",
            )
    return "held", ""


def _difference(expectation: Mapping[str, Any], results: Mapping[str, Any], name: str) -> str:
    left, right = expectation.get(name), results.get(name)
    if isinstance(left, tuple) and isinstance(right, tuple):
        if left[:2] != right[:2]:
            return f": {left[:2]} and {right[:2]}"
        size = sum(one != other for one, other in zip(left[2], right[2], strict=True))
        return f": {size} of {len(left[2])} bytes"
    return f": {left!r:.300} and {right!r:.300}"
