"""Every method on a cluster: the bytes of threads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.methods.registry import METHODS
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.conformance.methods import one_of_each_kind
from tests.conformance.test_merge import plain
from tests.deltas.test_deltas import files, large
from tests.e2e import kills
from tests.engine.executors import cluster

pytestmark = pytest.mark.full  # Ray

BLOCK = 512

Merge = Callable[..., None]


@pytest.fixture
def on_ray(connected: Any) -> Merge:
    """Two nodes of a cluster."""
    return lambda source, out, **more: cluster.merge(connected, source, out, **{"block": BLOCK, **more})


@pytest.mark.parametrize("method", one_of_each_kind(METHODS))
def test_every_method_gives_the_bytes_of_threads(method: str, on_ray: Merge, tmp_path: Path) -> None:
    source = plain(tmp_path, method)[0]
    kills.merge(source, tmp_path / "threads", block=BLOCK)  # first, because it compiles what the others load
    on_ray(source, tmp_path / "ray")
    assert kills.weights(tmp_path / "ray") == kills.weights(tmp_path / "threads")


def test_merge_as_delta_gives_the_bytes_of_threads(on_ray: Merge, tmp_path: Path) -> None:
    """Blocks that are compared at once, and blocks that are not blocks of a delta."""
    for name, moved in (("base", 0), ("a", 0.1), ("b", 0.3)):
        large(tmp_path / name, len(name) + int(100 * moved), moved)
    source = recipe(tmp_path, ["a", "b"])
    for block in (1 << 19, 100_000):
        kills.merge(source, tmp_path / f"threads {block}", block=block, kind="delta")
        on_ray(source, tmp_path / f"ray {block}", block=block, kind="delta")
        found = [kills.weights(tmp_path / f"{each} {block}") for each in ("threads", "ray")]
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
