"""Models in a bucket of Google's storage, through its own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ramerge
from ramerge.core.foundation.errors import OutputWarning
from tests.checkpoints import recipe, write_simple
from tests.e2e import kills
from tests.engine.test_uploads import as_written_here
from tests.storage import google
from tests.storage.seaweed import OPEN, Server


@pytest.fixture
def gs(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server behind it, to look at what is there."""
    with google.serving(s3, tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield s3


def test_bucket_merges_equal_folder_merges(gs: Server, tmp_path: Path) -> None:
    agents, out, stage = write_simple(tmp_path), f"gs://{OPEN}/merged", tmp_path / "stage"
    source = recipe(tmp_path, agents)
    ramerge.merge(source, tmp_path / "here")
    for name in ("base", *agents):
        gs.put(tmp_path / name, name, OPEN)
    there = {"base": f"gs://{OPEN}/base", "agents": {name: f"gs://{OPEN}/{name}" for name in agents}}
    ramerge.merge(source | there, tmp_path / "from there", options=ramerge.Options(cache=False))
    for name in ("here", "from there"):
        (tmp_path / name / "ramerge.yaml").unlink()  # names the inputs
    assert kills.weights(tmp_path / "from there") == kills.weights(tmp_path / "here")
    ramerge.merge(source, tmp_path / "here", options=ramerge.Options(overwrite=True))
    with pytest.warns(OutputWarning, match="this store ignores conditions"):  # the stand-in does
        ramerge.merge(source, out, options=ramerge.Options(upload=ramerge.Upload(staging_dir=stage)))
    assert as_written_here(gs.files("merged", OPEN)) == kills.weights(tmp_path / "here")
    with pytest.raises(ramerge.PlanError, match="holds files"):
        ramerge.merge(source, out, options=ramerge.Options(upload=ramerge.Upload(staging_dir=stage)))
    with pytest.warns(OutputWarning, match="this store ignores conditions"):
        ramerge.merge(
            source | {"method": "ram"},
            out,
            options=ramerge.Options(overwrite=True, upload=ramerge.Upload(staging_dir=stage)),
        )
    ramerge.merge(source | {"method": "ram"}, tmp_path / "here", options=ramerge.Options(overwrite=True))
    assert as_written_here(gs.files("merged", OPEN)) == kills.weights(tmp_path / "here")
    assert not stage.exists()


def test_what_is_not_there(gs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    with pytest.raises(ramerge.RamergeError, match=f"gs://{OPEN}/nothing"):
        ramerge.merge(source | {"base": f"gs://{OPEN}/nothing"}, tmp_path / "out")
    with pytest.raises(ramerge.RamergeError, match=r"gs://denied/model: access is denied.*GOOGLE_APPLICATION_CREDEN"):
        ramerge.merge(source | {"base": "gs://denied/model"}, tmp_path / "out")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "no such file"))
    with pytest.raises(ramerge.RamergeError, match=f"gs://{OPEN}/base"):
        ramerge.merge(source | {"base": f"gs://{OPEN}/base"}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
