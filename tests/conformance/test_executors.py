"""Every method on every executor: the bytes of threads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.methods.registry import METHODS
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.conformance.test_merge import plain
from tests.deltas.test_deltas import files, large
from tests.e2e import kills
from tests.engine.executors import cluster

pytestmark = pytest.mark.full  # Ray

BLOCK = 512

Merge = Callable[..., None]


def on_ray(request: pytest.FixtureRequest) -> Merge:
    """Two nodes of a cluster."""
    ray: Any = request.getfixturevalue("connected")
    return lambda source, out, **more: cluster.merge(ray, source, out, **{"block": BLOCK, **more})


EXECUTORS = {"ray": on_ray}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_method_gives_the_bytes_of_threads(executor: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    merge = EXECUTORS[executor](request)
    for method in METHODS:  # in one test, because a cluster would start in each process of tests
        folder = tmp_path / method
        folder.mkdir()
        source = plain(folder, method)[0]
        kills.merge(source, folder / "threads", block=BLOCK)  # first, because it compiles what the others load
        merge(source, folder / executor)
        assert kills.weights(folder / executor) == kills.weights(folder / "threads"), method


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_merge_as_a_delta_gives_the_bytes_of_threads(
    executor: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Blocks that are compared at once, and blocks that are not blocks of a delta."""
    merge = EXECUTORS[executor](request)
    for name, moved in (("base", 0), ("a", 0.1), ("b", 0.3)):
        large(tmp_path / name, len(name) + int(100 * moved), moved)
    source = recipe(tmp_path, ["a", "b"])
    for block in (1 << 19, 100_000):
        kills.merge(source, tmp_path / f"threads {block}", block=block, kind="delta")
        merge(source, tmp_path / f"{executor} {block}", block=block, kind="delta")
        found = [kills.weights(tmp_path / f"{each} {block}") for each in ("threads", executor)]
        assert found[0] == found[1]


@pytest.mark.usefixtures("connected")
def test_a_delta_gives_the_bytes_of_threads(tmp_path: Path) -> None:
    """With tensors that only one of both models has, or that differ in their dtype."""
    large(tmp_path / "base", 1, 0)
    large(tmp_path / "agent", 2, 0.2)
    for name, extra in (
        ("base", {"only": floats(np.ones(300_000)), "other": floats(np.ones(300_000), "F32")}),
        ("agent", {"new": floats(np.ones(300_000)), "other": floats(np.ones(300_000))}),
    ):
        write_checkpoint(tmp_path / f"{name} and more", read_checkpoint(tmp_path / name) | extra, shards=2)
    inputs = [tmp_path / f"{name} and more" for name in ("base", "agent")]
    wanted = ramerge.delta(*inputs, tmp_path / "threads")
    record = ramerge.delta(*inputs, tmp_path / "out", options=ramerge.Options(ray=ramerge.Ray()))
    assert files(tmp_path / "out") == files(tmp_path / "threads")
    assert replace(record, seconds=wanted.seconds) == wanted
    assert kills.left_behind(tmp_path / "out") == []
