"""A Ray cluster of two nodes on this machine, bound to the loopback."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.engine.execute import execute
from ramerge.engine.executors.executor import Elsewhere, Executor, bare
from ramerge.engine.executors.ray import RayExecutor
from ramerge.foundation.events import Listener, silence

ADDRESS = "127.0.0.2"  # Ray would replace 127.0.0.1 by an address that others can reach
NODE = {"num_cpus": 1, "memory": 2 << 30, "object_store_memory": 80_000_000, "node_ip_address": ADDRESS}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """The cluster. What Ray says is not shown, and nothing is sent to its makers."""
    pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_TQDM_PATCH_PRINT"] = "0"  # else Ray replaces print in this process, for all tests that follow
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    # not in the test's own folder: names of sockets may have few letters
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        before = os.environ.get("RAY_TMPDIR")
        os.environ["RAY_TMPDIR"] = folder
        cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            cluster.add_node(**NODE)
            yield cluster
        finally:
            cluster.shutdown()
            if before is None:
                del os.environ["RAY_TMPDIR"]
            else:
                os.environ["RAY_TMPDIR"] = before


def second_of(cluster: Any) -> Any:
    """A node that is not the head; added if there is none."""
    return next(iter(cluster.worker_nodes), None) or cluster.add_node(**NODE)


class Slowly:
    """An executor that takes its time, so that it can be met in the middle.

    Args:
        executor: what does the work.
        seconds: added for each block.
        seen: a folder that gets an empty file NODE.PID for each process that works, if it is there.
    """

    def __init__(self, executor: Executor, seconds: float, seen: Path) -> None:
        self._executor = executor
        self._seconds, self._seen = seconds, seen

    def map(self, worker: Any, work: Any, blocks: Any, elsewhere: Elsewhere = bare) -> Any:
        seconds, seen = self._seconds, self._seen

        def slowly(own: Any, block: Any) -> Any:
            import ray

            if seen.is_dir():
                (seen / f"{ray.get_runtime_context().get_node_id()}.{os.getpid()}").touch()
            time.sleep(seconds)
            return work(own, block)

        return self._executor.map(worker, slowly, blocks, elsewhere)


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
    plan = ramerge.plan(source, out, cache=False, **more)
    plan = replace(plan, resources=replace(plan.resources, block_elements=block))
    made: Executor = RayExecutor(ray, plan.resources.workers, 2, plan.resources.memory_of)
    execute(plan, Slowly(made, seconds, Path(out).parent / "nodes") if seconds else made, listen)
