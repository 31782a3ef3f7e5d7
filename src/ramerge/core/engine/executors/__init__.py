"""Ways to process the blocks of a pass. They know nothing of merging.

`chosen_executor` is here, for `api` and features.

executor     the protocols `Executor`, `Pass` and `Recorder`; puts blocks in runs of some size, for `engine.passes`
threads      threads of this process, and of each task of `ray`
ray          tasks on the nodes of a Ray cluster
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ramerge.core.engine.executors.executor import Executor
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.foundation.machine import processors
from ramerge.core.options import Ray


@contextmanager
def chosen_executor(ray: Ray | None, workers: int, memory: Callable[[int], int]) -> Iterator[Executor]:
    """The executor that the options ask for: threads of this process, or tasks on a Ray cluster.

    Args:
        ray: the cluster; None for the threads of this process.
        workers: threads of a process on a machine like this one.
        memory: bytes that a process with so many of them takes.

    Raises:
        RecipeError: Ray is not installed, or does not take these keywords.
        RayError: no cluster can be reached.
    """
    if ray is None:
        yield ThreadExecutor(workers)
        return
    from ramerge.core.engine.executors.ray import RayExecutor, connection

    address = {} if ray.address is None else {"address": ray.address}
    with connection({**address, **(ray.init or {})}) as cluster:
        yield RayExecutor(cluster, workers, processors(), memory)
