"""A Ray cluster of two nodes on this machine, bound to the loopback."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.executor import Executor
from ramerge.core.engine.executors.ray import RayExecutor
from ramerge.core.foundation.progress import Listener, silence
from tests.engine.executors.wrapped import Around
from tests.plans import planned

_TRIES = 3
ADDRESS = "127.0.0.2"  # Ray would replace 127.0.0.1 by an address that others can reach
NODE = {"num_cpus": 1, "memory": 2 << 30, "object_store_memory": 80_000_000, "node_ip_address": ADDRESS}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """The cluster. What Ray says is not shown, and nothing is sent to its makers."""
    pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_TQDM_PATCH_PRINT"] = "0"  # else Ray replaces print in this process, for all tests that follow
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    # not in the test's own folder: names of sockets may have few letters
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        cluster = _started(Cluster)
        try:
            yield cluster
        finally:
            cluster.shutdown()


def _started(make: Any) -> Any:
    """A head and a second node. Where the machine is busy, a node may not answer in the time that Ray gives it."""
    for left in reversed(range(_TRIES)):
        cluster = make()
        try:
            cluster.add_node(**NODE, include_dashboard=False)
            cluster.add_node(**NODE)
            return cluster
        except Exception:  # of many kinds: of processes, time and connections
            cluster.shutdown()
            if not left:
                raise
    raise AssertionError("not reached")


def second_of(cluster: Any) -> Any:
    """A node that is not the head; added if there is none."""
    return next(iter(cluster.worker_nodes), None) or cluster.add_node(**NODE)


@dataclass(frozen=True)
class Slowly:
    """Takes its time for each block, so that a merge can be met in the middle.

    Attributes:
        seconds: added for each block.
        seen: a folder that gets an empty file NODE.PID for each process that works, if it is there.
    """

    seconds: float
    seen: Path

    def __call__(self, process: Any, worker: Any, block: Any) -> Any:
        import ray

        if self.seen.is_dir():
            (self.seen / f"{ray.get_runtime_context().get_node_id()}.{os.getpid()}").touch()
        time.sleep(self.seconds)
        return process(worker, block)


def merge(
    ray: Any,
    source: dict,
    out: Path | str,
    listen: Listener = silence,
    *,
    block: int,
    seconds: float = 0.0,
    **more: Any,
) -> None:
    """Merge on the cluster, in blocks of so many elements, and so many seconds more for each."""
    plan = planned(source, out, cache=False, **more)
    plan = replace(plan, resources=replace(plan.resources, block_elements=block))
    made: Executor = RayExecutor(ray, plan.resources.workers, 2, plan.resources.memory_of)
    execute(plan, Around(made, Slowly(seconds, Path(out).parent / "nodes")) if seconds else made, listen)
