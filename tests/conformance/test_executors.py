"""Every method on every executor: the bytes of threads."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.deltas import run
from ramerge.engine.ranks import Rank
from ramerge.methods.table import METHODS
from tests import kills
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.conformance.test_merge import plain
from tests.executors import cluster
from tests.test_deltas import files, large
from tests.test_ranks import SECONDS, side_by_side

BLOCK = 512

Merge = Callable[..., None]


def on_ranks(_request: pytest.FixtureRequest) -> Merge:
    """Three ranks, in threads of this process."""

    def merge(source: dict, out: Path, **more: Any) -> None:
        options = {"block": BLOCK, **more}
        ranks = [Rank(number, 3, SECONDS) for number in range(3)]
        found = side_by_side([lambda rank=rank: kills.merge(source, out, rank=rank, **options) for rank in ranks])
        assert found == [None] * 3

    return merge


def on_ray(request: pytest.FixtureRequest) -> Merge:
    """Two nodes of a cluster."""
    ray: Any = request.getfixturevalue("connected")
    return lambda source, out, **more: cluster.merge(ray, source, out, **{"block": BLOCK, **more})


EXECUTORS = {"ranks": on_ranks, "ray": on_ray}
# A cluster takes all methods in one test, because it would start in each process of tests.
TOGETHER = {**{f"ranks-{method}": ("ranks", [method]) for method in METHODS}, "ray": ("ray", list(METHODS))}


@pytest.mark.parametrize(("executor", "methods"), TOGETHER.values(), ids=TOGETHER)
def test_every_method_gives_the_bytes_of_threads(
    executor: str, methods: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    merge = EXECUTORS[executor](request)
    for method in methods:
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
        kills.merge(source, tmp_path / f"threads {block}", block=block, as_delta=True)
        merge(source, tmp_path / f"{executor} {block}", block=block, as_delta=True)
        found = [kills.weights(tmp_path / f"{each} {block}") for each in ("threads", executor)]
        assert found[0] == found[1]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_delta_gives_the_bytes_of_threads(
    executor: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    if executor == "ray":
        request.getfixturevalue("connected")
        records = [ramerge.delta(*inputs, tmp_path / "out", executor="ray")]
    else:
        records = []
        monkeypatch.setattr(run, "chosen_rank", lambda *_: Rank(int(threading.current_thread().name), 3, SECONDS))

        def one(number: int) -> None:
            threading.current_thread().name = str(number)
            records.append(ramerge.delta(*inputs, tmp_path / "out", executor="ranks"))

        assert side_by_side([lambda number=number: one(number) for number in range(3)]) == [None] * 3
    assert files(tmp_path / "out") == files(tmp_path / "threads")
    for record in records:
        assert replace(record, seconds=wanted.seconds) == wanted
    assert kills.beside(tmp_path / "out") == []
