"""Runs a pass as multi-threaded tasks on the nodes of a Ray cluster.

A task is a series of consecutive runs of blocks that takes about a second. The pass is sent once to each node: it
describes files, but holds none of their contents. Results come back after their bytes are on the disk. So a task may
be lost at any time: another task repeats it, and writes the same bytes again.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
import zstandard

from ramerge.core.engine.executors.executor import NumberedRun, Pass, Processed, Recorder, Unrecorded
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.foundation.errors import PlanError, RamergeError, RayError, RecipeError
from ramerge.core.foundation.extras import install_command
from ramerge.core.foundation.signals import held
from ramerge.core.foundation.version import __version__

Block = TypeVar("Block")
Result = TypeVar("Result")

# More processors in a task would save memory, but wait longer on nodes that do other work, too.
_MOST_CPUS = 4
_TASKS_A_NODE = 2  # at least: one works while another brings its last blocks to the disk
_SECONDS_OF_A_TASK = 1.0
_WAITING_A_SLOT = 1
_MOST_LOSSES = 3
_SECONDS_TO_STOP = 60.0
_SECONDS_TO_CONNECT = 10.0
_FASTEST = -5

# Read when Ray is imported or started: no usage reports about a cluster that is started only for this run, no notice
# on the terminal about accelerators, and only one retry where no cluster answers. The user's own settings win.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
}


@contextmanager
def connection(init: Mapping[str, object]) -> Iterator[ModuleType]:
    """Yield the module `ray`, connected to a cluster. An existing connection of the program is used and left open.

    Args:
        init: keywords of `ray.init`, such as `address`. Without an address, Ray connects to RAY_ADDRESS or to a cluster
            on this machine; if there is none, it starts one, which is shut down at the end.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise RecipeError(f"--ray: Ray is not installed: {install_command('ray')}") from error
    if ray.is_initialized():
        yield ray
        return
    _check_address(init.get("address"))
    with _keep_handlers():
        try:
            ray.init(**{"log_to_driver": False, "logging_level": logging.CRITICAL, **_add_numba_environment(init)})
        except Exception as error:  # Ray raises plain exceptions, too, if a raylet dies while it starts
            if isinstance(error, TypeError | ValueError) or "keyword argument" in str(error):
                raise RecipeError(f"--ray-init: {error}") from error
            raise RayError(f"no Ray cluster can be reached: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: object) -> None:
    """Refuse an address that does not answer. Ray would try for minutes."""
    if not isinstance(address, str) or address in ("auto", "local"):
        return
    if "://" in address:
        raise RecipeError(
            f"address {address!r}: Ray's client cannot be used; run ramerge on a node of the cluster, or with "
            "`ray job submit`, and give HOST:PORT or auto"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise RecipeError(f"address {address!r}: must be HOST:PORT, auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise RayError(f"no Ray cluster answers at {address}: {error.strerror or error}") from error


def _add_numba_environment(init: Mapping[str, Any]) -> dict[str, object]:
    """Add this process's environment variables for numba to the keywords of `ray.init`."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    runtime_env = dict(init.get("runtime_env") or {})
    if variables := {**ours, **(runtime_env.get("env_vars") or {})}:
        runtime_env["env_vars"] = variables
    return {**init, "runtime_env": runtime_env} if runtime_env else dict(init)


@contextmanager
def _keep_handlers() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class RaySlots:
    """Size and number of the tasks that a Ray cluster runs concurrently.

    Attributes:
        memory: bytes that a task needs.
    """

    cpus: int
    threads: int
    memory: int
    count: int


def _ray_slots(
    nodes: Sequence[Mapping[str, float]], workers: int, processors: int, memory: Callable[[int], int]
) -> RaySlots:
    """Choose the size of tasks to fit the nodes of a Ray cluster.

    Args:
        nodes: resources of each node: "CPU", and "memory" in bytes.
        workers: the number of threads for a machine with `processors` processors.
        memory: returns the bytes that a process with a given number of worker threads needs.
    """
    able = [node for node in nodes if node.get("CPU", 0) >= 1]
    least = min((int(node["CPU"]) for node in able), default=1)
    cpus = min(_MOST_CPUS, workers, max(least // _TASKS_A_NODE, 1))
    threads = min(workers, -(-workers * cpus // processors))
    task_bytes = memory(threads)
    count = sum(int(min(node["CPU"] // cpus, node.get("memory", 0) // task_bytes)) for node in able)
    if not count:
        raise RayError(
            f"no node of the Ray cluster has {cpus} CPU and {-(-task_bytes // 1_000_000):,} MB of memory, which a task "
            "needs; give Ray more, or lower --threads or --max-memory"
        )
    return RaySlots(cpus, threads, task_bytes, count)


@dataclass
class _RayTask(Generic[Block]):
    """Runs of consecutive blocks, and how often the task that processes them was lost."""

    runs: Sequence[NumberedRun[Block]]
    losses: int = 0


class RayExecutor:
    """An executor that runs tasks on a Ray cluster."""

    def __init__(self, ray: ModuleType, workers: int, processors: int, memory: Callable[[int], int]) -> None:
        self._ray = ray
        self._workers, self._processors, self._memory = workers, processors, memory

    def run(
        self, work: Pass[Block, Result], runs: Sequence[NumberedRun[Block]], recorder: Recorder[Result]
    ) -> Generator[Processed[Result] | Any, None, None]:
        """Run the pass as tasks on the cluster, each of which gets `work` pickled."""
        try:
            yield from self._run_on_cluster(work, runs, recorder)
        except self._ray.exceptions.RayError as error:  # any call may raise it, for example if this node's raylet died
            raise RayError(
                f"the Ray cluster has failed: {_first_line(error)}; when it runs again, the same command resumes"
            ) from error

    def _run_on_cluster(
        self, work: Pass[Block, Result], runs: Sequence[NumberedRun[Block]], recorder: Recorder[Result]
    ) -> Generator[Processed[Result] | Any, None, None]:
        if not runs:
            return
        ray, here, slots = self._ray, str(Path.cwd()), self._count_ray_slots()
        payload = ray.put(zstandard.compress(ray.cloudpickle.dumps(work), _FASTEST))
        remote = ray.remote(num_cpus=slots.cpus, memory=slots.memory, max_retries=0)(_remote_function())
        left, lost_tasks, running = list(runs), deque[_RayTask[Block]](), dict[object, _RayTask[Block]]()
        size = slots.threads  # runs of a task
        try:
            while left or lost_tasks or running:
                while (left or lost_tasks) and len(running) < slots.count * (1 + _WAITING_A_SLOT):
                    if lost_tasks:
                        task = lost_tasks.popleft()
                    else:  # the last tasks are smaller, so that they end together
                        cut = min(size, max(len(left) // (2 * slots.count), slots.threads))
                        task, left = _RayTask(left[:cut]), left[cut:]
                    # in a list, because Ray would fetch an argument again for each task
                    running[remote.remote(_library_versions(), [payload], task.runs, slots.threads, here)] = task
                with held():  # Ray swallows what a handler of signals raises
                    reference = ray.wait(list(running), num_returns=1, timeout=None)[0][0]
                task = running.pop(reference)
                try:
                    with held():
                        events, failure, seconds = _unpacked_report(ray.get(reference))
                except ray.exceptions.RayError as error:
                    self._note_loss(task, error)
                    slots = self._count_ray_slots()
                    lost_tasks.append(task)
                    continue
                for event in events:
                    if isinstance(event, Processed):
                        recorder.record(event.number, event.result)
                    yield event
                if failure is not None:
                    raise failure
                size = max(int(len(task.runs) * _SECONDS_OF_A_TASK / max(seconds, 1e-3)), slots.threads)
        finally:
            self._cancel_tasks(list(running))

    def _count_ray_slots(self) -> RaySlots:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return _ray_slots(nodes, self._workers, self._processors, self._memory)

    def _note_loss(self, task: _RayTask[Block], error: Exception) -> None:
        kinds = self._ray.exceptions
        loss_errors = (kinds.NodeDiedError, kinds.WorkerCrashedError, kinds.OutOfMemoryError, kinds.ObjectLostError)
        if isinstance(error, kinds.LocalRayletDiedError):
            raise error
        if not isinstance(error, loss_errors):
            why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise RayError(f"a task on the Ray cluster has failed: {why}") from error
        task.losses += 1
        if task.losses > _MOST_LOSSES:
            raise RayError(f"a task on the Ray cluster was lost {task.losses} times: {_first_line(error)}") from error

    def _cancel_tasks(self, running: list[object]) -> None:
        """Cancel tasks and wait until they have ended, so that their files may be removed."""
        ray = self._ray
        for force, seconds in ((False, _SECONDS_TO_STOP), (True, _SECONDS_TO_CONNECT)):
            for task in running:
                with suppress(ray.exceptions.RayError, ValueError):
                    ray.cancel(task, force=force)
            left = ray.wait(running, num_returns=len(running), timeout=seconds, fetch_local=False)[1] if running else []
            if not left:
                return


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _unpacked_report(report: bytes | str) -> tuple[list[object], Exception | None, float]:
    """Return a task's events, its error if it failed, and its duration in seconds."""
    if isinstance(report, str):
        raise PlanError(report)
    contents: tuple[list[object], Exception | None, float] = pickle.loads(zstandard.decompress(report))  # noqa: S301 - ours
    return contents


# --- on a node --------------------------------------------------------------------------------------------------------


def _remote_function() -> Callable[..., bytes | str]:
    """Return the function that Ray runs; it is nested to be pickled by value, because the node may lack this module."""

    def share(versions: Mapping[str, str], *arguments: Any) -> bytes | str:
        import socket

        try:
            from ramerge.core.engine.executors.ray import run_share
        except ImportError as error:
            return f"node {socket.gethostname()}: ramerge {versions['ramerge']} is not installed there: {error}"
        return run_share(versions, *arguments)

    return share


def run_share(
    versions: Mapping[str, str], payload: Sequence[object], runs: Sequence[NumberedRun[Any]], threads: int, folder: str
) -> bytes:
    """Process a Ray task's blocks on its node, and return the input of `_unpacked_report`.

    Args:
        payload: a Ray reference to the pickled pass, in a list.
        folder: the working directory of the driver, to which relative paths refer.
    """
    _exit_if_ending()
    start, events, failure = time.monotonic(), list[object](), None
    try:
        own_versions = _library_versions()
        wrong = [
            f"{name} {own_versions[name]} instead of {version}"
            for name, version in versions.items()
            if own_versions[name] != version
        ]
        if wrong:
            raise PlanError(f"this node has other versions than the one that started the merge: {', '.join(wrong)}")
        with _working_folder(Path(folder)):
            work = _unpack_pass(payload[0])
            with closing(work), closing(ThreadExecutor(threads).run(work, runs, Unrecorded())) as results:
                events += results
                work.settle()
    except Exception as error:
        _exit_if_ending()
        events, failure = [], _error_of_node(error)
    return zstandard.compress(pickle.dumps((events, failure, time.monotonic() - start)), _FASTEST)


def _exit_if_ending() -> None:
    """Exit at once if the interpreter is shutting down, where thread pools no longer work.

    Ray may start a queued task in such a process. The driver then sees a lost task, and another task repeats it.
    """
    if not threading.main_thread().is_alive():
        os._exit(1)


@lru_cache(maxsize=1)
def _unpack_pass(reference: object) -> Pass[Any, Any]:
    """Return the pass; cached, because all tasks of a process use the same one."""
    import ray

    work: Pass[Any, Any] = pickle.loads(zstandard.decompress(ray.get(reference)))  # noqa: S301 - ours
    return work


def _error_of_node(error: Exception) -> Exception:
    """Return an error for the driver that names the node and can be pickled."""
    node = socket.gethostname()
    with suppress(Exception):
        import ray

        node = f"{node} ({ray.util.get_node_ip_address()})"
    if isinstance(error, RamergeError):
        error.messages = tuple(f"{problem} (on node {node})" for problem in error.messages)
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, f"{error.strerror} (on node {node})", error.filename)
    return RuntimeError(f"on node {node}: {''.join(traceback.format_exception(error))}")


def _library_versions() -> dict[str, str]:
    return {"ramerge": __version__, "NumPy": np.__version__}


@contextmanager
def _working_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    with suppress(OSError):
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
