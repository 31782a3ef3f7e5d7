"""`ramerge convert` and `ramerge.convert`: one model as plain safetensors."""

import json
from pathlib import Path

import pytest

import ramerge
from tests.checkpoints import read_checkpoint, simple, write_checkpoint
from tests.commands import ramerge as command
from tests.conformance.formats import ROWS
from tests.conformance.test_merge import same


@pytest.mark.parametrize("row", list(ROWS))
def test_every_format_as_it_is(row: str, tmp_path: Path) -> None:
    format = ROWS[row]
    if not format.as_base:
        return
    tensors = simple(0, format.dtypes[0])
    model = format.write(tmp_path / "model", tensors)
    record = ramerge.convert(model, tmp_path / "out", dtype=format.dtype)
    assert record.method == "passthrough"
    plain = write_checkpoint(tmp_path / "plain", format.expand(tmp_path / "model", tensors))
    ramerge.convert(plain, tmp_path / "wanted", dtype=format.dtype)
    same(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "wanted"))


def test_dtype_shards_and_base(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", simple(0, "F32"))
    record = ramerge.convert(model, tmp_path / "out", dtype="bfloat16", shard_size="2kB")
    assert record.dtype == "bfloat16" and len(list((tmp_path / "out").glob("*.safetensors"))) == 3
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"
    base = write_checkpoint(tmp_path / "base", simple(1), shards=2)
    ramerge.convert(model, tmp_path / "like", base=base)
    same(read_checkpoint(tmp_path / "like"), read_checkpoint(tmp_path / "out"))
    assert len(list((tmp_path / "like").glob("*.safetensors"))) == 2


def test_the_command(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", simple(0, "F32"))
    said = command("convert", str(tmp_path / "model"), str(tmp_path / "out"), "--dtype", "float16", "--json")
    assert json.loads(said.stdout)["dtype"] == "float16"
    refused = command("convert", str(tmp_path / "absent"), str(tmp_path / "other"))
    assert refused.returncode == 2
    assert "no such folder" in refused.stderr and not (tmp_path / "other").exists()
