"""The executor that a user has chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ramerge.engine.executors.executor import Executor
from ramerge.engine.executors.threads import ThreadExecutor
from ramerge.foundation.machine import processors


@contextmanager
def chosen_executor(
    kind: str, workers: int, memory: Callable[[int], int], ray_init: Mapping[str, Any] | None
) -> Iterator[Executor]:
    """What works on blocks. With ranks, that is threads in each of them.

    Args:
        kind: see `engine.ranks.Executors`.
        workers: threads of a process on a machine like this one.
        memory: bytes that a process with so many of them takes.
        ray_init: keywords of `ray.init`.

    Raises:
        RecipeError: Ray is not installed, or does not take these keywords.
        RayError: no cluster can be reached.
    """
    if kind != "ray":
        yield ThreadExecutor(workers)
        return
    from ramerge.engine.executors.ray import RayExecutor, connected

    with connected(ray_init or {}) as ray:
        yield RayExecutor(ray, workers, processors(), memory)
