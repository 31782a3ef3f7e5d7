"""Merges on a Ray cluster of this machine, next to threads, and two nodes next to one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ramerge
from benchmarks import machine
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import ratios, seconds, spread, tell

_MOST = 1.15
_LEAST = 1.7
_BOUND = ("ties", "analyze")  # by processors, where the page cache is warm
_JOBS = ("ram+", *_BOUND)
_NODE = {"object_store_memory": 80_000_000, "memory": 4 << 30}
_ADDRESS = "127.0.0.2"  # Ray would replace 127.0.0.1


def measure(options: Options) -> dict[str, Any]:
    """Calls of the library in a process that is connected to a running cluster, in turns."""
    files, out = family(options.size, options.work), options.work / "merged"
    processors = sorted(os.sched_getaffinity(0))[:2]
    data: dict[str, Any] = {"size": options.size, "threads": {}, "one": {}, "small": {}, "two": {}}
    with _cluster([processors]) as connection, connection():
        _take(data, ("threads", "one"), files, out, options.runs)
    with _cluster([processors[:1]]) as connection, connection():
        _take(data, ("small",), files, out, options.runs)
    with _cluster([[each] for each in processors]) as connection, connection():
        _take(data, ("two",), files, out, options.runs)
    return data


def _take(data: dict[str, Any], kinds: tuple[str, ...], files: Family, out: Path, runs: int) -> None:
    for job in _JOBS:
        for kind in kinds:
            data[kind][job] = []
        for turn in range(-1, runs):
            for kind in kinds:
                machine.make_warm(files.weights)
                duration = seconds(_call(job, files, out, None if kind == "threads" else ramerge.Ray()))
                machine.remove(out)
                tell(f"cluster: {kind}, {job}, run {turn + 1}: {duration:.2f} s")
                data[kind][job] += [round(duration, 4)] if turn >= 0 else []  # the first one starts processes


def _call(job: str, files: Family, out: Path, ray: ramerge.Ray | None) -> Callable[[], object]:
    source = {"base": str(files.base), "agents": {name: str(folder) for name, folder in files.agents.items()}}
    if job == "analyze":
        return lambda: ramerge.analyze(source, options=ramerge.Options(cache=False, ray=ray))
    return lambda: ramerge.merge({"method": job, **source}, out, options=ramerge.Options(cache=False, ray=ray))


@contextmanager
def _cluster(nodes: list[list[int]]) -> Iterator[Callable[[], Any]]:
    """A cluster, each node on processors of its own; gives what connects to it."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    from ray.cluster_utils import Cluster

    from ramerge.core.engine.executors.ray import connection

    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # names of sockets may have few letters
        os.environ["RAY_TMPDIR"] = folder
        cluster = Cluster()
        try:
            for processors in nodes:
                os.sched_setaffinity(0, processors)  # which the node's processes inherit
                head = {"include_dashboard": False} if not cluster.head_node else {}
                cluster.add_node(num_cpus=len(processors), node_ip_address=_ADDRESS, **_NODE, **head)
            os.sched_setaffinity(0, everywhere)
            yield lambda: connection({"address": cluster.address})
        finally:
            os.sched_setaffinity(0, everywhere)
            cluster.shutdown()
            del os.environ["RAY_TMPDIR"]


def render(by_size: Mapping[str, RawResults]) -> str:
    """Times, and the bars."""
    rows, goals = [], []
    for size, results in by_size.items():
        data = results.data
        for job in _JOBS:
            cells = [spread(data[kind][job]).text() for kind in ("threads", "one", "small", "two")]
            rows.append((size, job, *cells))
            over = ratios(data["one"][job], data["threads"][job])
            goals.append(Bar(f"cluster.{size}.one.{job}", f"{size}, {job}: one node over threads", over, _MOST))
            if job in _BOUND:
                gain = ratios(data["small"][job], data["two"][job])
                text = f"{size}, {job}: one node of one processor over two"
                goals.append(Bar(f"cluster.{size}.two.{job}", text, gain, _LEAST, at_least=True))
    text = (
        "Seconds of calls of the library with warm caches, in a process that is connected to a running cluster; "
        "processes of nodes have started before. Each node runs on processors of its own. Threads and the first node "
        "have two."
    )
    head = ("size", "job", "threads", "one node", "one node, one processor", "two nodes, one processor each")
    return "\n\n".join([text, table(head, rows), bars(goals)])


SECTION = Section("cluster", "Ray", has_sizes=True, measure=measure, render=render, fewest=2)
