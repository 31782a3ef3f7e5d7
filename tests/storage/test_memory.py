"""Models from and to a bucket that lies in memory: what `make test` tries without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.storage.schemes import open_remote
from ramerge.core.tensors.reader import Files
from tests.checkpoints import recipe, simple, write_checkpoint, write_simple
from tests.e2e import kills
from tests.engine.test_uploads import as_written_here
from tests.messages import Messages
from tests.storage.memory import Memory

METHODS = ("ram+", "ties", "tsvm")


@pytest.fixture(autouse=True)
def stage(own_cache: Path) -> Path:
    """Where files lie until they are sent."""
    return own_cache / "outputs"


def there(memory: Memory, source: dict[str, Any], run: str) -> dict[str, Any]:
    """The recipe, of models in the bucket."""
    agents = {name: memory.put(Path(place), f"{run}/{name}") for name, place in source["agents"].items()}
    return source | {"base": memory.put(Path(source["base"]), f"{run}/base"), "agents": agents}


@pytest.mark.parametrize("method", METHODS)
def test_bucket_merges_equal_folder_merges(method: str, memory: Memory, tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), method) | {"shard_size": "2KB"}
    ramerge.merge(source, tmp_path / "here", options=ramerge.Options(cache=False))
    wanted = kills.weights(tmp_path / "here")
    ramerge.merge(there(memory, source, "inputs"), "gs://models/out", options=ramerge.Options(cache=False))
    found = as_written_here(memory.files("out"))
    assert found == wanted and len(wanted) > 3


def test_deltas_come_from_and_go_to_a_bucket(memory: Memory, tmp_path: Path) -> None:
    write_simple(tmp_path)
    base, code = (memory.put(tmp_path / name, name) for name in ("base", "code"))
    ramerge.delta(base, code, "gs://models/delta")
    ramerge.apply(base, "gs://models/delta", tmp_path / "whole")
    assert kills.weights(tmp_path / "whole") == kills.weights(tmp_path / "code")


def test_ranges_of_any_size(memory: Memory, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
    (tmp_path / "some").mkdir()
    data.tofile(tmp_path / "some/bytes")
    place = open_remote(memory.put(tmp_path / "some", "some")) / "bytes"
    with Files() as files:
        for start, size in ((0, 1), (7, 100_000), (299_999, 1), (0, 300_000), (5, 0)):
            out = np.empty(size, np.uint8)
            files.fill(place, start, out)
            assert np.array_equal(out, data[start : start + size])


def test_an_object_that_changes_after_planning(memory: Memory, tmp_path: Path, messages: Messages) -> None:
    source = there(memory, recipe(tmp_path, write_simple(tmp_path)), "changing")
    plan = ramerge.plan(source, tmp_path / "out")
    memory.put(write_checkpoint(tmp_path / "other", simple(9)), "changing/code")
    with messages.raises(ramerge.CheckpointError):
        plan.merge()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [("gs://models/nothing", "there is nothing under this name"), ("gs://models", "name a bucket and a folder")],
)
def test_what_is_not_there_is_said(place: str, said: str, memory: Memory, tmp_path: Path) -> None:
    write_simple(tmp_path)
    problems = ramerge.plan({"method": "ram", "base": str(tmp_path / "base"), "agents": {"a": place}}).problems
    assert len(problems) == 1 and said in problems[0]
