"""Models that are sent to a bucket of a real S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ramerge
from tests.checkpoints import recipe, write_simple
from tests.storage.seaweed import BUCKET, Server


@pytest.fixture(autouse=True)
def stage(own_cache: Path) -> Path:
    """Where files lie until they are sent."""
    return own_cache / "outputs"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}


def left(stage: Path) -> list[str]:
    """What is on the stage."""
    return sorted(path.name for path in stage.rglob("*")) if stage.exists() else []


CASES = {
    "ram": {"method": "ram"},
    "ram+": {"method": "ram+"},
    "ties": {"method": "ties"},
    "wudi": {"method": "wudi"},
    "one file": {"method": "ram+", "shard_size": "5GB"},
    "float32": {"method": "ram+", "dtype": "float32"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_that_of_a_folder(
    case: str, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    source, name = source | CASES[case], f"out/{case.replace(' ', '-')}"
    here = ramerge.merge(source, tmp_path / "here", cache=False)
    there = ramerge.merge(source, f"s3://{BUCKET}/{name}", cache=False)
    assert there.statistics == here.statistics
    assert s3.files(name).keys() == {path.name for path in (tmp_path / "here").iterdir()}
    told = ("ramerge.json", "README.md")
    for path in (tmp_path / "here").iterdir():
        assert path.name in told or s3.files(name)[path.name] == path.read_bytes()
    assert len(list((tmp_path / "here").glob("*.safetensors"))) > 2 or case == "one file"
    assert left(stage) == []
