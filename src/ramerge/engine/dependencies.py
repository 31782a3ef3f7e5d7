"""All that the output of a plan depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ramerge.engine import fingerprint
from ramerge.engine.journal import left_in
from ramerge.output.build import hidden_folder_of
from ramerge.output.targets import OutputTarget
from ramerge.planning.cached_counts import fingerprint as values_of
from ramerge.planning.model import MergePlan
from ramerge.storage.location import Location


def stopped_at(out: OutputTarget) -> Mapping[str, str]:
    """The fingerprint of an interrupted run that has left work alongside an output; empty if there is none."""
    return left_in(hidden_folder_of(out))


def goes_on(plan: MergePlan, stopped: Mapping[str, str]) -> bool:
    """Whether a plan would resume the work of a run with this fingerprint."""
    return all(stopped.get(name) == value for name, value in fingerprint_of(plan).items())


def fingerprint_of(plan: MergePlan) -> dict[str, str]:
    """The fingerprint of a plan."""
    cached = sorted(repr(key) for key in plan.remembered)
    return {
        **fingerprint.versions(),
        **dict(_recipe(plan)),
        **fingerprint.files(plan.files),
        "the size of blocks (--threads, --max-memory)": f"{plan.resources.block_elements}, {plan.resources.run_bytes}",
        "cached counts (--no-cache)": _digest(cached),
        "what is read and written": _digest(list(_work(plan))),
    }


def _recipe(plan: MergePlan) -> Iterator[tuple[str, str]]:
    for point in plan.points:
        of = f" of {point.name}" if point.name else " of the recipe"
        values = point.recipe.model_dump(mode="json")
        for key, value in _flat(values):
            yield f"{key}{of}", repr(value)
        yield f"parameters in effect{of}", repr([parameters.in_effect() for parameters in point.parameters])


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, values


def _work(plan: MergePlan) -> Iterator[object]:
    @cache
    def named(path: Location) -> str:
        return str(path.resolve())

    for tensor in plan.tensors:
        yield values_of(tensor, named)
    yield from ((shard.name, shard.header, shard.file_bytes) for shard in plan.shards)
    yield plan.rounds, plan.predicted, sorted(plan.companions), plan.below is not None


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()
