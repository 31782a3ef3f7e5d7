"""Blocks of remote inputs that one worker takes one after another."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.engine.outputs import OUTPUT_KINDS
from ramerge.core.foundation.errors import ContinueNote
from ramerge.core.planning.build import make_plan
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.planning.model import MergePlan
from ramerge.core.recipe.points import make_points
from ramerge.core.storage import client
from tests.checkpoints import simple, write_checkpoint
from tests.engine.executors.wrapped import Wrapped
from tests.reference import Stored
from tests.storage.memory import Memory

ALL = 10**9
AGENTS = ("code", "tool")
_SECONDS = 60


def tensors(seed: int) -> dict[str, Stored]:
    """Of the base, or of an agent."""
    four = [simple(4 * seed + part, moved=0.3 * bool(seed)) for part in range(4)]
    return {f"model.layers.{i}.weight": each for i, each in enumerate(each for one in four for each in one.values())}


def recipe(folder: Path, method: str, memory: Memory | None = None) -> dict[str, Any]:
    """Base and agents in a folder, or copies of them in a bucket."""
    names = {}
    for seed, name in enumerate(["base", *AGENTS]):
        if not (folder / name).exists():
            write_checkpoint(folder / name, tensors(seed), shards=2)
        if memory is not None and not memory.files(name):
            memory.put(folder / name, name)
        names[name] = str(folder / name) if memory is None else f"gs://models/{name}"
    return {"method": method, "base": names.pop("base"), "agents": names}


def planned(
    memory: Memory, folder: Path, method: str, out: str | None, run_bytes: int, *, workers: int = 3, **more: Any
) -> MergePlan:
    """A plan of small blocks of models in a bucket, with an output in the folder."""
    source = recipe(folder, method, memory)
    plan = make_plan(
        make_points(open_recipe(source)),
        out and folder / out,
        ramerge.Options(cache=False),
        **{"kind": OUTPUT_KINDS["checkpoint"]} | more,
    )
    assert plan.findings.problems == ()
    resources = replace(plan.resources, block_elements=100, run_bytes=run_bytes, workers=workers)
    return replace(plan, resources=resources)


def weights(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("model*")}


@pytest.mark.full
@pytest.mark.parametrize("method", ["ram", "ram+", "ties"])
@pytest.mark.parametrize("run_bytes", [0, 1, 1500, ALL])
def test_runs_of_any_length_agree(method: str, run_bytes: int, memory: Memory, tmp_path: Path) -> None:
    ramerge.merge(recipe(tmp_path, method), tmp_path / "here")
    execute(planned(memory, tmp_path, method, "there", run_bytes), ThreadExecutor(3))
    assert weights(tmp_path / "there") == weights(tmp_path / "here") != {}


def test_neighboring_blocks_are_one_request(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    chunks = client.chunks

    def counted(store: Any, key: str, *arguments: Any, **more: Any) -> Any:
        requests.append(key)
        return chunks(store, key, *arguments, **more)

    plans = {size: planned(memory, tmp_path, "ram+", str(size), size) for size in (0, ALL)}
    sample = planned(memory, tmp_path, "ram+", "sample", 0)
    monkeypatch.setattr(client, "chunks", counted)
    asked = {}
    for size, plan in plans.items():
        requests.clear()
        execute(plan, ThreadExecutor(3))
        asked[size] = sum(key.endswith(".safetensors") for key in requests)
    requests.clear()
    with pytest.raises(RuntimeError, match="sampled"):
        execute(sample, _Stopping())
    before = sum(key.endswith(".safetensors") for key in requests)
    files, passes = 2 * 3, 2
    assert asked[ALL] - before == files * passes
    assert asked[0] - before == 7 * 12 * 3 * passes


class _Stopping(ThreadExecutor):
    """Ends when the first pass begins."""

    def __init__(self) -> None:
        super().__init__(1)

    def run(self, *_arguments: Any) -> Any:
        """See `Executor.run`."""
        raise RuntimeError("sampled")


def test_where_runs_are_of_use(memory: Memory, tmp_path: Path) -> None:
    assert ramerge.plan(recipe(tmp_path, "ram")).details.resources.run_bytes == 0
    remote = ramerge.plan(recipe(tmp_path, "tsvm", memory))
    assert remote.details.resources.run_bytes == 0, "it would let answers wait"
    plan = ramerge.plan(recipe(tmp_path, "ram", memory))
    assert 0 < plan.details.resources.run_bytes <= plan.bytes_read / plan.details.resources.workers, (
        "every worker has some"
    )


class _Late:
    """Begins two of the first runs late, and notes how many blocks a worker takes at once."""

    def __init__(self) -> None:
        self.lengths: set[int] = set()

    def run(self, work: Any, runs: Any, recorder: Any) -> Any:
        """See `Executor.run`."""
        self.lengths |= {len(run) for run in runs}
        first = [run[0][1] for run in runs[:4:3]]

        def late(process: Any, worker: Any, block: Any) -> Any:
            if block in first:
                threading.Event().wait(0.3)
            return process(worker, block)

        return ThreadExecutor(8).run(Wrapped(work, late), runs, recorder)


def test_whole_tensors_come_in_order(memory: Memory, tmp_path: Path) -> None:
    """Only two tensors are collected at a time. Yet no thread waits forever."""
    ramerge.merge(recipe(tmp_path, "ram"), tmp_path / "here")
    found: dict[str, bytes] = {}
    executor = _Late()

    def work() -> None:
        plan = planned(memory, tmp_path, "ram", None, 5000, workers=8, in_memory=True)
        execute(plan, executor, on_tensor=lambda each: found.update({each.name: each.data.tobytes()}))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    assert not thread.is_alive() and executor.lengths == {1}
    assert len(found) == 12
    assert all(any(data in file for file in weights(tmp_path / "here").values()) for data in found.values())


def test_a_delta_is_made_in_runs(memory: Memory, tmp_path: Path) -> None:
    ramerge.merge(recipe(tmp_path, "ram"), tmp_path / "here")
    executor = _Late()
    execute(planned(memory, tmp_path, "ram", "delta", 5000, workers=8, kind=OUTPUT_KINDS["delta"]), executor)
    assert max(executor.lengths) > 1
    ramerge.apply(tmp_path / "base", tmp_path / "delta", tmp_path / "again")
    assert weights(tmp_path / "again") == weights(tmp_path / "here")


class _Interrupted:
    """Ends after so many blocks."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks

    def run(self, work: Any, runs: Any, recorder: Any) -> Any:
        """See `Executor.run`."""

        def some(process: Any, worker: Any, block: Any) -> Any:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return process(worker, block)

        return ThreadExecutor(1).run(Wrapped(work, some), runs, recorder)


def test_merge_resumes_within_a_run(memory: Memory, tmp_path: Path) -> None:
    ramerge.merge(recipe(tmp_path, "ram+"), tmp_path / "here")
    plan = planned(memory, tmp_path, "ram+", "there", ALL)

    with pytest.raises(KeyboardInterrupt):
        execute(plan, _Interrupted(84 + 42))  # in the middle of the second pass, of which all is one run
    assert not (tmp_path / "there").exists()
    with pytest.warns(ContinueNote, match="continuing: 7[4-6] %"):
        execute(plan, ThreadExecutor(1))
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
