"""Where a matrix is solved for: the same results there as here, and here where a device fails."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.linalg import arrays, solver, spectral
from ramerge.core.linalg.arrays import DoubleMissingError
from ramerge.core.linalg.solver import CPU, TORCH_CPU, Solver, is_sound
from ramerge.core.methods.registry import METHODS
from ramerge.core.planning import resources
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint, write_simple
from tests.messages import Messages
from tests.methods.test_spectral import KINDS, NAME, SETTINGS, SHAPES, SPECTRAL, low_rank, random
from tests.plans import planned
from tests.tiers import at_most, some

ALL = [*SETTINGS, ("swudi", {"init_mode": "core"}), ("wudi", {})]

LARGE = [(264, 700), (700, 264), (300, 300)]


def merged(solver: Solver, method: str, taus: list[Any], parameters: dict[str, Any]) -> Any:
    names = tuple(f"a{number}" for number in range(len(taus)))
    prepared = METHODS[method].prepare(METHODS[method].parameters(**parameters), names, {})
    return prepared.solve(NAME, [tau.copy() for tau in taus], solver)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("method", "parameters"), ALL)
def test_torch_solves_as_numpy_does(method, parameters):
    for kind, shape in product(KINDS, SHAPES):
        for real, tolerance in ((np.float64, 1e-10), (np.float32, 1e-6)):
            taus = [tau.astype(real) for tau in KINDS[kind](shape, 3)]
            here = merged(CPU, method, taus, parameters)
            there = merged(Solver(TORCH_CPU, _refuse), method, taus, parameters)
            assert there.dtype == here.dtype
            assert np.abs(there - here).max() <= tolerance * max(np.abs(tau).max() for tau in (here, *taus))


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("method", "parameters"), ALL)
@given(data=st.data())
@settings(deadline=None, max_examples=at_most(10))
def test_torch_solves_any_task_vectors_as_numpy_does(method, parameters, data):
    """Within 1e-10, and where rounding is amplified, near what rounding the task vectors changes for NumPy alone."""
    shape = data.draw(st.tuples(st.integers(1, 24), st.integers(1, 24)), label="shape")
    count = data.draw(st.integers(1, 4), label="agents")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    moved = data.draw(st.sampled_from([0.1, 0.5, 1.0]), label="share that moved")
    scales = data.draw(st.lists(st.sampled_from([0.01, 1.0, 30.0]), min_size=count, max_size=count), label="scales")
    taus = [scale * rng.standard_normal(shape) * (rng.random(shape) < moved) for scale in scales]
    here = merged(CPU, method, taus, parameters)
    there = merged(Solver(TORCH_CPU, _refuse), method, taus, parameters)
    largest = max(np.abs(tau).max() for tau in (here, *taus))
    amplified = 0.0
    if np.abs(there - here).max() > 1e-10 * largest:
        for _ in range(4):
            rounded = [tau * (1 + 2.0**-52 * rng.standard_normal(shape)) for tau in taus]
            amplified = max(amplified, np.abs(merged(CPU, method, rounded, parameters) - here).max())
    assert np.abs(there - here).max() <= 1e-10 * largest + 30 * amplified


def _refuse(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("method", "shape"),
    some(
        [(m, s) for m in SPECTRAL for s in LARGE],
        fast=[("tsvm", LARGE[0]), ("swudi", LARGE[1])],
        full=[(m, LARGE[place % 3]) for place, m in enumerate(SPECTRAL)],
    ),
)
def test_vectors_refined_from_float32_are_those_of_float64(method, shape, monkeypatch):
    device, refined = solver._Device(TORCH_CPU), []
    device.refines = True
    monkeypatch.setattr(solver, "_device", lambda _name: device)

    def watched(x: Any, real: Any = arrays._refined_eigh) -> Any:
        found = real(x)
        refined.append(found is not None)
        return found

    monkeypatch.setattr(arrays, "_refined_eigh", watched)
    for taus in (random(shape), low_rank(shape)):
        here = merged(CPU, method, taus, {})
        there = merged(Solver(TORCH_CPU, _refuse), method, taus, {})
        assert np.linalg.norm(there - here) <= 1e-6 * np.linalg.norm(here)
    assert False in refined  # low ranks are left to float64
    assert True in refined or (method, shape) == ("iso_c", LARGE[2])  # the sum of square matrices is nearly singular


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("capability", "hip", "slow"),
    [
        ((9, 0), None, False),
        ((8, 0), None, False),
        ((8, 9), None, True),
        ((9, 4), "6.2", False),
        ((11, 0), "6.2", True),
    ],
)
def test_consumer_gpus_refine_from_float32(capability, hip, slow, tmp_path: Path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert solver.is_slow_in_float64("cuda:0") == slow and not solver.is_slow_in_float64(TORCH_CPU)
    monkeypatch.setattr(resources, "choose_device", lambda _text: torch.device("cuda:0"))
    monkeypatch.setattr(resources, "device_name", str)
    monkeypatch.setattr(resources, "is_sound", lambda _device: True)
    monkeypatch.setattr(resources, "_device_room", lambda _device: 1 << 40)
    plan = ramerge.plan(recipe(tmp_path, write_simple(tmp_path), "tsvm"), options=ramerge.Options(device="cuda"))
    assert ("refined from float32" in plan.to_dict()["device"]) == slow


@pytest.mark.needs("torch")
@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.family == "spectral"])
@pytest.mark.parametrize("dtype", some(["BF16", "F32", "F64"], full=["BF16"]))
def test_whole_merges_are_the_same_on_torch(method, dtype, tmp_path: Path):
    source = recipe(tmp_path, write_simple(tmp_path, dtype=dtype), method)
    for out, device in (("here", "cpu"), ("there", TORCH_CPU)):
        plan = planned(source, tmp_path / out)
        on = replace(plan.resources, device=device, device_name=device, device_bytes=1 << 40)
        (record,) = execute(replace(plan, resources=on), ThreadExecutor(2))
        assert record.device == device and not any(device in text for text in record.warnings)
    here, there = (read_checkpoint(tmp_path / out) for out in ("here", "there"))
    for name, tensor in here.items():
        left, right = tensor.numbers(np.float64), there[name].numbers(np.float64)
        assert np.allclose(left, right, rtol=2**-7 if dtype == "BF16" else 1e-6, atol=1e-7), name


@pytest.mark.needs("torch")
@pytest.mark.parametrize("method", SPECTRAL)
def test_torch_merges_experts_as_the_reference(method, tmp_path: Path):
    """Each expert by itself, whatever the order in which threads send them to a device."""
    shapes = {"block_sparse_moe.gate": (4, 9)}  # the reference of resmerge knows no families of names
    for expert in range(4):
        shapes |= {f"block_sparse_moe.experts.{expert}.w1": (6, 9), f"block_sparse_moe.experts.{expert}.w2": (9, 6)}
    models = {}
    for number, name in enumerate(("base", "a", "b", "c")):
        rng = np.random.default_rng(number)
        numbers = {f"model.layers.0.{key}.weight": rng.standard_normal(shape) for key, shape in shapes.items()}
        models[name] = {key: floats(each, "F64") for key, each in numbers.items()}
        write_checkpoint(tmp_path / name, models[name])
    base = models.pop("base")
    expected = getattr(reference, method)(base, models)
    for device in ("cpu", TORCH_CPU):
        plan = planned(recipe(tmp_path, ["a", "b", "c"], method), tmp_path / f"out {device}")
        on = replace(plan.resources, device=device, device_name=device, device_bytes=1 << 40)
        execute(replace(plan, resources=on), ThreadExecutor(3))
        found = read_checkpoint(tmp_path / f"out {device}")
        for name, tensor in expected.items():
            left, right = found[name].numbers(np.float64), tensor.numbers(np.float64)
            assert np.abs(left - right).max() <= 1e-6 * np.abs(right).max(), name


@pytest.mark.needs("torch")
def test_torch_on_the_cpu_computes_soundly():
    assert is_sound(TORCH_CPU)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("CUDA out of memory. Tried to allocate 9 GiB", "out of memory"),
        ("cusolver error: 7", "cusolver error"),
        ("", ""),
    ],
)
def test_failing_device_is_left_out_with_warning(error, text, monkeypatch):
    device, seen = solver._Device(TORCH_CPU), []
    monkeypatch.setattr(solver, "_device", lambda _name: device)
    monkeypatch.setattr(
        device, "_solve", lambda *_args: (seen.append(1), (_ for _ in ()).throw(RuntimeError(error)))[0]
    )
    warned: list[str] = []
    tau = np.random.default_rng(0).standard_normal((5, 9))
    for _ in range(3):
        found = Solver(TORCH_CPU, warned.append).solve(lambda taus: spectral.polar(taus[0]), [tau])
        np.testing.assert_array_equal(found, spectral.polar(tau))
    assert len(warned) == 1 and text in warned[0] and "CPU" in warned[0]
    assert len(seen) == (1 if "memory" in error else 3)  # what did not fit is not tried again


@pytest.mark.needs("torch")
def test_next_matrices_are_read_during_solving(tmp_path: Path, monkeypatch):
    """Bounded by the threads: two matrices are being solved for, and one more is read."""
    shape, threads = (6, 9), solver.SIDE_BY_SIDE + 1
    for number, name in enumerate(("base", "a", "b")):
        rng = np.random.default_rng(number)
        tensors = {f"model.layers.{layer}.weight": floats(rng.standard_normal(shape), "F32") for layer in range(6)}
        write_checkpoint(tmp_path / name, tensors)
    device, arrived, solving = solver._Device(TORCH_CPU), threading.Barrier(threads), [0]
    most, lock = [0], threading.Lock()
    inner, outer = device._solve, device.solve

    def solve_when_all_are_here(*args: Any) -> Any:
        with lock:
            solving[0] += 1
            most[0] = max(most[0], solving[0])
        try:
            return inner(*args)
        finally:
            with lock:
                solving[0] -= 1

    def read(*args: Any) -> Any:
        arrived.wait(timeout=30)  # a matrix is read; the device waits until the others are as well
        return outer(*args)

    monkeypatch.setattr(solver, "_device", lambda _name: device)
    monkeypatch.setattr(device, "_solve", solve_when_all_are_here)
    monkeypatch.setattr(device, "solve", read)
    plan = planned(recipe(tmp_path, ["a", "b"], "tsvm"), tmp_path / "out")
    on = replace(plan.resources, device=TORCH_CPU, device_name=TORCH_CPU, device_bytes=1 << 40)
    execute(replace(plan, resources=on), ThreadExecutor(threads))
    assert 1 <= most[0] <= solver.SIDE_BY_SIDE


@pytest.mark.needs("torch")
def test_too_large_matrix_never_reaches_the_device(tmp_path: Path, monkeypatch):
    source = recipe(tmp_path, write_simple(tmp_path, dtype="F32"), "tsvm")
    monkeypatch.setattr(solver, "_device", lambda name: pytest.fail(name))
    for out, placement in (("a", {}), ("b", {"device": TORCH_CPU, "device_bytes": 1 << 12})):
        plan = planned(source, tmp_path / out)
        execute(replace(plan, resources=replace(plan.resources, **placement)), ThreadExecutor(2))
    left, right = (read_checkpoint(tmp_path / out) for out in "ab")
    assert all(left[name].bits.tobytes() == right[name].bits.tobytes() for name in left)


@pytest.mark.needs("torch")
def test_float64_that_a_device_lacks_is_computed_here(monkeypatch):
    device = solver._Device(TORCH_CPU)
    monkeypatch.setattr(solver, "_device", lambda _name: device)

    def lacking(*_args: object) -> None:
        raise DoubleMissingError

    monkeypatch.setattr(device, "_solve", lacking)
    warned: list[str] = []
    assert Solver(TORCH_CPU, warned.append).solve(lambda taus: 2 * taus[0], [np.ones(3)]).tolist() == [2, 2, 2]
    assert not warned


@pytest.mark.needs("torch")
def test_a_failure_becomes_a_warning_of_the_record(tmp_path: Path, monkeypatch):
    source = recipe(tmp_path, write_simple(tmp_path, dtype="F32"), "tsvm")
    device = solver._Device(TORCH_CPU)
    monkeypatch.setattr(solver, "_device", lambda _name: device)

    def full(*_args: object) -> None:
        raise RuntimeError("MPS backend out of memory")

    monkeypatch.setattr(device, "_solve", full)
    for out, placement in (("a", {}), ("b", {"device": TORCH_CPU, "device_bytes": 1 << 40})):
        plan = planned(source, tmp_path / out)
        (record,) = execute(replace(plan, resources=replace(plan.resources, **placement)), ThreadExecutor(2))
        assert sum("out of memory" in text for text in record.warnings) == (out == "b")
    left, right = (read_checkpoint(tmp_path / out) for out in "ab")
    assert all(left[name].bits.tobytes() == right[name].bits.tobytes() for name in left)


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_device_that_is_no_name_is_refused(tmp_path: Path, messages: Messages):
    source = recipe(tmp_path, write_simple(tmp_path), "tsvm")
    for text in ("gpu", "cuda:x", "", "torch:cpu"):
        with messages.raises(ramerge.RecipeError):
            ramerge.plan(source, options=ramerge.Options(device=text))


def test_missing_device_stops_methods_that_need_it(tmp_path: Path):
    names = write_simple(tmp_path)
    options = ramerge.Options(device="cuda:7")
    (problem,) = ramerge.plan(recipe(tmp_path, names, "tsvm"), options=options).problems
    assert problem.startswith("device: ")
    assert not ramerge.plan(recipe(tmp_path, names, "ram"), options=options).problems


def test_auto_uses_gpus_for_large_matrices(tmp_path: Path, monkeypatch):
    looked: list[int] = []
    monkeypatch.setattr(resources, "may_have_gpu", lambda: bool(looked.append(1)))
    source = recipe(tmp_path, write_simple(tmp_path), "tsvm")
    assert ramerge.plan(source).to_dict()["device"] == "cpu" and not looked
    monkeypatch.setattr(resources, "LARGE", 1)
    assert ramerge.plan(source).to_dict()["device"] == "cpu" and looked


@pytest.mark.parametrize(
    ("room", "sound", "text"),
    [(1 << 40, True, ""), (1 << 12, True, "matrices need more"), (1 << 40, False, "as the CPU does")],
)
def test_plans_name_device_and_misfits(room, sound, text, tmp_path: Path, monkeypatch):
    class Named:
        type = "cuda"

        def __str__(self) -> str:
            return "cuda:0"

    monkeypatch.setattr(resources, "choose_device", lambda _text: Named())
    monkeypatch.setattr(resources, "device_name", lambda _device: "cuda:0 (a GPU)")
    monkeypatch.setattr(resources, "is_sound", lambda _device: sound)
    monkeypatch.setattr(resources, "is_slow_in_float64", lambda _device: False)
    monkeypatch.setattr(resources, "_device_room", lambda _device: room)
    plan = ramerge.plan(recipe(tmp_path, write_simple(tmp_path), "tsvm"), options=ramerge.Options(device="cuda"))
    assert plan.to_dict()["device"] == ("cuda:0 (a GPU)" if sound else "cpu")
    rows = [line for line in plan.explain().splitlines() if line.startswith("device ")]
    assert [row.endswith("  cuda:0 (a GPU)") for row in rows] == [True] * sound
    assert not text or any(text in line for line in (*plan.notes, *plan.warnings))


def test_models_of_half_a_billion_parameters_are_large():
    """The figure of the documentation: Qwen2.5-0.5B has 24 layers of these matrices."""
    shapes = [(896, 896), (128, 896), (128, 896), (896, 896), (4864, 896), (4864, 896), (896, 4864)]
    total = 24 * sum(map(resources._gram_operations, shapes))
    assert round(total / 1e11) == 3 and total > resources.LARGE
