"""Counts from earlier reads of the same files, stored in the user's cache folder.

Integers are stored for each tensor; the counts of all scopes are sums of them. The key is a digest of everything that
they depend on: each tensor's dtype, shape and place in its file, from the header, and each file's path, size, inode,
times and a sample of its pages, because a write through a memory map may leave the times unchanged. If a file was
written less than two seconds ago, a further write might not change its times, so counts of such files are not stored.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation import store
from ramerge.core.methods.base import Statistic
from ramerge.core.planning.model import TensorPlan
from ramerge.core.recipe.points import Point
from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.tensor import Tensor

_KIND = "counts"
SETTLED_SECONDS = 2.0

_Totals = NDArray[np.int64]


def digest_of(
    tensors: Sequence[TensorPlan], files: Mapping[Location, Identity], points: Sequence[Point]
) -> bytes | None:
    """A digest of everything that the counts of these tensors depend on; None if no statistic of these points can be
    cached, or if a file was written too recently.
    """
    if not _rules_by_cacheable_statistic(points):
        return None
    read: dict[Location, tuple[str, Identity]] = {}

    def identity_of(path: Location) -> tuple[str, Identity]:
        if path not in read:
            read[path] = str(path.resolve()), files[path]
        return read[path]

    digests: dict[int, str] = {}
    digest = hashlib.sha256(b"4")
    for tensor in _counted_tensors(tensors):
        for source in tensor.sources:
            digest.update(
                repr((tensor.name, source.is_importance, plain_values(source.tensor, identity_of, digests))).encode()
            )
    youngest = max((identity.latest_ns for _, identity in read.values()), default=0)
    return digest.digest() if time.time_ns() - youngest > SETTLED_SECONDS * 1e9 else None


def plain_values(value: object, identity_of: Callable[[Location], object], digests: dict[int, str]) -> object:
    """Convert a value to plain values that can be digested: tensors to digests, and files to their `identity_of`.

    `digests` collects the digest of each tensor by `id`, because tensors in a chain of deltas contain each other.
    """
    if isinstance(value, Tensor):
        chain: list[Tensor] = []
        below: Tensor | None = value
        while below is not None and id(below) not in digests:
            chain.append(below)
            below = below.origin.below
        for each in reversed(chain):
            plain = each.name, each.dtype, each.shape, plain_values(each.origin, identity_of, digests)
            digests[id(each)] = hashlib.sha256(repr(plain).encode()).hexdigest()
        return digests[id(value)]
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Location):
        return identity_of(value)
    if isinstance(value, tuple):
        return tuple([plain_values(item, identity_of, digests) for item in value])
    if is_dataclass(value):
        kind: Any = type(value)
        return (kind.__name__, *[plain_values(getattr(value, name), identity_of, digests) for name in _names_of(kind)])
    return value


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _counted_tensors(tensors: Iterable[TensorPlan]) -> list[TensorPlan]:
    """The tensors to count: the merged ones, sorted by name."""
    return sorted((tensor for tensor in tensors if tensor.merged), key=lambda tensor: tensor.name)


def read_cached_results(
    inputs: bytes | None, tensors: Sequence[TensorPlan], points: Sequence[Point]
) -> dict[tuple[Statistic, str], object]:
    """Results computed from counts in the user's cache, by statistic and part of the model."""
    if inputs is None:
        return {}
    agents = len(points[0].recipe.agents)
    counted_tensors = _counted_tensors(tensors)
    results: dict[tuple[Statistic, str], object] = {}
    for statistic, rules in _rules_by_cacheable_statistic(points).items():
        shape = len(counted_tensors), *statistic.blank(agents).shape
        payload = store.read(_KIND, _cache_key(inputs, statistic))
        if payload is not None and len(payload) == 8 * math.prod(shape):
            totals = np.frombuffer(payload, "<i8").reshape(shape).astype(np.int64)
            sums: dict[str, _Totals] = {}
            elements: Counter[str] = Counter()
            for tensor, total in zip(counted_tensors, totals, strict=True):
                if tensor.rule in rules:
                    part = tensor.part(statistic.scope)
                    sums[part] = sums[part] + total if part in sums else total
                    elements[part] += tensor.base.elements
            results |= {(statistic, part): statistic.finish(sums[part], elements[part], None) for part in sums}
    return results


def _rules_by_cacheable_statistic(points: Sequence[Point]) -> dict[Statistic, set[int]]:
    rules_by_statistic: dict[Statistic, set[int]] = {}
    for point in points:
        for rule_index in range(len(point.parameters)):
            for statistic in (*point.statistics(rule_index), point.reported(rule_index)):
                if statistic is not None and statistic.kept is not None:
                    rules_by_statistic.setdefault(statistic, set()).add(rule_index)
    return rules_by_statistic


def keep(inputs: bytes | None, tensors: Sequence[TensorPlan], totals: Mapping[tuple[Statistic, str], _Totals]) -> None:
    """Store the counts of all tensors in the user's cache. `totals`: counts by statistic and tensor name."""
    if inputs is None:
        return
    names = [tensor.name for tensor in _counted_tensors(tensors)]
    for statistic in dict.fromkeys(statistic for statistic, _ in totals):
        if all((statistic, name) in totals for name in names):
            rows = np.array([totals[statistic, name] for name in names], "<i8")
            store.write(_KIND, _cache_key(inputs, statistic), rows.tobytes())


def _cache_key(inputs: bytes, statistic: Statistic) -> bytes:
    return hashlib.sha256(inputs + str(statistic.kept).encode()).digest()
