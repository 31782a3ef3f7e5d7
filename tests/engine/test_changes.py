"""Inputs that change while they are read: never old counts on new weights, and the file is named."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import ramerge
from ramerge.core.foundation import store
from ramerge.core.planning import cached_counts
from ramerge.core.tensors import identity
from tests.checkpoints import floats, recipe, simple, write_checkpoint, write_simple
from tests.messages import Messages


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Counts would be kept, in a folder of their own, and a change shows however soon it comes."""
    monkeypatch.setattr(identity, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(cached_counts, "SETTLED_SECONDS", -1e6)
    monkeypatch.setattr(store, "folder", lambda kind: tmp_path / "cache" / kind)


def other(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def overwritten(path: Path) -> None:
    """Other weights, the same size and modification time."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(other(path.read_bytes()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    """Another file of the same size and modification time."""
    status = path.stat()
    replacement = path.with_name("replacement")
    replacement.write_bytes(other(path.read_bytes()))
    os.utime(replacement, ns=(status.st_atime_ns, status.st_mtime_ns))
    replacement.replace(path)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


CHANGES = [overwritten, replaced, truncated, Path.unlink]
Change = Callable[[Path], None]


def at(stage: str, path: Path, change: Change, *, end: bool = False) -> Callable[[ramerge.Progress], None]:
    """A listener that changes a file once, when a stage begins or ends."""
    done = []

    def listen(event: ramerge.Progress) -> None:
        if event.stage == stage and not done and event.done == (event.total if end else 0):
            done.append(event)
            change(path)

    return listen


@pytest.mark.parametrize("owner", ["base", "tool"])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change_between_counting_and_merging(
    owner: str, change: Change, tmp_path: Path, messages: Messages
) -> None:
    names = write_simple(tmp_path)
    path = tmp_path / owner / "model.safetensors"
    with pytest.raises(ramerge.CheckpointError) as raised:
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out", on_progress=at("merging", path, change))
    (problem,) = raised.value.problems
    messages.check(problem)
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name != "cache") == sorted(["base", *names])


@pytest.mark.parametrize("change", [overwritten, replaced])
def test_shard_changed_at_the_end_is_noticed(change: Change, tmp_path: Path, messages: Messages) -> None:
    for name, moved in (("base", 0.0), ("a", 0.3), ("b", 0.3)):
        write_checkpoint(tmp_path / name, simple(len(name), moved=moved), shards=3)
    path = tmp_path / "a" / "model-00002-of-00003.safetensors"
    listen = at("merging", path, change, end=True)
    with messages.raises(ramerge.CheckpointError):
        ramerge.merge(recipe(tmp_path, ["a", "b"]), tmp_path / "out", on_progress=listen)
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache").glob("counts/*"))


@pytest.mark.parametrize(
    "place", ["base/config.json", "a/config.json", "base/vocab.txt", "a/importance/model.safetensors"]
)
def test_other_files_that_change_during_a_merge(place: str, tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path, {"a": 0.3, "b": 0.3})
    (tmp_path / "base/vocab.txt").write_text("words")
    for name in ("a", "b"):
        tensors = {f"model.layers.{layer}.weight": floats([[1.0] * 16] * 40, "F32") for layer in range(3)}
        write_checkpoint(tmp_path / name / "importance", tensors)
    agents = {name: {"model": str(tmp_path / name), "importance": str(tmp_path / name / "importance")} for name in "ab"}
    source = {"method": "fisher", "base": str(tmp_path / "base"), "agents": agents}
    listen = at("merging", tmp_path / place, overwritten, end=True)
    with messages.raises(ramerge.CheckpointError):
        ramerge.merge(source, tmp_path / "out", on_progress=listen)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", CHANGES)
def test_counts_of_changing_files_are_not_kept(change: Change, tmp_path: Path, messages: Messages) -> None:
    path = tmp_path / "tool" / "model.safetensors"
    source = recipe(tmp_path, write_simple(tmp_path))
    with messages.raises(ramerge.CheckpointError):
        ramerge.analyze(source, on_progress=at("reading", path, change, end=True))
    assert not list((tmp_path / "cache").glob("counts/*"))


def test_headers_belong_to_the_files_that_are_read(tmp_path: Path, messages: Messages) -> None:
    from ramerge.core.engine.execute import execute
    from ramerge.core.engine.executors.threads import ThreadExecutor

    plan = ramerge.plan(recipe(tmp_path, write_simple(tmp_path)), tmp_path / "out")
    replaced(tmp_path / "tool/model.safetensors")
    with messages.raises(ramerge.CheckpointError):
        execute(plan.details, ThreadExecutor(1))


def test_fresh_file_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second write in the same step of the clock would show in no time of the file."""
    path = tmp_path / "file"
    path.write_text("a")
    slept: list[float] = []
    monkeypatch.setattr(identity, "TICK_SECONDS", 0.5)
    monkeypatch.setattr(identity.time, "sleep", slept.append)
    identity.identify([path])
    (seconds,) = slept
    assert 0 < seconds <= 0.5
    monkeypatch.setattr(identity.time, "time_ns", lambda: path.stat().st_ctime_ns + 500_000_001)
    identity.identify([path])
    assert len(slept) == 1


def test_clock_ahead_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    os.utime(path, (2e9, 4e9))
    slept: list[float] = []
    monkeypatch.setattr(identity, "TICK_SECONDS", 0.5)
    monkeypatch.setattr(identity.time, "sleep", slept.append)
    identity.identify([path])
    assert all(seconds <= 0.5 for seconds in slept)
