"""Fingerprints: everything that a run depends on, by human-readable names.

Two runs with equal fingerprints do the same work on the same blocks, and write the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from ramerge.core.engine.journal import left_in
from ramerge.core.foundation.version import __version__
from ramerge.core.output.lifecycle import output_dir
from ramerge.core.output.targets import OutputTarget
from ramerge.core.planning.cached_counts import plain_values
from ramerge.core.planning.model import MergePlan
from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import FileIdentity, Identity
from ramerge.core.tensors.identity import state_of


def versions() -> dict[str, str]:
    """Return the versions of ramerge and NumPy, which are part of every fingerprint."""
    return {"the version of ramerge or NumPy": f"{__version__}, {np.__version__}"}


def files(identities: Mapping[Location, Identity]) -> dict[str, str]:
    """Return the fingerprint of the input files as they were when opened.

    It includes inodes, but not devices, whose numbers may change after a restart.
    """
    inodes = {
        str(path.resolve()): f"; inode {each.inode} changed at {each.changed_ns}"
        for path, each in identities.items()
        if isinstance(each, FileIdentity)
    }
    return {path: state + inodes.get(path, "") for path, state in state_of(identities).items()}


def stopped_at(out: OutputTarget) -> Mapping[str, str]:
    """Return the fingerprint of an interrupted run that was writing to this output; empty if there is none."""
    return left_in(output_dir(out).work)


def would_resume(plan: MergePlan, interrupted_fingerprint: Mapping[str, str]) -> bool:
    """Whether a plan would resume the interrupted run that has this fingerprint."""
    return all(interrupted_fingerprint.get(name) == value for name, value in fingerprint_of(plan).items())


def fingerprint_of(plan: MergePlan) -> dict[str, str]:
    """Return the fingerprint of a run that carries out this plan."""
    recipe: dict[str, str] = {}
    for point in plan.points:
        of = f" of {point.name}" if point.name else " of the recipe"
        recipe |= {f"{key}{of}": repr(value) for key, value in _flat_items(point.recipe.model_dump(mode="json"))}
        recipe[f"parameters in effect{of}"] = repr([parameters.in_effect() for parameters in point.parameters])

    @cache
    def identity_of(path: Location) -> str:
        return str(path.resolve())

    digests: dict[int, str] = {}
    work = [
        *[plain_values(tensor, identity_of, digests) for tensor in plan.tensors],
        *[(shard.name, shard.header, shard.file_bytes) for shard in plan.shards],
        (plan.counts.rounds, sorted(plan.companions), plan.output.kind),
    ]
    resources = plan.resources
    return {
        **versions(),
        **recipe,
        **files(plan.inputs.files),
        "the size of blocks (--threads, --max-memory)": f"{resources.block_elements}, {resources.run_bytes}",
        "cached counts (--no-cache)": _digest_of_values(sorted(repr(key) for key in plan.counts.cached)),
        "what is read and written": _digest_of_values(work),
    }


def _flat_items(values: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _flat_items(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, values


def _digest_of_values(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()
