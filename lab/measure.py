"""Merges into memory, scored on held-out prompts, and what the task vectors look like."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch

import ramerge
from lab.model import Questions, Weights
from lab.rows import Row
from lab.store import pack

QuestionsByTask = Mapping[str, Questions]
"""The prompts of each task."""


def row_scores(
    recipe: Mapping[str, Any], row: Row, validation: QuestionsByTask, test: QuestionsByTask
) -> dict[str, Any]:
    """A row's scores: with defaults, and with the point that is best on the validation prompts .

    Equally good points: the first in the grid's order. A merge that fails has an error instead of scores.
    """
    start = time.process_time()
    try:
        points = list(merges(recipe, row))
    except ramerge.RamergeError as error:
        return {"error": str(error)}
    seconds = time.process_time() - start
    values: list[float] = []
    if len(points) > 1:
        values = [mean_right(weights, validation) for _, weights in points]
    choice = values.index(max(values)) if values else 0
    scores = {"default": test_bits(points[0][1], test), "best": test_bits(points[choice][1], test) if choice else None}
    return scores | {
        "seconds": round(seconds / len(points), 4),
        "took": round(time.process_time() - start, 2),
        "points": [point for point, _ in points],
        "validation": values,
        "chosen": choice,
    }


def merges(recipe: Mapping[str, Any], row: Row) -> Iterator[tuple[dict[str, Any], Weights]]:
    """The merged models of a row with the values of its grid, widened to float32; the defaults come first."""
    models: dict[str, Weights] = {}
    whole_recipe = {**recipe, "method": row.method, "parameters": dict(row.fixed)}
    vary = {f"parameters.{name}": list(values) for name, values in row.grid.items()}
    for tensor in ramerge.plan(whole_recipe, vary=vary, options=ramerge.Options(threads=1, cache=False)).tensors():
        models.setdefault(json.dumps(dict(tensor.point)), {})[tensor.name] = tensor.torch().float()
    for values, weights in zip(product(*row.grid.values()), models.values(), strict=True):
        yield dict(zip(row.grid, values, strict=True)), weights


def mean_right(weights: Weights, questions: QuestionsByTask) -> float:
    """The mean over tasks of the share of prompts that are answered exactly."""
    return float(sum(one.right(weights).double().mean().item() for one in questions.values()) / len(questions))


def test_bits(weights: Weights, test: QuestionsByTask) -> dict[str, str]:
    """Which prompts of each task are answered exactly, as `store.packed` writes it."""
    return {task: pack(questions.right(weights).numpy()) for task, questions in test.items()}


def geometry(base: Weights, agents: Mapping[str, Weights], epsilon: float = 1e-5) -> dict[str, Any]:
    """Where agents moved: densities, overlaps, lengths and angles of their task vectors.

    Returns:
        For each agent its density and `shared`, the shares of its moved elements that 0, 1, ... other agents moved too;
        its length and largest change. For pairs, cosines, and the share of elements moved by both that agree in sign.
    """
    taus = {name: torch.cat([(weights[key] - base[key]).flatten() for key in base]) for name, weights in agents.items()}
    masks = {name: tau.abs() > epsilon for name, tau in taus.items()}
    count = torch.stack(list(masks.values())).sum(0)
    names = list(agents)
    pairs = [(left, right) for place, left in enumerate(names) for right in names[place + 1 :]]
    both = {pair: masks[pair[0]] & masks[pair[1]] for pair in pairs}
    return {
        "density": {name: one.double().mean().item() for name, one in masks.items()},
        "shared": {
            name: (torch.bincount(count[one] - 1, minlength=len(names)).double() / max(1, int(one.sum()))).tolist()
            for name, one in masks.items()
        },
        "norm": {name: tau.double().norm().item() for name, tau in taus.items()},
        "largest": {name: tau.abs().max().item() for name, tau in taus.items()},
        "cosine": {
            f"{left} {right}": torch.nn.functional.cosine_similarity(
                taus[left].double(), taus[right].double(), 0
            ).item()
            for left, right in pairs
        },
        "agree": {
            f"{left} {right}": (taus[left] * taus[right] > 0)[both[left, right]].double().mean().item()
            for left, right in pairs
        },
    }
