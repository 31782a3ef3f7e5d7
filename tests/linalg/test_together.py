"""Matrices that `linalg.together` and the threads of `engine.team` solve for together give what each gives alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.engine.passes import in_order
from ramerge.core.engine.worker import Worker
from ramerge.core.linalg import arrays, solver, together
from ramerge.core.linalg.solver import CPU, TORCH_CPU, Solver
from ramerge.core.linalg.together import Company, Member, as_member, at_once
from ramerge.core.methods.registry import METHODS
from ramerge.core.planning import devices
from ramerge.core.planning.model import MergePlan
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.linalg.test_solver import ALL, merged
from tests.methods.test_spectral import low_rank, random
from tests.plans import planned

SOLVING = [name for name, method in METHODS.items() if method.family == "spectral"]


def as_one(function: Callable[[], Any]) -> Callable[[Member], Any]:
    """A function whose calls are those of a member."""

    def run(member: Member) -> Any:
        with as_member(member):
            return function()

    return run


# --- calls -----------------------------------------------------------------------------------------------------------


def test_calls_of_a_kind_are_one_in_the_order_of_members():
    seen: list[list[Any]] = []

    def squared(ones: Sequence[int]) -> list[int]:
        seen.append(list(ones))
        return [one**2 for one in ones]

    def member(number: int) -> list[Any]:
        kinds = ["a", "b"] if number % 2 else ["b", "a", "a"]
        return [together.call(kind, 10 * place + number, squared) for place, kind in enumerate(kinds)]

    found = at_once([as_one(partial(member, number)) for number in range(4)])
    assert found == [[(10 * place + n) ** 2 for place in range(2 if n % 2 else 3)] for n in range(4)]
    assert sorted(seen) == [[0, 2], [1, 3], [10, 12], [11, 13], [20, 22]]  # the third calls, when others have left
    assert together.call("a", 3, squared) == 9 and seen[-1] == [3]  # without a company


def test_what_fails_together_is_tried_alone():
    def inverse(ones: Sequence[float]) -> list[float]:
        return [1 / one for one in ones]

    def member(number: int) -> Any:
        try:
            return together.call("a", number, inverse)
        except ZeroDivisionError:
            return together.call("b", 4, inverse)

    assert at_once([as_one(partial(member, number)) for number in range(3)]) == [0.25, 1, 0.5]


def test_what_a_company_shares_is_taken_once_and_given_back_by_the_last():
    taken, given = [], []
    company = Company(3)
    for _ in range(3):
        assert company.share(lambda: taken.append(1) or "stream", given.append) == "stream"
    company.leave()
    company.leave()
    assert taken == [1] and not given
    company.leave()
    assert given == ["stream"]


# --- methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("method", "parameters"), ALL)
def test_methods_solve_together_as_numpy_alone(method, parameters, monkeypatch):
    """Shapes, ranks, and what moved differ, so that cuts do; and each size of a company gives the same."""
    device, sizes = solver._Device(TORCH_CPU), []
    monkeypatch.setattr(solver, "_device", lambda _name: device)
    answer = together._answer
    monkeypatch.setattr(together, "_answer", lambda calls: (sizes.append(len(calls)), answer(calls))[1])
    shapes = [(20, 30), (20, 30), (30, 20), (20, 30), (6, 40)]
    matrices = [(low_rank if place == 3 else random)(shape, 3) for place, shape in enumerate(shapes)]
    matrices.append([np.zeros((20, 30)), *random((20, 30), 2)])

    def solve(taus: list[Any], member: Member) -> Any:
        return merged(Solver(TORCH_CPU, lambda text: pytest.fail(text), member), method, taus, parameters)

    for real, tolerance in ((np.float64, 1e-10), (np.float32, 1e-6)):
        all_taus = [[tau.astype(real) for tau in taus] for taus in matrices]
        here = [merged(CPU, method, taus, parameters) for taus in all_taus]
        for size in (1, 3, len(all_taus)):
            sizes.clear()
            there = []
            for start in range(0, len(all_taus), size):
                there += at_once([partial(solve, taus) for taus in all_taus[start : start + size]])
            for one, other, taus in zip(here, there, all_taus, strict=True):
                assert np.abs(one - other).max() <= tolerance * max(np.abs(tau).max() for tau in (one, *taus))
            assert not sizes or (1 < max(sizes) <= size if size > 1 else max(sizes) == 1)  # polynomials need none
    assert device._slots.qsize() == solver.SIDE_BY_SIDE


# --- merges ----------------------------------------------------------------------------------------------------------


def write_experts(folder: Path) -> list[str]:
    """Experts each with a name, and experts in one tensor."""
    shapes = {"mlp.gate": (4, 20), "mlp.experts.gate_up_proj": (5, 16, 20)}
    for expert in range(4):
        shapes |= {f"moe.experts.{expert}.w1": (16, 20), f"moe.experts.{expert}.w2": (20, 16)}
    base = {key: np.random.default_rng(0).standard_normal(shape) for key, shape in shapes.items()}
    for number, name in enumerate(("base", "a", "b", "c")):
        rng = np.random.default_rng(number)
        numbers = {key: each + 0.1 * (number > 0) * rng.standard_normal(each.shape) for key, each in base.items()}
        tensors = {f"model.layers.0.{key}.weight": floats(each, "F64") for key, each in numbers.items()}
        write_checkpoint(folder / name, tensors)
    return ["a", "b", "c"]


def on_torch(plan: MergePlan, size: int) -> MergePlan:
    on = {"device": TORCH_CPU, "device_name": TORCH_CPU, "device_bytes": 1 << 40, "together": size}
    return replace(plan, resources=replace(plan.resources, **on))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("method", SOLVING)
def test_experts_are_merged_together_as_by_numpy(method, tmp_path: Path, monkeypatch):
    sizes: list[int] = []
    answer = together._answer
    monkeypatch.setattr(together, "_answer", lambda calls: (sizes.append(len(calls)), answer(calls))[1])
    source = recipe(tmp_path, write_experts(tmp_path), method)
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    here = read_checkpoint(tmp_path / "here")
    for size in (1, 3, 16):
        sizes.clear()
        execute(on_torch(planned(source, tmp_path / str(size)), size), ThreadExecutor(2))
        for name, tensor in read_checkpoint(tmp_path / str(size)).items():
            left, right = tensor.numbers(np.float64), here[name].numbers(np.float64)
            assert np.abs(left - right).max() <= 1e-9 * np.abs(right).max(), name
        assert 1 < max(sizes) <= size if size > 1 else not sizes


@pytest.mark.needs("torch")
def test_the_runs_of_a_device_hold_what_is_solved_for_together(tmp_path: Path):
    plan = on_torch(planned(recipe(tmp_path, write_experts(tmp_path), "core")), 3)
    runs = in_order(plan, range(len(plan.tensors)), 0)
    assert [len(run) for run in runs] == [3, 3, 3, 3, 2]  # 9 matrices with names, 5 in one tensor
    assert sum(len(run) for run in runs) == len({block for run in runs for batch in run for block in batch})
    assert all(len(run) == 1 for run in in_order(plan, range(len(plan.tensors)), 0, apart=True))
    assert all(len(run) == 1 for run in in_order(on_torch(plan, 1), range(len(plan.tensors)), 0))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("bad", [0, 2])
def test_an_error_of_one_ends_the_merge_and_nobody_waits(bad, tmp_path: Path, monkeypatch):
    plan = on_torch(planned(recipe(tmp_path, write_experts(tmp_path), "tsvm"), tmp_path / "out"), 4)
    merge = Worker.merge

    def failing(self: Worker, block: Any, *args: Any) -> Any:
        if self.member is not None and self.member.number == bad:
            raise ramerge.CheckpointError("a disk fails")
        return merge(self, block, *args)

    monkeypatch.setattr(Worker, "merge", failing)
    with pytest.raises(ramerge.CheckpointError, match="a disk fails"):
        execute(plan, ThreadExecutor(2))
    assert not any("together" in thread.name for thread in threading.enumerate())


@pytest.mark.needs("torch")
def test_threads_that_the_system_does_not_allow_end_the_merge(tmp_path: Path, monkeypatch):
    class Few(ThreadPoolExecutor):
        def submit(self, function: Any, /, number: int, *args: Any) -> Any:  # type: ignore[override]
            if number == 2:
                raise RuntimeError("can't start new thread")
            return super().submit(function, number, *args)

    monkeypatch.setattr(together, "ThreadPoolExecutor", Few)
    plan = on_torch(planned(recipe(tmp_path, write_experts(tmp_path), "tsvm"), tmp_path / "out"), 4)
    with pytest.raises(RuntimeError, match="new thread"):
        execute(plan, ThreadExecutor(1))


@pytest.mark.needs("torch")
def test_what_fails_on_the_device_is_solved_for_here_and_others_go_on(tmp_path: Path, monkeypatch):
    source = recipe(tmp_path, write_experts(tmp_path), "tsvm")
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    eigh, failed = arrays._eigh, list[tuple[int, ...]]()

    def failing(symmetric: Any) -> Any:
        if symmetric.ndim == 3 or (symmetric.shape == (16, 16) and symmetric.shape not in failed):
            failed.append(symmetric.shape)
            raise RuntimeError("out of memory")
        return eigh(symmetric)

    device = solver._Device(TORCH_CPU)
    monkeypatch.setattr(solver, "_device", lambda _name: device)
    plan = on_torch(planned(source, tmp_path / "there"), 8)
    monkeypatch.setattr(arrays, "_eigh", failing)
    (record,) = execute(plan, ThreadExecutor(1))
    assert (16, 16) in failed and failed[0] == (7, 16, 16)  # the eighth of the group is the gate
    assert sum("out of memory" in text for text in record.warnings) == 1
    left, right = (read_checkpoint(tmp_path / out) for out in ("here", "there"))
    assert all(np.allclose(left[name].numbers(np.float64), right[name].numbers(np.float64)) for name in left)


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("threads", "room", "size"), [(24, 1 << 40, 8), (64, 1 << 40, 16), (5, 1 << 40, 1), (24, 1 << 27, 1)]
)
def test_plans_say_how_many_matrices_are_solved_for_together(threads, room, size, tmp_path: Path, monkeypatch):
    import torch

    monkeypatch.setattr(devices, "choose_device", lambda _text: torch.device("cuda:0"))
    monkeypatch.setattr(devices, "device_name", str)
    monkeypatch.setattr(devices, "is_sound", lambda _device: True)
    monkeypatch.setattr(devices, "is_slow_in_float64", lambda _device: False)
    monkeypatch.setattr(devices, "_room", lambda _device: room)
    source, given = recipe(tmp_path, write_experts(tmp_path), "swudi"), {"threads": threads, "max_memory": "20GB"}
    plain = ramerge.plan(source, options=ramerge.Options(device="cpu", **given))
    plan = ramerge.plan(source, options=ramerge.Options(device="cuda", **given))
    used = plan.details.resources
    assert used.together == size and used.workers == threads // size
    assert used.peak_memory_bytes == plain.details.resources.peak_memory_bytes
    assert used.memory_of(used.workers + 1) == used.peak_memory_bytes + size * plain.details.resources.worker_bytes
    assert plan.to_dict()["workers"] == used.workers * size
    assert (f"up to {size} matrices together" in plan.explain()) == (size > 1)


def test_matrices_in_one_tensor_are_counted_each(tmp_path: Path):
    source = recipe(tmp_path, write_experts(tmp_path), "core")
    found = ramerge.plan(source).to_dict()
    assert (found["whole_matrices"], found["largest_matrix"]) == (14, [16, 20])
