"""Straightness of a run: whether its task vectors lie on one line, and how evenly they move along it.

Measured for each tensor, each layer and the whole model: the first component's share of all task vectors' squared
lengths, and R^2 of the straight line through the coordinates over the steps (see `relex`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ramerge import Options, PlanError, plan
from ramerge.core.planning.model import scope_of
from ramerge.sdk.commands import table
from ramerge.sdk.methods import Floats, Gram
from ramerge.sdk.passes import Passes, chosen_executor
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document
from ramerge.sdk.text import dumped
from ramerge.soups.relex import STRAIGHT, Line, share_phrase, shares_of
from ramerge.soups.steps import steps_of

_MOST_ROWS = 60


@dataclass(frozen=True)
class Straightness:
    """The straightness of a part of a model: a tensor, a layer, or the whole.

    Attributes:
        length: the length of the last checkpoint's task vector.
        share: the share of all task vectors' squared lengths in each tensor's first component.
        fit: R^2 of the straight lines through the coordinates, weighted by the first components' squares.
        coordinates: each checkpoint's distance along the line, relative to the last checkpoint's: the root of the
            summed squares in the first components, with the sign of most of them.
    """

    length: float
    share: float
    fit: float
    coordinates: tuple[float, ...]


@dataclass(frozen=True)
class RunStraightness:
    """The straightness of a run, for the model and its layers.

    Attributes:
        layers: by name, in the model's order; tensors outside of layers by their own names.
        tensors: the tensors that moved, by name.
        shares: for each checkpoint, the share of its squared task vector in each tensor's first component.
    """

    steps: tuple[float, ...]
    model: Straightness
    layers: Mapping[str, Straightness]
    tensors: Mapping[str, Straightness]
    shares: tuple[float, ...]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the straightness of a run as `ramerge soup --analyze --json` prints it."""
        return dumped(asdict(self))


def straightness(recipe: Document, options: Options, listen: Listener) -> RunStraightness:
    """Measure a run's straightness, in one read of its checkpoints."""
    merge_plan = plan(recipe, options=options)
    if merge_plan.problems:
        raise PlanError(merge_plan.details.findings.problems)
    details = merge_plan.details
    with (
        chosen_executor(options.ray, details.resources.workers, details.resources.memory_of) as executor,
        closing(Passes(details, executor, listen)) as passes,
    ):
        passes.count()
        grams = {part: result for (statistic, part), result in passes.results.items() if statistic == Gram("tensor")}
    names = [tensor.part("tensor") for tensor in details.tensors if tensor.merged]
    products = {name: grams[name] for name in dict.fromkeys(names) if np.trace(grams[name]) > 0}
    steps = steps_of(details.parameters, tuple(details.inputs.agents))
    parts = list(products.values())
    layers: dict[str, dict[str, Floats]] = {}
    for name, matrix in products.items():
        layers.setdefault(scope_of(name, "layer"), {})[name] = matrix
    return RunStraightness(
        steps=steps,
        model=_combined_straightness(parts, steps),
        layers={name: _combined_straightness(list(each.values()), steps) for name, each in layers.items()},
        tensors={name: _combined_straightness([matrix], steps) for name, matrix in products.items()},
        shares=tuple(shares_of(parts, [Line.from_products(part, steps) for part in parts], len(steps))),
        warnings=merge_plan.warnings,
    )


def _combined_straightness(products: Sequence[Floats], steps: Sequence[float]) -> Straightness:
    """Compute the straightness of tensors from the scalar products of their task vectors."""
    if not products:
        return Straightness(0.0, 1.0, 1.0, (0.0,) * len(steps))
    lines = [Line.from_products(matrix, steps) for matrix in products]
    inside = [line.share * float(np.trace(matrix)) for line, matrix in zip(lines, products, strict=True)]
    total = sum(float(np.trace(matrix)) for matrix in products)
    last = max(range(len(steps)), key=lambda place: steps[place])
    along = sum(
        (weight * np.sign(line.direction) * line.direction**2 for line, weight in zip(lines, inside, strict=True)),
        np.zeros(len(steps)),
    )
    coordinates = np.sign(along) * np.sqrt(np.abs(along))
    length = float(np.sqrt(sum(matrix[last, last] for matrix in products)))
    return Straightness(
        length=length,
        share=sum(inside) / total,
        fit=sum(line.fit * weight for line, weight in zip(lines, inside, strict=True)) / sum(inside),
        coordinates=tuple((coordinates / (abs(coordinates[last]) or 1.0)).tolist()),
    )


def judgment(result: RunStraightness) -> str:
    """Return a sentence on what a run's straightness means for a prediction."""
    doubtful = "the run is not straight, so a checkpoint that relex predicts may be far from it"
    least = min(zip(result.shares, result.steps, strict=True))
    if least[0] < STRAIGHT:
        return f"{share_phrase(*least)}: {doubtful}"
    if len({round(each, _DIGITS) for each in result.model.coordinates}) < _FEWEST:
        return f"whether the run is straight can be told from {_FEWEST} different checkpoints on"
    share, fit = result.model.share, result.model.fit
    numbers = f"the first component holds {share:.1%} of the run, and R^2 of its line over the steps is {fit:.3f}"
    if share >= _TOGETHER and fit >= _EVEN:
        return f"{numbers}: the run is straight, as the runs are for which relex was published"
    return f"{numbers}: {doubtful}"


# The first component of a random walk holds 84% of 3 checkpoints, and 81% (8 / pi^2) of many; R^2 is 0.958 and more.
_TOGETHER, _EVEN = 0.9, 0.95
# With fewer checkpoints, or places on the line, every run is straight.
_FEWEST, _DIGITS = 3, 6


def lines_of(result: RunStraightness) -> list[str]:
    """Return the straightness of a run as lines for the terminal: the model and its layers."""
    rows = [
        ["whole model", *_figures_of(result.model)],
        *([name, *_figures_of(each)] for name, each in result.layers.items()),
    ]
    each = zip(result.steps, result.model.coordinates, result.shares, strict=True)
    steps = [[f"{step:g}", f"{at:.3f}", f"{share:.1%}"] for step, at, share in each]
    more = [f"and {len(rows) - _MOST_ROWS} more: --json has all"] if len(rows) > _MOST_ROWS else []
    return [
        *table(["part", "first component", "R^2", "length"], rows[:_MOST_ROWS]),
        *more,
        *table(["step", "on the line", "straight"], steps),
        judgment(result),
    ]


def _figures_of(part: Straightness) -> list[str]:
    return [f"{part.share:.1%}", f"{part.fit:.3f}", f"{part.length:.4g}"]


def rows_of(result: RunStraightness) -> list[dict[str, Any]]:
    """Return rows of the straightness of each layer, for figures."""
    return [
        {"part": name, "place": place, "share": each.share, "fit": each.fit, "length": each.length}
        for place, (name, each) in enumerate(result.layers.items())
    ]
