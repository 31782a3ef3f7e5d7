"""Ways to process the blocks of a pass, independent of merging.

`chosen_executor` is defined here, for `api` and features.

executor     the protocols `Executor`, `Pass` and `Recorder`; groups blocks into runs of a given size, for
             `engine.passes`
threads      runs a pass on threads of this process; used by each task of `ray`, too
ray          runs a pass as tasks on the nodes of a Ray cluster
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
    """Yield the executor that the options select: threads of this process, or tasks on a Ray cluster.

    Args:
        ray: the cluster; None for threads of this process.
        workers: the number of threads for a process that has a machine like this one to itself.
        memory: returns the bytes that a process with a given number of threads needs.

    Raises:
        RecipeError: Ray is not installed, or does not accept these keywords.
        RayError: no cluster can be reached.
    """
    if ray is None:
        yield ThreadExecutor(workers)
        return
    from ramerge.core.engine.executors.ray import RayExecutor, connection

    address = {} if ray.address is None else {"address": ray.address}
    with connection({**address, **(ray.init or {})}) as cluster:
        yield RayExecutor(cluster, workers, processors(), memory)
