"""Everything that the work of a plan depends on, by a name for people.

Two runs whose facts are equal do the same work on the same blocks, and write the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from ramerge.checkpoint.identity import FileIdentity, Identity
from ramerge.checkpoint.storage.place import Place
from ramerge.foundation.version import __version__
from ramerge.planning.model import Plan
from ramerge.planning.remembered import facts as values_of

_HERE = "; inode "


def facts_of(plan: Plan, further: object = None) -> dict[str, str]:
    """The facts of a plan. `further` is what else is done with it."""
    known = sorted(repr(key) for key in plan.remembered)
    return {
        "the version of ramerge or NumPy": f"{__version__}, {np.__version__}",
        **dict(_recipe(plan)),
        **{f"{path}": _file(identity) for path, identity in plan.files.items()},
        "the size of blocks (--threads, --max-memory)": f"{plan.resources.block_elements}, {plan.resources.run_bytes}",
        "what is known of earlier reads (--no-cache)": _digest(known),
        "what is read and written": _digest(list(_work(plan)), further),
    }


def seen_elsewhere(facts: Mapping[str, str]) -> dict[str, str]:
    """What of the facts must be the same on all machines. A copy of a file has another inode there."""
    return {name: value.partition(_HERE)[0] for name, value in facts.items()}


def _file(identity: Identity) -> str:
    """A file: first what copies have in common (`is_same_elsewhere`). Its device has another number on each machine."""
    if not isinstance(identity, FileIdentity):
        return repr(asdict(identity))
    size_and_time = f"{identity.nbytes} bytes of {identity.modified_ns}"
    return f"{size_and_time}{_HERE}{identity.inode} changed at {identity.changed_ns}"


def _recipe(plan: Plan) -> Iterator[tuple[str, str]]:
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


def _work(plan: Plan) -> Iterator[object]:
    @cache
    def named(path: Place) -> str:
        return str(path.resolve())

    for tensor in plan.tensors:
        yield values_of(tensor, named)
    yield from ((shard.name, shard.header, shard.file_bytes) for shard in plan.shards)
    yield plan.rounds, plan.guessed, sorted(plan.companions), plan.below is not None


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()
