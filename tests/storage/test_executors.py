"""Models that several processes make and send to a bucket of a real S3 server."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramerge.checkpoint.storage.objects import MARKER
from ramerge.engine.ranks import Rank
from ramerge.foundation.errors import OutputWarning
from tests import kills
from tests.checkpoints import recipe, write_simple
from tests.executors import cluster
from tests.storage.killed import started
from tests.storage.seaweed import BUCKET, Server
from tests.storage.test_outputs import CASES, expected, found, left
from tests.test_ranks import SECONDS, side_by_side

WORLD = 3


@pytest.fixture(autouse=True)
def stage(own_cache: Path) -> Path:
    """Where files lie until they are sent, which all processes see."""
    return own_cache / "outputs"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}


def in_threads(source: dict[str, Any], out: str, world: int = WORLD, **options: Any) -> list[BaseException | None]:
    """Ranks in threads of this process; how each of them ended."""
    ranks = [Rank(number, world, SECONDS) for number in range(world)]
    return side_by_side([lambda rank=rank: kills.merge(source, out, rank=rank, **options) for rank in ranks])


def on_ranks(_request: pytest.FixtureRequest) -> Callable[[dict[str, Any], str], None]:
    def merge(source: dict[str, Any], out: str) -> None:
        assert in_threads(source, out) == [None] * WORLD

    return merge


def on_ray(request: pytest.FixtureRequest) -> Callable[[dict[str, Any], str], None]:
    ray: Any = request.getfixturevalue("connected")
    return lambda source, out: cluster.merge(ray, source, out, block=kills.BLOCK)


# A cluster takes all cases in one test, because it would start in each process of tests.
TOGETHER = {**{f"ranks-{case}": (on_ranks, [case]) for case in CASES}, "ray": (on_ray, list(CASES))}


@pytest.mark.parametrize(("executor", "cases"), TOGETHER.values(), ids=TOGETHER)
def test_the_output_is_that_of_threads(
    executor: Callable[..., Any],
    cases: list[str],
    s3: Server,
    source: dict[str, Any],
    stage: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    merge = executor(request)
    for case in cases:
        name = f"{executor.__name__}/{case.replace(' ', '-')}"
        merge(source | CASES[case], f"s3://{BUCKET}/{name}")
        assert found(s3, name) == expected(source | CASES[case], tmp_path / case)
        assert left(stage) == [] and MARKER not in s3.files(name)


MOMENTS = [("record", 3), ("record", 30), ("sent", 0), ("emptied", 1), ("put", 1), ("put", 4)]


@pytest.mark.parametrize(("what", "number"), MOMENTS)
@pytest.mark.parametrize("killed", [0, 2])
def test_a_killed_rank_ends_all_and_any_number_goes_on(
    killed: int, what: str, number: int, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    wanted, name = expected(source, tmp_path / "here"), f"ranks-killed/{killed}-{what}-{number}"
    out = f"s3://{BUCKET}/{name}"
    processes = [
        started(source, out, what if rank == killed else "never", number, rank=[rank, WORLD, 4.0])
        for rank in range(WORLD)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    codes = [process.returncode for process in processes]
    if codes != [0] * WORLD:  # a rank may be done before its moment comes
        assert codes[killed] == -signal.SIGKILL
        assert all(code == 1 and f"rank {killed} " in text for code, text in zip(codes, said, strict=True) if code > 0)
        assert MARKER in s3.files(name) and "model.safetensors.index.json" not in s3.files(name)
        assert left(stage)
        again = {key for key in s3.files(name) if key.endswith(".safetensors")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutputWarning)
            assert in_threads(source, out, 2) == [None, None]
        assert again <= found(s3, name).keys()
    assert found(s3, name) == wanted
    assert left(stage) == [] and s3.uploads(name) == []
