"""The executor that a user has chosen, for a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ramerge.engine.executors.executor import Executor
from ramerge.engine.executors.threads import ThreadExecutor
from ramerge.foundation.machine import processors
from ramerge.planning.model import Plan


@contextmanager
def chosen_executor(kind: str, plan: Plan, ray_init: Mapping[str, Any] | None) -> Iterator[Executor]:
    """What works on the plan's blocks. With ranks, that is threads in each of them.

    Args:
        kind: see `engine.ranks.Executors`.
        plan: the plan.
        ray_init: keywords of `ray.init`.

    Raises:
        RecipeError: Ray is not installed, or does not take these keywords.
        RayError: no cluster can be reached.
    """
    resources = plan.resources
    if kind != "ray" or plan.problems:
        yield ThreadExecutor(resources.workers)
        return
    from ramerge.engine.executors.ray import RayExecutor, connected

    with connected(ray_init or {}) as ray:
        yield RayExecutor(ray, resources.workers, processors(), resources.memory_of)
