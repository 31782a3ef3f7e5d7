"""Blocks of remote inputs that one worker takes one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.engine.execute import execute
from ramerge.engine.executors.threads import ThreadExecutor
from ramerge.foundation.errors import ContinueNote
from ramerge.planning.build import make_plan
from ramerge.planning.model import MergePlan
from ramerge.recipe.points import make_points
from ramerge.recipe.read import open_recipe
from tests.checkpoints import simple, write_checkpoint
from tests.engine.executors.wrapped import Wrapped
from tests.reference import Stored
from tests.storage.web import WebServer

ALL = 10**9
AGENTS = ("code", "tool")
_SECONDS = 60


def tensors(seed: int) -> dict[str, Stored]:
    """Of the base, or of an agent."""
    four = [simple(4 * seed + part, moved=0.3 * bool(seed)) for part in range(4)]
    return {f"model.layers.{i}.weight": each for i, each in enumerate(each for one in four for each in one.values())}


def recipe(web: WebServer, method: str, place: Callable[[str], str]) -> dict[str, Any]:
    """Base and agents that a server has, each named by `place`."""
    for seed, name in enumerate(["base", *AGENTS]):
        if not (web.folder / name).exists():
            write_checkpoint(web.folder / name, tensors(seed), shards=2)
    return {"method": method, "base": place("base"), "agents": {name: place(name) for name in AGENTS}}


def planned(
    web: WebServer, method: str, out: Path | None, run_bytes: int, *, workers: int = 3, **more: Any
) -> MergePlan:
    """A plan of small blocks."""
    source = recipe(web, method, lambda name: f"{web.url}/{name}")
    plan = make_plan(make_points(open_recipe(source)), out, ramerge.Options(cache=False), **more)
    assert plan.problems == ()
    resources = replace(plan.resources, block_elements=100, run_bytes=run_bytes, workers=workers)
    return replace(plan, resources=resources)


def weights(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("model*")}


@pytest.mark.full
@pytest.mark.parametrize("method", ["ram", "ram+", "ties"])
@pytest.mark.parametrize("run_bytes", [0, 1, 1500, ALL])
def test_a_run_of_any_length_has_the_same_bytes(method: str, run_bytes: int, web: WebServer, tmp_path: Path) -> None:
    ramerge.merge(recipe(web, method, lambda name: str(web.folder / name)), tmp_path / "here")
    execute(planned(web, method, tmp_path / "there", run_bytes), ThreadExecutor(3))
    assert weights(tmp_path / "there") == weights(tmp_path / "here") != {}


def test_neighboring_blocks_are_one_request(web: WebServer, tmp_path: Path) -> None:
    plans = {size: planned(web, "ram+", tmp_path / str(size), size) for size in (0, ALL)}
    asked = {}
    for size, plan in plans.items():
        web.asked.clear()
        execute(plan, ThreadExecutor(3))
        asked[size] = sum(path.endswith(".safetensors") for _, path, _ in web.asked)
    sample = planned(web, "ram+", None, 0)
    web.asked.clear()
    with pytest.raises(RuntimeError, match="sampled"):
        execute(replace(sample, out=tmp_path / "sample"), _Stopping())
    before = sum(path.endswith(".safetensors") for _, path, _ in web.asked)
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


def test_where_runs_are_of_use(web: WebServer, tmp_path: Path) -> None:
    here, there = (lambda name: str(web.folder / name)), (lambda name: f"{web.url}/{name}")
    assert ramerge.plan(recipe(web, "ram", here)).details.resources.run_bytes == 0
    assert ramerge.plan(recipe(web, "tsvm", there)).details.resources.run_bytes == 0, "it would let answers wait"
    plan = ramerge.plan(recipe(web, "ram", there))
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


def test_whole_tensors_come_in_order(web: WebServer, tmp_path: Path) -> None:
    """Only two tensors are collected at a time. Yet no thread waits forever."""
    ramerge.merge(recipe(web, "ram", lambda name: str(web.folder / name)), tmp_path / "here")
    found: dict[str, bytes] = {}
    executor = _Late()

    def work() -> None:
        plan = planned(web, "ram", None, 5000, workers=8, in_memory=True)
        execute(plan, executor, on_tensor=lambda each: found.update({each.name: each.data.tobytes()}))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    assert not thread.is_alive() and executor.lengths == {1}
    assert len(found) == 12
    assert all(any(data in file for file in weights(tmp_path / "here").values()) for data in found.values())


def test_a_delta_is_made_in_runs(web: WebServer, tmp_path: Path) -> None:
    ramerge.merge(recipe(web, "ram", lambda name: str(web.folder / name)), tmp_path / "here")
    executor = _Late()
    execute(planned(web, "ram", tmp_path / "delta", 5000, workers=8, as_delta=True), executor)
    assert max(executor.lengths) > 1
    ramerge.apply(web.folder / "base", tmp_path / "delta", tmp_path / "again")
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


def test_a_merge_that_was_stopped_in_the_middle_of_a_run_goes_on(web: WebServer, tmp_path: Path) -> None:
    ramerge.merge(recipe(web, "ram+", lambda name: str(web.folder / name)), tmp_path / "here")
    plan = planned(web, "ram+", tmp_path / "there", ALL)

    with pytest.raises(KeyboardInterrupt):
        execute(plan, _Interrupted(84 + 42))  # in the middle of the second pass, of which all is one run
    assert not (tmp_path / "there").exists()
    with pytest.warns(ContinueNote, match="continuing: 7[4-6] %"):
        execute(plan, ThreadExecutor(1))
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
