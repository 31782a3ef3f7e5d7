"""How long solving for whole matrices takes: the work that methods state, over what this machine does in a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from ramerge.core.foundation.blas import one_blas_thread
from ramerge.core.foundation.machine import processors
from ramerge.core.methods.base import Work
from ramerge.core.planning.model import TensorPlan
from ramerge.core.recipe.points import Point

_SIDE = 512  # large enough that products reach their speed, small enough for a plan
# Larger matrices are decomposed this much faster than those of `_SIDE`, by the cube of their sides.
_LARGER = 1.4


@dataclass(frozen=True)
class _Speed:
    """Speed of a thread while as many work as will: operations of products, cubes of sides decomposed."""

    products: float
    decompositions: float

    def seconds(self, work: Work) -> float:
        return work.products / self.products + work.decompositions / self.decompositions


def seconds(points: Sequence[Point], tensors: Sequence[TensorPlan], agents: int, workers: int) -> float | None:
    """About the time that solving takes, without reading and writing; None if nothing is solved."""
    works = [
        point.method.work(tensor.layer, point.parameters[tensor.rule], agents)
        for tensor in tensors
        if tensor.merged and tensor.unit > 1
        for point in points
    ]
    if not any(work.products for work in works):
        return None
    side_by_side = min(workers, processors())
    speed = _speed(side_by_side)
    each = [speed.seconds(work) for work in works]
    return max(sum(each) / side_by_side, *each)


@cache
def _speed(threads: int) -> _Speed:
    """Measures a product and a decomposition, in so many threads at a time, which share caches and clocks."""
    matrix = np.random.default_rng(0).standard_normal((_SIDE, _SIDE))
    symmetric = matrix @ matrix.T
    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        product = _fastest(pool, threads, lambda: matrix @ symmetric)
        decomposition = _fastest(pool, threads, lambda: np.linalg.eigh(symmetric))
    return _Speed(2 * _SIDE**3 / product, _LARGER * _SIDE**3 / decomposition)


def _fastest(pool: ThreadPoolExecutor, threads: int, action: Callable[[], object]) -> float:
    """The seconds of an action in several threads; the first of three rounds wakes them."""

    def timed(_number: int) -> float:
        began = time.perf_counter()
        action()
        return time.perf_counter() - began

    return min(max(pool.map(timed, range(threads))) for _ in range(3))
