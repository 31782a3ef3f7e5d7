"""What is refused while reading, and that nothing is left behind."""

import ast
import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.engine.record import read_record
from ramerge.core.foundation import files
from ramerge.core.methods.means import MeanMethod
from ramerge.core.methods.registry import METHODS
from ramerge.core.output import write
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint, write_simple
from tests.conformance.methods import one_of_each_kind
from tests.messages import Messages
from tests.reference import Stored


def with_value(tensors, name: str, place: int, value: float):
    bits = tensors[name].bits.copy()
    bits.reshape(-1)[place] = floats([value]).bits[0]
    return {**tensors, name: Stored("BF16", bits)}


@pytest.mark.parametrize("method", ["ram", "ram+"])
def test_non_finite_weights_are_located_and_counted(method: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    bad = with_value(simple(2, moved=0.4), "model.layers.1.weight", 5, np.nan)
    bad = with_value(bad, "model.layers.1.weight", 600, np.inf)
    write_checkpoint(tmp_path / "tool", bad)
    write_checkpoint(tmp_path / "memory", with_value(simple(3, moved=0.5), "model.layers.2.weight", 0, -np.inf))
    with pytest.raises(ramerge.WeightsError) as raised:
        ramerge.merge(recipe(tmp_path, names, method), tmp_path / "out")
    first, second = raised.value.problems
    assert "tool: tensor 'model.layers.1.weight' holds 2 NaN or Inf" in first
    assert "use another checkpoint of that training; allow.non_finite: true in the recipe computes with them" in first
    assert "memory: tensor 'model.layers.2.weight' holds 1 NaN or Inf" in second
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["base", *names])
    ramerge.merge(recipe(tmp_path, names, method, allow={"non_finite": True}), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")["model.layers.1.weight"].numbers(np.float32)
    assert np.isinf(found.reshape(-1)[600])


def test_mostly_bad_agent_is_one_problem(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    bad = simple(2, moved=0.4)
    for place, name in enumerate(bad):
        for element in range(place + 1):
            bad = with_value(bad, name, element, np.nan)
    write_checkpoint(tmp_path / "tool", bad)
    write_checkpoint(tmp_path / "memory", with_value(simple(3, moved=0.5), "model.layers.2.weight", 0, np.inf))
    with pytest.raises(ramerge.WeightsError) as raised:
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    most, one = sorted(raised.value.problems, key=lambda problem: ": memory: " in problem)
    named = ", ".join(f"'model.layers.{layer}.weight' ({layer + 1})" for layer in range(3))
    assert f": tool: 3 of 3 tensors hold NaN or Inf: {named}; the training diverged" in most
    assert ": memory: tensor 'model.layers.2.weight' holds 1 NaN or Inf; " in one


@pytest.mark.parametrize("method", one_of_each_kind(name for name, method in METHODS.items() if method.side is None))
def test_allowed_non_finite_weights_spoil_no_others(method: str, tmp_path: Path) -> None:
    name, place = "model.layers.1.weight", 5
    names = write_simple(tmp_path)[: METHODS[method].most]
    write_checkpoint(tmp_path / names[-1], with_value(simple(2, moved=0.4), name, place, np.nan))
    merged = recipe(tmp_path, names, method, allow={"non_finite": True})
    try:
        record = ramerge.merge(merged, tmp_path / "out")
    except ramerge.WeightsError as error:
        (problem,) = error.problems
        assert f"{names[-1]}: tensor {name!r} holds 1 NaN or Inf" in problem
        assert f"{method} computes each element of this tensor from others" in problem
        record = ramerge.merge({**merged, "rules": [{"match": name, "take": names[-1]}]}, tmp_path / "out")
    (said,) = [warning for warning in record.warnings if "NaN or Inf" in warning]
    named = "the agents" if isinstance(METHODS[method], MeanMethod) else names[-1]
    assert f"{named}: 1 of 640 values are NaN or Inf in tensor {name!r}" in said
    assert record.non_finite == {named: 1}
    found = {name: tensor.numbers(np.float32).reshape(-1) for name, tensor in read_checkpoint(tmp_path / "out").items()}
    assert np.isfinite(np.delete(found.pop(name), place)).all()
    assert all(np.isfinite(tensor).all() for tensor in found.values())


def test_methods_that_spoil_others_are_refused_in_sweeps(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    write_checkpoint(tmp_path / "tool", with_value(simple(2, moved=0.4), "model.layers.1.weight", 5, np.inf))
    swept = recipe(tmp_path, names, "breadcrumbs", allow={"non_finite": True}, parameters={"density": 0.5})
    with messages.raises(ramerge.WeightsError):
        ramerge.sweep(swept, tmp_path / "out", vary={"parameters.rescale": [False, True]})
    ramerge.sweep(swept, tmp_path / "out", vary={"parameters.rescale": [False]})


@pytest.mark.parametrize("method", ["ram", "ram+", "linear", "ties", "dare"])
def test_allowed_non_finite_weights_are_counted_per_input(method: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    tool = {name: Stored("BF16", floats(np.full(one.bits.shape, np.nan)).bits) for name, one in simple(2).items()}
    write_checkpoint(tmp_path / "tool", tool)
    memory = with_value(simple(3, moved=0.5), "model.layers.2.weight", 0, -np.inf)
    write_checkpoint(tmp_path / "memory", with_value(memory, "model.layers.0.weight", 7, np.nan))
    allowed = recipe(tmp_path, names, method, allow={"non_finite": True})
    for threads in (1, 3):
        record = ramerge.merge(allowed, tmp_path / "out", options=ramerge.Options(threads=threads, overwrite=True))
        every = sum(one.bits.size for one in tool.values())
        assert record.non_finite == {"tool": every, "memory": 2}
        said = [warning for warning in record.warnings if "NaN or Inf" in warning]
        assert f"tool: {every:,} of {every:,} values" in said[0]
        assert "memory: 2 of" in said[1] and "in 2 tensors, first 'model.layers.0.weight'" in said[1]
    assert read_record(tmp_path / "out/ramerge.json").non_finite == record.non_finite
    with pytest.raises(ramerge.WeightsError, match="memory: 2 of"):
        ramerge.merge(allowed, tmp_path / "strict", options=ramerge.Options(strict=True))
    clean = recipe(tmp_path, names[:1], method, allow={"non_finite": True})
    assert not ramerge.merge(clean, tmp_path / "clean").non_finite


def test_an_overflow_that_is_allowed_is_warned_of(tmp_path: Path, messages: Messages) -> None:
    for name, value in (("base", 30_000.0), ("code", 50_000.0), ("tool", 60_000.0)):
        write_checkpoint(tmp_path / name, {"w": Stored("F16", np.full(8, value, np.float16).view(np.uint16))})
    summed = recipe(tmp_path, ["code", "tool"], "task_arithmetic")
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(summed, tmp_path / "out")
    record = ramerge.merge({**summed, "allow": {"non_finite": True}}, tmp_path / "out")
    assert not record.non_finite
    messages.check(*record.warnings)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_analysis_warns_of_allowed_non_finite_weights(bad: float, tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    write_checkpoint(tmp_path / "tool", with_value(simple(2, moved=0.4), "model.layers.1.weight", 5, bad))
    found = ramerge.analyze(recipe(tmp_path, names, allow={"non_finite": True}))
    messages.check(*found.warnings)


def test_non_finite_in_the_base(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    write_checkpoint(tmp_path / "base", with_value(simple(0), "model.layers.0.weight", 9, np.nan))
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")


def test_an_agent_without_numbers_is_not_described(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    tool = {name: Stored("BF16", floats(np.full(one.bits.shape, np.nan)).bits) for name, one in simple(2).items()}
    write_checkpoint(tmp_path / "tool", tool)
    (finding,) = ramerge.analyze(recipe(tmp_path, names[:2], allow={"non_finite": True})).findings
    messages.check(finding.text)
    record = ramerge.merge(recipe(tmp_path, names, "ties", allow={"non_finite": True}), tmp_path / "out")
    messages.check(*(note for note in record.notes if note.startswith("tool: ")))


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_companion_that_is_no_file_is_refused(kind: str, tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "base" / "chat_templates").mkdir()  # folders as such are no fault
    make = os.mkfifo if kind == "fifo" else os.mkdir
    make(tmp_path / "base" / "tokenizer.json")
    with messages.raises(ramerge.PlanError):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")


def test_a_result_beyond_the_output_dtype(tmp_path: Path, messages: Messages) -> None:
    for name, value in (("base", 1.0), ("a", 1e5)):
        write_checkpoint(tmp_path / name, {"w": floats([value, 0.5], "F32")})
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(recipe(tmp_path, ["a"], dtype="float16"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    ramerge.merge(recipe(tmp_path, ["a"], dtype="bfloat16"), tmp_path / "out")


def test_integer_tensors_must_be_equal(tmp_path: Path, messages: Messages) -> None:
    for name, last in (("base", 3), ("a", 3), ("b", 4)):
        tensors = {**simple(0), "ids": Stored("I64", np.array([1, 2, last]))}
        write_checkpoint(tmp_path / name, tensors)
    with pytest.raises(ramerge.WeightsError) as raised:
        ramerge.merge(recipe(tmp_path, ["a", "b"]), tmp_path / "out")
    (problem,) = raised.value.problems
    messages.check(problem)


def test_a_file_that_shrinks_after_planning(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    plan = ramerge.plan(recipe(tmp_path, names), tmp_path / "out")
    path = tmp_path / "tool" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with messages.raises(ramerge.CheckpointError):
        plan.merge()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("call", ["write_at", "posix_fallocate", "fsync"])
def test_a_full_disk_leaves_nothing(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = write_simple(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files if call == "write_at" else write.os, call, full)
    with pytest.raises(ramerge.OutputError, match="disk is full"):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["base", *names])


def test_progress_counts_every_byte_of_every_pass(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    events: list[ramerge.Progress] = []
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out", on_progress=events.append)
    last = {event.stage: event for event in events}
    assert list(last) == ["counting", "merging"]
    assert all(event.done == event.total for event in last.values())
    assert sum(event.total for event in last.values()) == record.bytes_read


def test_an_error_of_the_listener_ends_the_merge(tmp_path: Path) -> None:
    names = write_simple(tmp_path)

    def fail(_: ramerge.Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out", on_progress=fail)
    assert not (tmp_path / "out").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-")]


def test_an_existing_output_is_replaced_only_when_asked(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names, "ram"), tmp_path / "out")
    before = (tmp_path / "out/ramerge.json").read_text()
    with pytest.raises(ramerge.PlanError, match="exists"):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert (tmp_path / "out/ramerge.json").read_text() == before
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out", options=ramerge.Options(overwrite=True))
    assert (tmp_path / "out/ramerge.json").read_text() != before


def test_the_resolved_recipe_gives_the_same_bytes(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names, "ram+", preset="official"), tmp_path / "out")
    ramerge.merge(tmp_path / "out" / "ramerge.yaml", tmp_path / "again")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()


@pytest.mark.parametrize("out", ["out", "far/away/out", "home/me/out"])
def test_outputs_show_no_home_folder(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home/me"
    (home / "models").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    names = write_simple(home / "models")
    ramerge.merge(recipe(home / "models", names), tmp_path / out)
    for name in ("ramerge.yaml", "ramerge.json", "README.md"):
        text = (tmp_path / out / name).read_text()
        assert str(tmp_path) not in text and "home/me" not in text, name
    monkeypatch.chdir("/")
    ramerge.merge(tmp_path / out / "ramerge.yaml", tmp_path / "again")
    assert (tmp_path / out / "model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()


def test_a_folder_moves_with_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    names = write_simple(tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    record = ramerge.merge({"base": "base", "agents": {name: name for name in names}}, "out")
    assert record.base == "base" and "base: ../base" in Path("out/ramerge.yaml").read_text()
    (tmp_path / "there").rename(tmp_path / "moved")
    ramerge.merge(tmp_path / "moved/out/ramerge.yaml", tmp_path / "again")


def test_the_public_names_are_sorted_complete_and_there() -> None:
    stub = ast.parse(Path(ramerge.__file__).with_suffix(".pyi").read_text())
    (stated,) = (ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert stated == sorted(ramerge.__all__)
    for name in stated:
        assert name == "__version__" or getattr(ramerge, name).__name__ == name
    assert callable(ramerge.plan)
    with pytest.raises(AttributeError):
        _ = ramerge.nothing


def test_what_was_planned_is_what_is_run(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    plan = ramerge.plan({**source, "parameters": {"r": 0.3}}, tmp_path / "planned", options=ramerge.Options(threads=1))
    record = plan.merge()
    ramerge.merge({**source, "parameters": {"r": 0.3}}, tmp_path / "direct")
    assert record.parameters["r"] == 0.3
    assert (tmp_path / "planned/model.safetensors").read_bytes() == (tmp_path / "direct/model.safetensors").read_bytes()


def test_a_plan_can_be_merged_to_other_places(tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    plan = ramerge.plan(source, options=ramerge.Options(threads=1, strict=True))
    with messages.raises(ramerge.RecipeError):
        plan.merge()
    with messages.raises(ramerge.RecipeError):
        ramerge.merge(plan, tmp_path / "out")
    first, second = plan.merge(tmp_path / "one"), plan.merge(tmp_path / "two")
    assert first.agents == second.agents
    with pytest.raises(ramerge.PlanError, match="exists"):
        plan.merge(tmp_path / "one")
    swept = ramerge.plan(source, tmp_path / "out", vary={"parameters.r": [0, 1]})
    assert len(swept.merge()) == 2
    with messages.raises(ramerge.RecipeError):
        ramerge.sweep(source, tmp_path / "swept", vary={})


def test_a_loop_that_ends_early_ends_the_merge(tmp_path: Path) -> None:
    before = threading.active_count()
    for tensor in ramerge.plan(recipe(tmp_path, write_simple(tmp_path))).tensors():
        assert tensor.data.size
        break
    assert threading.active_count() == before
    with ramerge.plan(recipe(tmp_path, ["code"])).tensors() as tensors:
        assert next(tensors).numpy().dtype == np.float32
    assert threading.active_count() == before and not tensors.records


def test_errors_are_raised_in_the_tensor_loop(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    write_checkpoint(tmp_path / "tool", with_value(simple(2, moved=0.4), "model.layers.1.weight", 5, np.nan))
    with pytest.raises(ramerge.WeightsError, match="NaN"):
        list(ramerge.plan(recipe(tmp_path, names)).tensors())
    seen = []
    list(
        ramerge.plan(recipe(tmp_path, ["code"])).tensors(on_progress=lambda _: seen.append(threading.current_thread()))
    )
    assert {*seen} == {threading.main_thread()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_memory_merge_gives_the_bytes_of_folders(dtype: str, tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path)) | {"dtype": dtype}
    found: dict[str, bytes] = {}
    numbers: dict[str, np.ndarray] = {}
    tensors = ramerge.plan(source).tensors()
    for tensor in tensors:
        found[tensor.name] = tensor.data.tobytes()
        numbers[tensor.name] = tensor.numpy()
    merged = ramerge.merge(source, tmp_path / "out")
    stored = read_checkpoint(tmp_path / "out")
    assert {name: tensor.bits.tobytes() for name, tensor in stored.items()} == found
    real = np.dtype("float32" if dtype == "bfloat16" else dtype)
    for name, tensor in stored.items():
        assert numbers[name].dtype == real
        np.testing.assert_array_equal(numbers[name], tensor.numbers(real.type), strict=True)
    (in_memory,) = tensors.records
    assert {name: agent.values for name, agent in in_memory.agents.items()} == {
        name: agent.values for name, agent in merged.agents.items()
    }
    assert list(tensors) == []
