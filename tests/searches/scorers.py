"""Scores that need no model: they read the merge's record, and know what is best."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ramerge.scoring.scores import Scorer, Scores, Split, read_scores

ITEMS = 60


def fingerprint(model: Path) -> dict[str, Any]:
    """Method and parameters of a merged model."""
    return json.loads((model / "ramerge.json").read_text())


def quality(model: Path) -> float:
    """A share that is best for ram+ at r = 0.3."""
    record = fingerprint(model)
    r = record["parameters"].get("r", 0.0)
    return {"ram+": 0.8, "ram": 0.6, "ties": 0.5}.get(record["method"], 0.2) - abs(r - 0.3)


def answers(share: float, seed: int, items: int = ITEMS) -> list[float]:
    """Right and wrong answers: the same items are hard for all models."""
    return [float(hardness < share) for hardness in np.random.default_rng(seed).random(items)]


class Fake(Scorer):
    """A scorer in this process. `returns` makes what a function would return, or raises."""

    def __init__(
        self, returns: Callable[[Path, Split], Any], *, splits: bool = False, in_parts: bool = False, about: str = ""
    ) -> None:
        self.splits = splits
        self.in_parts = in_parts
        self.asked: list[tuple[dict[str, Any], Split, int]] = []
        self.is_closed = False
        self._returns = returns
        self._about = about

    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        returned = self._returns(model, split)
        place = len(self.asked)
        self.asked.append((fingerprint(model), split, 0))
        for part in returned if self.in_parts else [returned]:
            self.asked[place] = (*self.asked[place][:2], self.asked[place][2] + 1)
            yield read_scores(part)

    def about(self) -> Mapping[str, Any]:
        return {"function": self._about}

    def close(self) -> None:
        self.is_closed = True


def known(model: Path, split: Split) -> dict[str, list[float]]:
    """Two figures, on other items for the test."""
    seed = 10 if split == "validation" else 20
    share = quality(model)
    return {"one": answers(share, seed), "two": answers(share + 0.1, seed + 1)}
