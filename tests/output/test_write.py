from pathlib import Path

import numpy as np

from ramerge.core.output.staging import StagingDir
from ramerge.core.output.write import Writer, lay_out
from ramerge.core.tensors.header import read_header


def test_files_are_sized_before_writing(tmp_path: Path) -> None:
    shard = lay_out("sub/x.safetensors", [("a", "U8", (3,), 3), ("none", "F32", (0,), 0), ("b", "U8", (2,), 2)])
    writer = Writer(StagingDir(tmp_path), [shard])
    path = tmp_path / "sub" / "x.safetensors"
    assert path.stat().st_size == shard.file_bytes == len(shard.header) + 5
    writer.write(shard.name, shard.offsets["b"], np.array([4, 5], np.uint8))
    writer.write(shard.name, shard.offsets["a"], np.array([1, 2, 3], np.uint8))
    writer.finish()
    writer.close()
    assert path.read_bytes()[-5:] == bytes([1, 2, 3, 4, 5])
    assert [entry.name for entry in read_header(path).entries] == ["a", "none", "b"]
