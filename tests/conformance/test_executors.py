"""Every method on every executor: the bytes of threads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramerge.engine.ranks import Rank
from ramerge.methods.table import METHODS
from tests import kills
from tests.conformance.test_merge import plain
from tests.executors import cluster
from tests.test_ranks import SECONDS, side_by_side

BLOCK = 512

Merge = Callable[[dict, Path], None]


def on_ranks(_request: pytest.FixtureRequest) -> Merge:
    """Three ranks, in threads of this process."""

    def merge(source: dict, out: Path) -> None:
        ranks = [Rank(number, 3, SECONDS) for number in range(3)]
        found = side_by_side([lambda rank=rank: kills.merge(source, out, block=BLOCK, rank=rank) for rank in ranks])
        assert found == [None] * 3

    return merge


def on_ray(request: pytest.FixtureRequest) -> Merge:
    """Two nodes of a cluster."""
    ray: Any = request.getfixturevalue("connected")
    return lambda source, out: cluster.merge(ray, source, out, block=BLOCK)


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
