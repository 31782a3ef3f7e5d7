"""Merges on a Ray cluster: the bytes of threads, whatever happens to nodes and processes."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors import ray as executors
from ramerge.core.engine.executors.executor import Unrecorded
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.foundation.errors import ContinueNote, RayError
from ramerge.core.methods.registry import METHODS
from ramerge.core.output.lifecycle import output_dir
from ramerge.core.output.staging import StagingDir
from ramerge.core.output.write import Writer, lay_out
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.reader import Files
from ramerge.soups.recipe import read_request
from tests.checkpoints import floats, recipe, write_checkpoint, write_simple
from tests.conformance.test_merge import plain
from tests.engine.executors.cluster import merge, second_of
from tests.engine.executors.test_threads import Blocks, runs
from tests.messages import Messages
from tests.plans import planned
from tests.soups.test_soup import write_run
from tests.storage import seaweed
from tests.tiers import some

pytestmark = pytest.mark.full  # Ray


@pytest.fixture
def large(tmp_path: Path) -> dict:
    """A recipe of models that take a moment."""
    rng = np.random.default_rng(0)
    base = {f"model.layers.{i}.weight": rng.standard_normal((1024, 1024)) for i in range(8)}
    write_checkpoint(tmp_path / "base", {name: floats(values, "BF16") for name, values in base.items()})
    for agent in "ab":
        moved = {n: v + 0.01 * (rng.random(v.shape) < 0.3) * rng.standard_normal(v.shape) for n, v in base.items()}
        write_checkpoint(tmp_path / agent, {name: floats(values, "BF16") for name, values in moved.items()})
    return recipe(tmp_path, ["a", "b"], "ram+")


def weights(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.safetensors")}


SMALL = 1 << 16


def by_threads(source: dict, out: Path, block: int = SMALL) -> dict[str, bytes]:
    plan = planned(source, out, cache=False)
    execute(replace(plan, resources=replace(plan.resources, block_elements=block)), ThreadExecutor(2))
    return weights(out)


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_other_formats_and_small_blocks(method: str, dtype: str, connected: Any, tmp_path: Path) -> None:
    source = plain(tmp_path, method, dtype)[0] | {"rounding": "stochastic"}
    merge(connected, source, tmp_path / "ray", block=64)
    assert weights(tmp_path / "ray") == by_threads(source, tmp_path / "threads", block=64)


def test_sweeps_analyses_and_relative_names(connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    vary = {"parameters.r": [0, 0.1]}
    monkeypatch.chdir(tmp_path)
    ramerge.sweep(source, "ray", vary=vary, options=ramerge.Options(cache=False, ray=ramerge.Ray()))
    ramerge.sweep(source, "threads", vary=vary, options=ramerge.Options(cache=False))
    assert len(weights(tmp_path / "ray")) == 2
    assert weights(tmp_path / "ray") == weights(tmp_path / "threads")
    here, there = (
        ramerge.analyze(source, options=ramerge.Options(cache=False, ray=each)) for each in (None, ramerge.Ray())
    )
    assert here.tables() == there.tables()


@pytest.mark.parametrize(("run", "flags"), [("chain", {}), ("run", {"strategy": "relex", "settings": ("at=80",)})])
def test_soups(run: str, flags: dict[str, Any], connected: Any, tmp_path: Path) -> None:
    write_run(tmp_path, 4)
    wanted = {"strategy": "ema", "settings": (), "base": str(tmp_path / "base"), "last": None, "steps": None}
    wanted |= {"scores": None, "choose": None, "dtype": None, "rounding": None, "shard_size": None, "as_delta": False}
    source = read_request([str(tmp_path / run)], wanted | flags).recipe
    ramerge.merge(source, tmp_path / "ray", options=ramerge.Options(cache=False, ray=ramerge.Ray()))
    assert weights(tmp_path / "ray") == by_threads(source, tmp_path / "threads")


def test_a_process_that_ends_does_no_task() -> None:
    script = """
import atexit
from ramerge.core.engine.executors.ray import run_share
atexit.register(lambda: print("done", run_share({"NumPy": "0"}, (), (), 1, ".")))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_nodes_read_buckets_with_credentials_of_their_own(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    pytest.importorskip("obstore")
    agents = write_simple(tmp_path)
    (tmp_path / "s3").mkdir()
    with seaweed.running(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        source = {"method": "ram+", "base": server.put(tmp_path / "base", "nodes/base")}
        source |= {"agents": {name: server.put(tmp_path / name, f"nodes/{name}") for name in agents}}
        with (
            executors.connection({"address": cluster.address}),
            messages.raises(ramerge.CheckpointError),
        ):
            ramerge.merge(source, tmp_path / "denied", options=ramerge.Options(cache=False, ray=ramerge.Ray()))
        assert not output_dir(tmp_path / "denied").work.exists()
        own = {"address": cluster.address, "runtime_env": {"env_vars": server.environment}}
        ramerge.merge(source, tmp_path / "ray", options=ramerge.Options(cache=False, ray=ramerge.Ray(init=own)))
    ramerge.merge(recipe(tmp_path, agents), tmp_path / "threads", options=ramerge.Options(cache=False))
    assert weights(tmp_path / "ray") == weights(tmp_path / "threads")


def test_other_nodes_do_a_lost_nodes_blocks(
    cluster: Any, connected: Any, large: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, losses = second_of(cluster), []
    (tmp_path / "nodes").mkdir()
    noted = executors.RayExecutor._note_loss
    monkeypatch.setattr(
        executors.RayExecutor, "_note_loss", lambda self, task, error: (losses.append(error), noted(self, task, error))
    )

    def end_worker() -> None:
        while not (found := list((tmp_path / "nodes").glob(f"{node.node_id}.*"))):
            time.sleep(0.01)
        for path in found:
            os.kill(int(path.suffix[1:]), signal.SIGKILL)

    killer = threading.Thread(target=end_worker, daemon=True)

    def kill(event: ramerge.Progress) -> None:
        if event.stage == "merging" and not event.done:
            for mark in (tmp_path / "nodes").iterdir():
                mark.unlink()
            killer.start()
        elif losses and node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)

    merge(connected, large, tmp_path / "ray", kill, block=SMALL, seconds=0.05)
    assert node not in cluster.worker_nodes
    second_of(cluster)
    assert weights(tmp_path / "ray") == by_threads(large, tmp_path / "threads")
    assert losses


def test_after_an_interrupt_the_next_run_goes_on(connected: Any, large: dict, tmp_path: Path) -> None:
    def stop(event: ramerge.Progress) -> None:
        if event.stage == "merging" and event.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(connected, large, tmp_path / "ray", stop, block=SMALL, seconds=0.05)
    assert not (tmp_path / "ray").exists()
    with pytest.warns(ContinueNote, match="continuing: [1-9]"):
        merge(connected, large, tmp_path / "ray", block=SMALL)
    assert weights(tmp_path / "ray") == by_threads(large, tmp_path / "threads")


@dataclass(frozen=True)
class _Marking:
    """A pass that leaves files of what it has begun and ended."""

    folder: Path

    def __call__(self, _worker: Any, block: int) -> int:
        (self.folder / f"begun {block}").touch()
        time.sleep(0.2)
        (self.folder / f"ended {block}").touch()
        return block


def test_tasks_have_stopped_when_it_ends(connected: Any, tmp_path: Path) -> None:
    executor = executors.RayExecutor(connected, 4, 2, lambda threads: 10_000_000 * threads)
    events = executor.run(Blocks(_Marking(tmp_path)), runs(200), Unrecorded())
    next(events)
    events.close()
    begun, ended = ({path.name.split()[1] for path in tmp_path.glob(f"{word} *")} for word in ("begun", "ended"))
    assert begun == ended
    assert 1 <= len(begun) < 100


_DRIVER = """
import json, sys
from pathlib import Path
from ramerge.core.engine.executors.ray import connection
from ramerge.core.foundation.errors import StoppedError
from ramerge.core.foundation.process import handle
from tests.engine.executors.cluster import merge
def stop(number, _frame):
    raise StoppedError(number)
handle(stop)
address, source, out, block = sys.argv[1:]
try:
    with connection({"address": address}) as ray:
        merge(ray, json.loads(source), Path(out), block=int(block), seconds=0.05)
except StoppedError as error:
    assert "of the work is kept" in error.kept
    sys.exit(128 + error.number)
"""


@pytest.mark.parametrize(
    "number", some([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], full=[signal.SIGKILL, signal.SIGTERM])
)
def test_a_stopped_driver_s_work_goes_on(
    number: signal.Signals, cluster: Any, connected: Any, large: dict, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-c", _DRIVER, cluster.address, json.dumps(large), str(out), str(SMALL)]
    with subprocess.Popen(words) as process:
        journal, begun = output_dir(out).work / "journal" / "0001", time.monotonic()
        while process.poll() is None and time.monotonic() - begun < 60:
            if journal.exists() and journal.stat().st_size > 2000:
                process.send_signal(number)
                process.wait(60)
            time.sleep(0.01)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert not out.exists()
    with pytest.warns(ContinueNote, match="continuing: [1-9]"):
        merge(connected, large, out, block=SMALL)
    assert weights(out) == by_threads(large, tmp_path / "threads")


def test_the_command_says_nothing_of_ray(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps(recipe(tmp_path, write_simple(tmp_path))))
    words: list[object] = [sys.executable, "-m", "ramerge", "merge", "recipe.json", "out", "--ray"]
    words += ["--ray-address", cluster.address, "--ray-init", "namespace=mine", "--no-cache", "--quiet"]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ramerge.merge(tmp_path / "recipe.json", tmp_path / "threads", options=ramerge.Options(cache=False))
    assert weights(tmp_path / "out") == weights(tmp_path / "threads")
    assert (done.stdout, done.stderr) == ("", "")


def test_errors_of_inputs_are_those_of_threads(connected: Any, tmp_path: Path) -> None:
    tensors = {"w": floats(np.array([1.0, np.nan]), "BF16")}
    write_checkpoint(tmp_path / "base", {"w": floats(np.ones(2), "BF16")})
    write_checkpoint(tmp_path / "a", tensors)
    write_checkpoint(tmp_path / "b", {"w": floats(np.ones(2), "BF16")})
    source = recipe(tmp_path, ["a", "b"])
    with pytest.raises(ramerge.WeightsError) as there:
        ramerge.merge(source, tmp_path / "out", options=ramerge.Options(cache=False, ray=ramerge.Ray()))
    with pytest.raises(ramerge.WeightsError) as here:
        ramerge.merge(source, tmp_path / "out", options=ramerge.Options(cache=False))
    assert there.value.problems == here.value.problems
    assert not output_dir(tmp_path / "out").work.exists()


def test_another_version_on_a_node(
    connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    monkeypatch.setattr(executors, "__version__", "9.9")
    with messages.raises(ramerge.PlanError):
        ramerge.merge(source, tmp_path / "out", options=ramerge.Options(cache=False, ray=ramerge.Ray()))
    assert not output_dir(tmp_path / "out").work.exists()


@pytest.mark.parametrize("call", ["nodes", "put", "wait", "get"])
def test_a_dead_raylet_is_said(call: str) -> None:
    """Whichever call meets it first: Ray has an error for tasks, and others for calls of its own."""
    real = pytest.importorskip("ray")
    died = real.exceptions.LocalRayletDiedError() if call == "get" else real.exceptions.RaySystemError("Broken pipe")

    def fail(*_: Any, **__: Any) -> None:
        raise died

    working: dict[str, Any] = {
        "nodes": lambda: [{"Alive": True, "Resources": {"CPU": 1, "memory": 1e9}}],
        "put": lambda _: None,
        "wait": lambda refs, **_: (refs, []),
        "get": lambda _: None,
        "cancel": lambda *_, **__: None,
        "remote": lambda **_: lambda _: SimpleNamespace(remote=lambda *_: "task"),
    }
    fake = SimpleNamespace(**working | {call: fail}, exceptions=real.exceptions, cloudpickle=pickle)
    made = executors.RayExecutor(fake, 1, 1, lambda _: 1)
    with pytest.raises(
        RayError, match=r"the Ray cluster has failed: .*(raylet died|Broken pipe).*the same command resumes"
    ):
        list(made.run(Blocks(len), [[(0, 1)]], Unrecorded()))


def test_raylet_dying_at_the_start_is_reported(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    """Ray raises a plain Exception then."""
    ray = pytest.importorskip("ray")

    def fail(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        messages.raises(RayError),
        executors.connection({}),
    ):
        raise AssertionError


def test_errors_of_a_task_say_where(tmp_path: Path) -> None:
    made = [
        executors._error_of_node(ramerge.CheckpointError(["x: is torn", "y: too"])),
        executors._error_of_node(OSError(5, "Input/output error", "/x")),
        executors._error_of_node(ZeroDivisionError("division")),
    ]
    bad, disk, other = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert isinstance(bad, ramerge.CheckpointError)
    assert [text.partition(" (on node ")[0] for text in bad.problems] == ["x: is torn", "y: too"]
    flags = executors._error_of_node(ramerge.OutputError("m: exists; pass --overwrite"))
    assert isinstance(flags, ramerge.OutputError) and "--overwrite (on node" in flags.messages[0]
    assert (disk.errno, disk.filename) == (5, "/x")
    assert "ZeroDivisionError: division" in str(other)


def test_files_open_themselves_again_on_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abcd")
    identities = identify([path])
    moved = {path: replace(identity, device=1, inode=2, changed_ns=3) for path, identity in identities.items()}
    out = np.empty(4, np.uint8)
    with pickle.loads(pickle.dumps(Files(moved))) as files:  # noqa: S301
        files.fill(path, 0, out)
    assert out.tobytes() == b"abcd"
    files.fill(path, 0, out)  # opened again, and known by now
    files.close()
    for change, said in ((b"abcde", "5 bytes.*planned was one of 4 bytes"), (None, "cannot be read")):
        path.write_bytes(change) if change else path.unlink()
        with (
            pickle.loads(pickle.dumps(Files(moved))) as files,  # noqa: S301
            pytest.raises(ramerge.CheckpointError, match=f"{path}: .*{said}"),
        ):
            files.fill(path, 0, out)


def test_outputs_open_themselves_again_on_another_machine(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    stage, shard = StagingDir(tmp_path / "new"), lay_out("s", [("w", "U8", (4,), 4)])
    writer = Writer(stage, [shard])
    there = pickle.loads(pickle.dumps(writer))  # noqa: S301
    there.write("s", shard.offsets["w"], np.frombuffer(b"abcd", np.uint8))
    assert there.sync()
    there.close()
    there.write("s", shard.offsets["w"] + 3, np.frombuffer(b"e", np.uint8))
    there.close()
    writer.finish()
    writer.close()
    assert (tmp_path / "new" / "s").read_bytes()[-4:] == b"abce"
    (tmp_path / "new" / "s").rename(tmp_path / "away")
    (tmp_path / "new" / "s").write_bytes(b"")
    with pytest.raises(OSError, match="another program has replaced it"):
        there.write("s", 0, np.frombuffer(b"abcd", np.uint8))


GB = 1e9


@pytest.mark.parametrize(
    ("nodes", "workers", "found"),
    [
        ([{"CPU": 1, "memory": GB}] * 2, 4, (1, 2, 2)),
        ([{"CPU": 64, "memory": 100 * GB}] * 3, 66, (4, 5, 48)),
        ([{"CPU": 64, "memory": 100 * GB}, {"CPU": 4, "memory": 2 * GB}, {"memory": GB}], 66, (2, 3, 34)),
        ([{"CPU": 2, "memory": 2 * GB}], 4, (1, 2, 2)),
        ([{"CPU": 64, "memory": 2 * GB}], 66, (4, 5, 2)),
        ([{"CPU": 8, "memory": 9 * GB}], 1, (1, 1, 8)),
    ],
)
def test_tasks_are_laid_out(nodes: list, workers: int, found: tuple[int, int, int]) -> None:
    processors = 64 if workers > 4 else 2
    slots = executors._ray_slots(nodes, workers, processors, lambda threads: int(threads * 0.2 * GB))
    assert (slots.cpus, slots.threads, slots.count) == found


def test_no_node_is_large_enough(messages: Messages) -> None:
    with messages.raises(ramerge.RayError):
        executors._ray_slots([{"CPU": 1, "memory": 2 * GB}], 4, 2, lambda threads: int(3 * GB))


def test_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ramerge.RecipeError, match=r"pip install .*\[ray\]"):
        ramerge.merge(source, tmp_path / "out", options=ramerge.Options(ray=ramerge.Ray()))
    assert not output_dir(tmp_path / "out").work.exists()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
        ("ray://127.0.0.1:1", "Ray's client cannot be used"),
        ("127.0.0.1", "must be HOST:PORT"),
    ],
)
def test_no_cluster_at_the_address(address: str, said: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    source = recipe(tmp_path, write_simple(tmp_path))
    with pytest.raises(ramerge.RamergeError, match=said):
        ramerge.merge(source, tmp_path / "out", options=ramerge.Options(ray=ramerge.Ray(init={"address": address})))


def test_settings_of_numba_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        monkeypatch.delenv(name)
    assert executors._add_numba_environment({"address": "auto"}) == {"address": "auto"}
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    wanted: Callable[..., dict] = lambda **more: {"env_vars": {"NUMBA_CPU_NAME": "generic", **more}}  # noqa: E731
    assert executors._add_numba_environment({}) == {"runtime_env": wanted()}
    given = {"runtime_env": {"env_vars": {"A": "1"}}}
    assert executors._add_numba_environment(given) == {"runtime_env": wanted(A="1")}
