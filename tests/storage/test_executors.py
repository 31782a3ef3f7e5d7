"""Models that the nodes of a cluster make, and that are sent to a bucket of a real S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.core.foundation.errors import OutputWarning
from ramerge.core.output import remote_output
from ramerge.core.storage.bucket_upload import BucketUpload
from tests.checkpoints import recipe, write_simple
from tests.e2e import kills
from tests.engine.executors import cluster
from tests.engine.test_uploads import without_strays
from tests.storage.seaweed import BUCKET, Server
from tests.storage.test_outputs import expected, found, left

pytestmark = pytest.mark.full  # Ray


@pytest.fixture(autouse=True)
def stage(own_cache: Path) -> Path:
    """Where files lie until they are sent, which all nodes see."""
    return own_cache / "outputs"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}


def test_a_stage_that_is_too_small(s3: Server, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    size = ramerge.plan(source).bytes_written
    monkeypatch.setattr(remote_output.RemoteOutputDir, "free_bytes", lambda output: size - 1)
    monkeypatch.setattr(remote_output, "_SHARDS", 1)
    out = f"s3://{BUCKET}/small"
    assert ramerge.plan(source, out).problems == (), "one process has few files there"
    (problem,) = ramerge.plan(source, out, options=ramerge.Options(ray=ramerge.Ray())).problems
    assert f"needs {size:,} bytes of disk in " in problem and "staging_dir=" in problem


def test_an_interrupted_merge_on_ray_goes_on(
    connected: Any, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    out = f"s3://{BUCKET}/ray-interrupted"

    def stop(event: ramerge.Progress) -> None:
        if event.stage == "merging" and event.done > event.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.merge(connected, source, out, stop, block=kills.BLOCK, seconds=0.02)
    assert "model.safetensors.index.json" not in s3.files("ray-interrupted") and left(stage)
    with pytest.warns(OutputWarning, match="continuing: [1-9]"):
        cluster.merge(connected, source, out, block=kills.BLOCK)
    assert found(s3, "ray-interrupted") == expected(source, tmp_path / "here")
    assert left(stage) == []


def test_defeated_driver_changes_nothing(
    connected: Any, s3: Server, source: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it sleeps, another job completes the same output."""
    out, there, put = f"s3://{BUCKET}/ray-stopped", dict[str, bytes](), BucketUpload.put

    def slept(upload: BucketUpload, *arguments: Any) -> str:
        monkeypatch.setattr(BucketUpload, "put", put)
        kills.merge(source | {"method": "ram"}, out, staging_dir=tmp_path / "other")
        there.update(without_strays(s3.files("ray-stopped")))
        return put(upload, *arguments)

    monkeypatch.setattr(BucketUpload, "put", slept)
    with pytest.raises(ramerge.OutputError, match="another job has written to the same place since this one began"):
        cluster.merge(connected, source, out, block=kills.BLOCK)
    assert s3.files("ray-stopped") == there
    assert found(s3, "ray-stopped") == expected(source | {"method": "ram"}, tmp_path / "here")
