"""A merge as checkpoints: what is planned of the folder is what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ramerge
from ramerge.core.engine.checkpoint_output import CHECKPOINT
from ramerge.core.engine.outputs import OUTPUT_KINDS, OutputKind
from tests.checkpoints import recipe, write_simple
from tests.plans import planned


@pytest.mark.parametrize("vary", [None, {"parameters.r": [0.1, 0.2]}], ids=["one", "sweep"])
def test_the_large_files_are_those_of_the_spec(vary: object, tmp_path: Path) -> None:
    source, out = recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}, tmp_path / "out"
    plan = planned(source, out, vary=vary)
    if vary is None:
        ramerge.merge(source, out)
    else:
        ramerge.sweep(source, out, vary=vary)
    made = {path.relative_to(out).as_posix(): path.stat().st_size for path in out.rglob("*.safetensors")}
    assert dict(CHECKPOINT.spec(plan).files) == made and len(made) > 1


def test_the_fingerprint_follows_the_recipe(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    first, same, other = (
        CHECKPOINT.spec(planned(each, tmp_path / "out")).fingerprint
        for each in (source, source, source | {"method": "ram"})
    )
    assert first == same != other


def test_plan_without_delta_is_written_as_checkpoints(tmp_path: Path) -> None:
    plan = planned(recipe(tmp_path, write_simple(tmp_path)), tmp_path / "out")
    assert plan.output.kind is CHECKPOINT is OUTPUT_KINDS["checkpoint"]
    assert isinstance(OUTPUT_KINDS["delta"], OutputKind)
